"""The image of examples/container is built, and runs as a stranger would run it: no root, no name, nothing to write to
but its volume (rule S12).

Its base is made by debootstrap, and no registry of images is asked. Packages come from where this machine has its own.
"""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from store.embedded.running import running_url
from store.embedded.server import EmbeddedServer
from tests.fix_postgres import log_in
from tests.fix_service import PATIENCE
from tests.rules import ROOT

pytestmark = [
    pytest.mark.night,
    pytest.mark.rule("S12"),
    pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not there"),
    pytest.mark.skipif(os.geteuid() != 0, reason="containers without a user namespace: it takes root"),
]

BASE = "docker.io/library/debian:bookworm-slim"
IMAGE = "localhost/coordinator-tested"
#: The user of the image; one that it does not know.
USERS = ["10001", "54321"]

_CLIENT = """
import sys
from proton import Message
from proton.utils import BlockingConnection
connection = BlockingConnection("amqp://127.0.0.1:5672", timeout=60)
if sys.argv[1] == "post":
    sender = connection.create_sender("orders")
    for text in sys.argv[2:]:
        sender.send(Message(body=text * int(1 if len(text) > 1 else 3_000_000), durable=True))
else:
    receiver = connection.create_receiver("orders")
    message = receiver.receive(timeout=60)
    print(message.body[:20])
    receiver.accept()
connection.close()
"""


def _tried(*arguments: object, given: str = "", limit: float = 300) -> subprocess.CompletedProcess[str]:
    runtime = ["--runtime=runc"] if shutil.which("runc") else []
    command = ["podman", *runtime, *(str(each) for each in arguments)]
    return subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, check=False, timeout=limit)


def _podman(*arguments: object, given: str = "", limit: float = 300) -> str:
    """What ``podman`` says; a failure has its words."""
    done = _tried(*arguments, given=given, limit=limit)
    assert done.returncode == 0, f"{done.args}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


#: Lower than any machine's: of itself podman asks for more than it has, which not every root may have.
LIMITS = ["--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, dist: Path) -> str:
    """Built of what ``make dist`` has made."""
    if not list(dist.glob("*-cp311-*.whl")):
        pytest.skip("CPython 3.11 is not there: make dist has left it out")
    folder = tmp_path_factory.mktemp("image")
    if subprocess.run(["podman", "image", "exists", BASE], check=False).returncode != 0:
        if shutil.which("debootstrap") is None:
            pytest.skip("debootstrap is not there")
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", folder / "tree"], check=True, timeout=1800)
        subprocess.run(["tar", "-C", folder / "tree", "-cf", folder / "tree.tar", "."], check=True)
        _podman("import", folder / "tree.tar", BASE)
    tried = _tried("run", "--rm", "--network=none", *LIMITS, BASE, "true")
    if tried.returncode != 0:
        pytest.skip(f"podman starts no container here: {tried.stderr.strip()[-200:]}")
    authorities = ssl.get_default_verify_paths().cafile
    (folder / "pip.conf").write_text("[global]\ncert = /etc/authorities.crt\n" if authorities else "")
    _podman(
        *("build", "--pull=never", "--network=host", *LIMITS, "--file=examples/container/Containerfile"),
        *("--ignorefile=examples/container/Containerfile.dockerignore", f"--tag={IMAGE}"),
        *([f"--volume={authorities}:/etc/authorities.crt:ro"] if authorities else []),
        *(f"--volume={folder}/pip.conf:/etc/pip.conf:ro", "."),
        limit=3600,
    )
    return IMAGE


class Container:
    """One container of the image. ``options``: of ``podman run``, beside those of the page."""

    def __init__(self, name: str, *options: object) -> None:
        self.name = name
        self._starts = 0
        hard = ("--read-only", "--tmpfs=/tmp:noexec,nosuid,nodev", "--cap-drop=all", "--security-opt=no-new-privileges")
        _podman("run", "--detach", f"--name={name}", "--network=none", *hard, *LIMITS, *options, IMAGE)
        self.listening()

    def listening(self) -> None:
        """Wait until it has logged so, once for each of its starts."""
        self._starts += 1
        deadline = time.monotonic() + PATIENCE
        while (log := self._log()).count('"event": "listening"') < self._starts:
            assert self._state("Running") == "true", log
            assert time.monotonic() < deadline, log
            time.sleep(0.5)

    def _log(self) -> str:
        done = subprocess.run(["podman", "logs", self.name], capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    def _state(self, field: str) -> str:
        return _podman("inspect", f"--format={{{{.State.{field}}}}}", self.name).strip()

    def asked(self, *arguments: str, given: str = "") -> str:
        return _podman("exec", "--interactive", self.name, *arguments, given=given)

    def post(self, *texts: str) -> None:
        """Each a message; of one letter, a message of 3 MB."""
        self.asked("python", "-", "post", *texts, given=_CLIENT)

    def read(self) -> str:
        return self.asked("python", "-", "read", given=_CLIENT).strip()

    def kill(self) -> None:
        _podman("kill", "--signal=KILL", self.name)

    def stop(self) -> int:
        """The exit status."""
        _podman("stop", "--time=60", self.name)
        return int(self._state("ExitCode"))

    def start(self) -> None:
        _podman("start", self.name)
        self.listening()


Run = Callable[..., Container]


@pytest.fixture
def run(image: str, request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a container; at the end all are removed, with their volumes."""
    names: list[str] = []

    def started(*options: object) -> Container:
        names.append(f"coordinator-tested-{os.getpid()}-{len(names)}")
        return Container(names[-1], *options)

    yield started
    for name in names:
        _podman("rm", "--force", "--volumes", name)


@pytest.fixture
def volume() -> Iterator[str]:
    name = f"coordinator-tested-{os.getpid()}"
    _podman("volume", "create", name)
    yield f"--volume={name}:/var/lib/coordinator"
    _podman("volume", "rm", "--force", name)


@pytest.mark.parametrize("user", USERS)
def test_what_was_acknowledged_is_in_the_volume(run: Run, volume: str, user: str) -> None:
    options = (volume, f"--user={user}:0", "--passwd=false")
    first = run(*options)
    first.post("before a kill", "before a stop", "x")
    first.kill()
    second = run(*options)
    assert second.read() == "before a kill"
    assert second.stop() == 0
    second.start()
    assert second.read() == "before a stop"
    assert second.read() == "x" * 20
    assert second.asked("coordinator", "transaction", "list", "--json").strip() == "[]"
    assert second.asked("id", "-u").strip() == user
    assert "its rules compiled as well" in second.asked("coordinator", "--version")


def test_a_user_without_a_name_reconciles(run: Run, volume: str) -> None:
    container = run(volume, "--user=54321:0", "--passwd=false")
    container.post("an order")
    container.asked("coordinator", "reconcile", "--out", "/var/lib/coordinator/report", "--fail-on", "error")
    container.kill()
    container.start()
    assert container.read() == "an order"


def test_a_given_database_by_a_file(run: Run, own_server: tuple[EmbeddedServer, str], tmp_path: Path) -> None:
    """``nobody`` is the user of this server, and the only one that may enter the folder of its socket."""
    server, url = own_server
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create role guest superuser login password 'a long one'")
        log_in(connection, "guest", "scram-sha-256")
    socket_folder = server.data_dir / "run"
    file = tmp_path / "database-url"
    file.write_text(url.replace("//coordinator@", "//guest:a%20long%20one@", 1))
    os.chown(file, 65534, 65534)
    file.chmod(0o400)
    assert running_url(server.data_dir) == url
    container = run(
        "--user=65534:0",
        f"--volume={socket_folder}:{socket_folder}",
        f"--volume={file}:/run/secrets/database-url:ro",
        "--env=COORDINATOR_DATABASE_URL_FILE=/run/secrets/database-url",
    )
    container.post("before a kill")
    container.kill()
    container.start()
    assert container.read() == "before a kill"
    assert container.stop() == 0
