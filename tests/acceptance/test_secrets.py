"""Secrets that can be told from all else, through a service and commands that fail as they can: they are found nowhere
but where they belong (rule S8)."""

from __future__ import annotations

import base64
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from coordinator.login import verifiers
from store import users
from store.database import connected
from store.embedded.server import EmbeddedServer
from tests.fix_command import Command, environment
from tests.fix_night import by_night
from tests.fix_postgres import log_in
from tests.fix_service import PATIENCE, Service, running_service
from tests.wire.messages import data
from tests.wire.peer import Peer
from tests.wire.sasl import HASHES, Login, ScramClient, plain

pytestmark = pytest.mark.rule("S8")

#: Of the role of the database, with characters that a URL escapes; of a user; typed by mistake; in a message.
OF_THE_STORE = "st0re%/@:secret-8d1f"
OF_A_USER = "us3r-secret-52c7"
WRONG = "wr0ng-secret-e90a"
BODY = "b0dy-secret-77b3"


@dataclass(frozen=True)
class Store:
    """``wrong``: the URL with another password, ``WRONG``."""

    owner: str
    url: str
    wrong: str


@pytest.fixture
def store(own_server: tuple[EmbeddedServer, str]) -> Store:
    owner = own_server[1]
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(f"create role keeper superuser login password '{OF_THE_STORE}'".encode())
        log_in(connection, "keeper", "scram-sha-256")

    def url(password: str) -> str:
        return owner.replace(f"//{urlsplit(owner).username}@", f"//keeper:{quote(password, safe='')}@")

    return Store(owner, url(OF_THE_STORE), url(WRONG))


@pytest.fixture
def service(store: Store) -> Iterator[Service]:
    settings = {"database_url": store.url, "log.level": "debug", "login.plain": "always", "workers": "2"}
    with running_service({**settings, "metrics.listen": "http://127.0.0.1:0"}) as service:
        yield service


def _forms(secret: str) -> set[bytes]:
    """As it is, as a URL has it, as Python and JSON show it, and as SASL and PostgreSQL may send it."""
    octets = secret.encode()
    return {
        octets,
        quote(secret, safe="").encode(),
        quote(secret).encode(),
        base64.b64encode(octets),
        octets.hex().encode(),
    }


def _found(octets: bytes) -> list[str]:
    """The secrets that are in the text."""
    return [each for each in (OF_THE_STORE, OF_A_USER, WRONG, BODY) if any(form in octets for form in _forms(each))]


def _keys(store: Store) -> list[bytes]:
    """Of the verifiers: with one of them a client could pretend to be the server, or be attacked offline."""
    with psycopg.connect(store.owner) as connection:
        rows = connection.execute("select stored_key, server_key from coordinator.user_verifier").fetchall()
    return [key for row in rows for key in row]


def _family(pid: int) -> list[int]:
    """The process and all below it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in _family(int(child)))]


def _log_in_rightly_and_wrongly(service: Service) -> None:
    for password, code in ((OF_A_USER, 0), (WRONG, 1)):
        for mechanism in HASHES:
            client = ScramClient(user="alice", password=password, mechanism=mechanism)
            assert Login(Peer(service.port)).scram(client).code == code
        login = Login(Peer(service.port))
        login.init("PLAIN", plain("alice", password))
        assert login.outcome().code == code
    # a password where the name should be
    login = Login(Peer(service.port))
    login.init("PLAIN", plain(WRONG, OF_A_USER))
    assert login.outcome().code == 1


def _post(service: Service) -> None:
    login = Login(Peer(service.port))
    login.init("PLAIN", plain("alice", OF_A_USER))
    assert login.outcome().code == 0
    login.peer.open()
    session = login.peer.begin()
    session.sender("orders").outcome(data(BODY.encode()))
    session.sender("orders").outcome(b"\x00\x53\x75" + BODY.encode())  # no message
    login.peer.close()


def test_a_service_tells_no_secret(service: Service, store: Store, own_server: tuple[EmbeddedServer, str]) -> None:
    with connected(store.url) as connection:
        users.add(connection, "alice", verifiers.new(OF_A_USER))
    assert service.command("permission", "grant", "all", "*", "--user", "alice").returncode == 0
    _log_in_rightly_and_wrongly(service)
    _post(service)
    family = _family(service.pid)
    assert len(family) >= 4, "the supervisor, two workers, the metrics"
    for pid in family:
        assert _found(Path(f"/proc/{pid}/cmdline").read_bytes()) == [], pid
    keys = _keys(store)
    assert len(keys) >= 4
    # the store fails under it
    own_server[0].stop()
    service.wait_for(lambda line: line.get("event") == "database away")
    own_server[0].start()
    with psycopg.connect(store.owner, autocommit=True) as connection:
        log_in(connection, "keeper", "scram-sha-256")
    service.wait_for(lambda line: line.get("event") == "database connected")
    with psycopg.connect(store.owner) as connection:
        said = connection.execute("select a::text from coordinator.audit a").fetchall()
    assert said
    assert _found(repr(said).encode()) == []
    service.stop()
    log = repr(service.log_lines()).encode()
    assert _found(log) == []
    shown = {form for key in keys for form in (key.hex().encode(), base64.b64encode(key), repr(key).encode())}
    assert [form for form in shown if form in log + repr(said).encode()] == []


def test_a_service_that_cannot_start_tells_no_secret(store: Store) -> None:
    """Its role's password is wrong."""
    given = environment(COORDINATOR_DATABASE_URL=store.wrong, COORDINATOR_LOG__LEVEL="debug")
    serve = [sys.executable, "-m", "coordinator", "serve", "--listen", "amqp://127.0.0.1:0"]
    done = subprocess.run(serve, env=given, capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode != 0
    assert b"password" in done.stderr
    assert _found(done.stdout + done.stderr) == []


COMMANDS = [
    ("address", "list"),
    ("user", "list", "--json"),
    ("audit", "--format", "json"),
    ("transaction", "show", "0" * 32),
    ("check",),
    ("migrate",),
    ("maintain",),
    ("role", "grant", "--service", "keeper", "--sql"),
    ("archive", "write"),
]


@pytest.mark.parametrize("wrong", [False, True], ids=["let in", "refused"])
def test_commands_tell_no_secret(command: Command, store: Store, wrong: bool, tmp_path: Path) -> None:
    given = {"COORDINATOR_DATABASE_URL": store.wrong if wrong else store.url}
    with connected(store.url) as connection:
        users.add(connection, "alice", verifiers.new(OF_A_USER))
    password = tmp_path / "password"
    password.write_text(OF_A_USER + "\n")
    for arguments in (*COMMANDS, ("user", "set", "alice", "--password-file", str(password))):
        done = command(*arguments, **given)
        assert _found((done.stdout + done.stderr).encode()) == [], arguments


@pytest.mark.parametrize(
    "text",
    [
        'database_url = "{url}"\nnone = 1',
        'database_url = "{url}',
        by_night("database_url = {url}"),
        by_night("{url}"),
        by_night('database_url = ["{url}"]'),
        by_night('[database_url]\nx = "{url}"'),
        by_night('listen = "{url}"'),
        by_night('listen = ["{url}"]'),
        'workers = "{url}"',
        by_night('database = "{url}"'),
        by_night('[metrics]\nlisten = "{url}"'),
        by_night('[log]\nlevel = "{url}"'),
        by_night('"{url}" = 1'),
    ],
)
def test_a_settings_file_that_is_wrong_is_not_repeated(command: Command, text: str, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(text.replace("{url}", f"postgresql://keeper:{quote(OF_THE_STORE, safe='')}@127.0.0.1:1/store"))
    done = command("address", "list", "--config", str(config))
    assert done.returncode == 2
    assert _found((done.stdout + done.stderr).encode()) == []


@pytest.mark.parametrize("wrong", [False, by_night(True)], ids=["let in", "refused"])
def test_a_reconciliation_tells_no_secret(store: Store, wrong: bool, tmp_path: Path) -> None:
    """Neither on its outputs, nor in the report, nor to those who list processes, nor in files that it leaves."""
    given = environment(COORDINATOR_DATABASE_URL=store.wrong if wrong else store.url, TMPDIR=str(tmp_path))
    arguments = [
        sys.executable,
        "-m",
        "coordinator",
        "reconcile",
        "--out",
        str(tmp_path / "out"),
        "--master",
        "local[1]",
    ]
    ran = subprocess.Popen(arguments, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    seen: dict[int, bytes] = {}
    while ran.poll() is None:
        seen.update(_lines_of_commands(ran.pid))
        time.sleep(0.02)
    assert ran.stdout is not None
    told = ran.stdout.read()
    ran.stdout.close()
    assert ran.returncode == (2 if wrong else 0), told
    assert ran.pid in seen
    assert [_found(each) for each in seen.values()] == [[]] * len(seen)
    assert _found(told) == []
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or _found(path.read_bytes()) == [], path


def _lines_of_commands(pid: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    try:
        for each in _family(pid):
            found[each] = Path(f"/proc/{each}/cmdline").read_bytes()
    except OSError:  # it has ended meanwhile
        pass
    return found
