"""``coordinator reconcile --master spark://…``: a master and two workers on this machine (R1, R2, S8)."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pyspark
import pytest
from typer.testing import CliRunner

from coordinator.__main__ import app
from spark.cluster import Place, disagreement
from spark.java import _environment, java_home
from store.processes import die_with_parent
from tests.fix_command import PATIENCE_SECONDS, ROOT, environment
from tests.fix_proxy import Proxy
from tests.fix_spark import JAVA_OPTIONS
from tests.fix_store_rows import NOW, StoreRows
from tests.watching import counted, in_store

SECRET = "told-to-nobody"
_LONG = 20 * PATIENCE_SECONDS
#: Has the executors read a store that the driver would read by itself, as it is small.
_AS_LARGE = "import spark.reading; spark.reading.SMALL_BYTES = 0; from coordinator.__main__ import main; main()"
#: The same, which waits for a lost executor no longer than that.
_PATIENCE = 5
_IMPATIENT = f"import spark.cluster; spark.cluster._REPLACED_SECONDS = {_PATIENCE}; {_AS_LARGE}"


def _wait(there: Callable[[], object], why: Callable[[], str]) -> None:
    limit = time.monotonic() + _LONG
    while not there():
        assert time.monotonic() < limit, why()
        time.sleep(0.05)


@dataclass
class Cluster:
    """All that it writes is in ``folder``; of us it has what Spark sends it."""

    folder: Path
    env: dict[str, str]
    master: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)

    def start(self, what: str, says: str, *arguments: str) -> str:
        """A daemon, once it has said so: what it said."""
        log = self.folder / f"daemon-{len(self.logs)}.log"
        self.logs.append(log)
        runs = Path(pyspark.__file__).parent / "bin" / "spark-class"
        with log.open("wb") as file:
            command = [str(runs), f"org.apache.spark.deploy.{what}", "--host", "127.0.0.1", *arguments]
            self.processes.append(
                subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=self.env,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                    preexec_fn=partial(die_with_parent, signal.SIGKILL, os.getpid()),
                )
            )
        _wait(lambda: re.search(says, log.read_text("utf-8")), lambda: log.read_text("utf-8")[-2000:])
        found = re.search(says, log.read_text("utf-8"))
        assert found is not None
        return found[0]

    def kill_master(self) -> None:
        master = self.processes.pop(0)
        master.kill()
        master.wait()

    def new_master(self) -> None:
        """At the place of the one that was killed; the workers look for it there."""
        port = self.master.rpartition(":")[2]
        self.start("master.Master", re.escape(self.master), "--port", port, "--webui-port", "0")
        self.processes.insert(0, self.processes.pop())
        workers = self.logs[1:3]
        again = "Successfully registered"
        _wait(lambda: all(log.read_text("utf-8").count(again) > 1 for log in workers), workers[0].read_text)

    def kill_executors(self) -> list[int]:
        found = self.executors()
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return found

    def executors(self) -> list[int]:
        found = []
        for each in Path("/proc").iterdir():
            with suppress(OSError):
                runs = each.name.isdecimal() and b"CoarseGrainedExecutorBackend" in (each / "cmdline").read_bytes()
                if runs and self.folder in (each / "cwd").readlink().parents:
                    found.append(int(each.name))
        return found

    def stop(self) -> None:
        for each in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()
        for pid in self.executors():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="coordinator-cluster-") as name, _environment(java_home(), "spark://any"):
        folder = Path(name)
        (folder / "events").mkdir()
        (folder / "spark-defaults.conf").write_text(
            f"spark.executor.memory 512m\nspark.executor.extraJavaOptions {JAVA_OPTIONS}\n"
            "spark.eventLog.enabled true\nspark.eventLog.compress false\n"
            f"spark.eventLog.dir {(folder / 'events').as_uri()}\n",
            "utf-8",
        )
        ours = {"PYTHONPATH", "COORDINATOR_DATABASE_URL"}
        env = {name: value for name, value in os.environ.items() if name not in ours}
        env |= {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": name,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
            "SPARK_LOCAL_DIRS": name,
            "TMPDIR": name,
        }
        made = Cluster(folder, env)
        try:
            said = made.start("master.Master", r"spark://127\.0\.0\.1:\d+", "--port", "0", "--webui-port", "0")
            made.master = said
            for number in range(2):
                size = ("--cores", "1", "--memory", "512m", "--work-dir", str(folder / f"work-{number}"))
                made.start("worker.Worker", "Successfully registered", *size, "--webui-port", "0", said)
            yield made
        finally:
            made.stop()


@dataclass
class Running:
    process: subprocess.Popen[str]
    errors: IO[str]
    out: Path

    def said(self) -> str:
        self.errors.seek(0)
        return self.errors.read()

    def end(self) -> tuple[int, str, str]:
        said = self.process.communicate(timeout=_LONG)[0]
        self.errors.seek(0)
        return self.process.returncode, said, self.errors.read()


@dataclass
class Start:
    """Starts a command on the cluster, over the store behind ``proxy``; what it writes is below ``folder``."""

    cluster: Cluster
    proxy: Proxy
    folder: Path
    credentials: Path
    python: str = _AS_LARGE
    running: list[Running] = field(default_factory=list)

    @property
    def _out(self) -> Path:
        """Of the next one."""
        return self.folder / f"out-{len(self.running)}"

    def __call__(
        self, *arguments: str, env: dict[str, str] | None = None, file: Path | None = None, master: str | None = None
    ) -> Running:
        return self.command("reconcile", "--out", str(self._out), *arguments, env=env, file=file, master=master)

    def command(
        self, *arguments: str, env: dict[str, str] | None = None, file: Path | None = None, master: str | None = None
    ) -> Running:
        errors = (self.folder / f"errors-{len(self.running)}").open("w+", encoding="utf-8")
        command = [sys.executable, "-c", self.python, *arguments, "--master", master or self.cluster.master]
        names = ("SPARK_LOCAL_IP", "SPARK_CONF_DIR", "TMPDIR", "SPARK_LOCAL_DIRS")
        java = str(Path(self.cluster.env["COORDINATOR_JAVA"]).parents[1])
        process = subprocess.Popen(
            [*command, "--credentials", str(file or self.credentials)],
            env={**environment(JAVA_HOME=java, **{name: self.cluster.env[name] for name in names}), **(env or {})},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        self.running.append(Running(process, errors, self._out))
        return self.running[-1]


@pytest.fixture
def start(cluster: Cluster, database_url: str, tmp_path: Path) -> Iterator[Start]:
    """A run over a store with a lost delivery, reached by TCP and a password."""
    rows = StoreRows(seed=23).healthy(30)
    rows.committed([rows.address("shop")], NOW - timedelta(hours=1))
    rows.write(database_url)
    proxy = Proxy(database_url)
    parts = urlsplit(proxy.url)
    user, _, place = parts.netloc.rpartition("@")
    credentials = tmp_path / "store.url"
    credentials.write_text(urlunsplit(parts._replace(netloc=f"{user or 'postgres'}:{SECRET}@{place}")), "utf-8")
    credentials.chmod(0o600)
    made = Start(cluster, proxy, tmp_path, credentials)
    yield made
    for each in made.running:
        with suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.wait()
        assert each.process.stdout is not None
        each.process.stdout.close()
        each.errors.close()
    proxy.close()


def _all_of_processes() -> bytes:
    """Command lines and environments, but for our own."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdecimal() and int(each.name) != os.getpid():
            for name in ("cmdline", "environ"):
                with suppress(OSError):
                    found.append((each / name).read_bytes())
    return b"\0".join(found)


@pytest.mark.night
@pytest.mark.rule("R1", "R2", "S8")
def test_a_cluster_finds_what_is_wrong_and_never_sees_the_password(cluster: Cluster, start: Start) -> None:
    """Its machines have this package from the driver; the password is in a file of theirs alone. Executors that are
    killed in the middle of a table are replaced, and their tasks done again, in the same snapshot."""
    reads, killed = threading.Event(), threading.Event()

    def hold(octets: bytes) -> None:
        if b"COPY" in octets and b"half" in octets and not killed.is_set():
            reads.set()
            killed.wait(_LONG)

    start.proxy.on_request = hold
    running = start()
    _wait(lambda: reads.is_set() or running.process.poll() is not None, running.said)
    dead = cluster.kill_executors()
    _wait(lambda: not set(dead) & set(cluster.executors()), lambda: f"of {dead} some live")
    killed.set()
    seen = []
    while running.process.poll() is None:
        seen.append(SECRET.encode() in _all_of_processes())
        time.sleep(1)
    status, said, errors = running.end()
    assert dead
    assert (status, said.splitlines()[0].partition(";")[0]) == (1, "2 findings: 1 lost-delivery, 1 unbalanced"), errors
    assert (len(seen) > 1, any(seen)) == (True, False)
    summary = json.loads((running.out / "summary.json").read_text("utf-8"))
    assert summary["findings"]["total"] == 2
    written = [path for path in cluster.folder.rglob("*") if path.is_file()]
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []
    events = b"".join(path.read_bytes() for path in (cluster.folder / "events").rglob("*") if path.is_file())
    assert b"SparkListenerEnvironmentUpdate" in events
    assert SECRET not in said + errors


@pytest.mark.night
@pytest.mark.rule("R31", "R33")
def test_outcomes_are_watched_on_a_cluster_until_it_is_gone(start: Start, cluster: Cluster, database_url: str) -> None:
    """Its executors read what is new, with the URL from their own file; they go on when the master has died. Once they
    have, too, others do not come, for which Spark would wait for ever.
    """
    options = ("--checkpoint", str(start.folder / "checkpoint"), "--every", "3")
    running = replace(start, python=_IMPATIENT).command("watch", *options)
    ended = running.process.poll

    def counts() -> None:
        _wait(lambda: counted(database_url) == in_store(database_url) or ended() is not None, running.said)
        assert counted(database_url) == in_store(database_url) != {}

    def post() -> None:
        with psycopg.connect(database_url) as store:
            store.execute(
                "insert into coordinator.half (id, address_id, message) select max(id) + 1, 1, '' from coordinator.half"
            )

    counts()
    cluster.kill_master()
    try:
        post()
        counts()
        assert cluster.kill_executors()
        post()
        status, said, errors = running.end()
    finally:
        cluster.new_master()
    assert status == 2
    lost = f"error: all executors of {cluster.master} were lost, and none came within {_PATIENCE} s: "
    assert errors.splitlines()[-1].startswith(lost), errors
    assert "java" not in errors
    assert SECRET not in said + errors


@pytest.mark.night
def test_an_older_copy_of_the_package_on_a_worker_is_refused(start: Start, tmp_path: Path) -> None:
    """Where its Python has it before the one that was sent; else the sent one goes before it."""
    older = tmp_path / "older"
    for name in ("spark", "store"):
        shutil.copytree(ROOT / name, older / name, ignore=shutil.ignore_patterns("__pycache__"))
    (older / "sitecustomize.py").write_text("import spark.cluster\n", "utf-8")
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(
        f"spark.executor.memory 512m\nspark.cores.max 1\nspark.executorEnv.PYTHONPATH {older}\n", "utf-8"
    )
    status, said, errors = start(env={"SPARK_CONF_DIR": str(conf)}).end()
    assert (status, said) == (2, "")
    assert f"imports another copy of this package, {older}/spark/cluster.py: take it out" in errors.splitlines()[-1]


@pytest.mark.night
@pytest.mark.rule("R31")
def test_what_never_comes_is_said(cluster: Cluster, start: Start, tmp_path: Path) -> None:
    """Executors that want more memory than a worker has, for which Spark would wait for ever; and a port that is no
    master, which it tries for a minute. Both at once, as both wait.
    """
    greedy = tmp_path / "conf"
    greedy.mkdir()
    (greedy / "spark-defaults.conf").write_text("spark.executor.memory 4g\n", "utf-8")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        master = f"spark://127.0.0.1:{listener.getsockname()[1]}"
        runs = (
            (start(env={"SPARK_CONF_DIR": str(greedy)}), f"error: no executor of {cluster.master} came"),
            (start(master=master), f"error: {master} takes connections, and has not taken this application"),
        )
        for running, says in runs:
            status, said, errors = running.end()
            assert (status, said) == (2, "")
            assert errors.splitlines()[-1].startswith(says)
            assert "java" not in errors


@pytest.mark.parametrize(
    ("content", "mode", "more", "says"),
    [
        ("postgresql://db.example/shop", 0o600, ("--database-url", "postgresql://db.example/shop"), "not both"),
        ("postgresql://db.example/shop", 0o644, (), "can be read by others; expected mode 0600"),
        ("db.example/shop", 0o600, (), "the database URL must begin with postgresql://"),
        ("postgresql://db.example/shop", 0o600, ("--data-dir", "data"), "not both"),
        (None, 0o600, (), "No such file or directory"),
    ],
)
def test_a_file_with_a_url_that_cannot_be_used(
    tmp_path: Path, content: str | None, mode: int, more: tuple[str, ...], says: str
) -> None:
    file = tmp_path / "store.url"
    if content is not None:
        file.write_text(content, "utf-8")
        file.chmod(mode)
    done = CliRunner().invoke(app, ["reconcile", "--out", str(tmp_path / "out"), "--credentials", str(file), *more])
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert says in line


@pytest.mark.parametrize("option", ["--credentials", "--also"])
def test_a_file_that_is_no_text_is_no_defect(tmp_path: Path, option: str) -> None:
    file = tmp_path / "store.url"
    file.write_bytes("postgresql://db.example/shop".encode("utf-16"))
    file.chmod(0o600)
    store = () if option == "--credentials" else ("--database-url", "postgresql://db.example/shop")
    done = CliRunner().invoke(app, ["reconcile", "--out", str(tmp_path / "out"), option, str(file), *store])
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {option}: ")
    assert line.endswith(f"{file} is no text; expected a URL alone, in UTF-8")


def test_what_does_not_fit_is_said_of_its_host() -> None:
    right = Place(
        host="one", python="3.11.7", pyspark="4.3.0", package="/x/coordinator-7.zip/spark/cluster.py", wrong=None
    )
    assert disagreement("3.11.2", "4.3.0", "coordinator-7.zip", [right]) is None
    for changed, says in (
        (right._replace(python="3.13.1"), "runs Python 3.13.1, and this is 3.11.2: set PYSPARK_PYTHON"),
        (right._replace(pyspark="4.2.0"), "has PySpark 4.2.0, and this is 4.3.0"),
        (
            right._replace(package="/opt/spark/cluster.py"),
            "imports another copy of this package, /opt/spark/cluster.py",
        ),
        (right._replace(wrong="its Python has no module pyarrow"), "cannot read the store: its Python has no module"),
    ):
        said = disagreement("3.11.2", "4.3.0", "coordinator-7.zip", [right, changed._replace(host="two")])
        assert said is not None
        assert said.startswith(f"the executor on two {says}")
