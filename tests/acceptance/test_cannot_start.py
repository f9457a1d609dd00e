"""Where the service cannot run it says why in one line, and ends with status 2; with 1 where that may pass, as
where the store is away.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from store.embedded.server import EmbeddedServer
from store.tables import SCHEMA
from tests import prepared
from tests.fix_command import environment
from tests.fix_night import by_night
from tests.fix_pooler import Pooler
from tests.fix_postgres import log_in
from tests.fix_service import PATIENCE


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="coordinator-start-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _refused(*arguments: str, status: int = 2) -> str:
    """The reason why ``coordinator serve`` did not start."""
    done = prepared.run(["serve", *arguments], environment(PYTHONWARNINGS="error"), timeout=PATIENCE)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stderr.splitlines()]
    errors = [line for line in lines if line["level"] == "error"]
    assert [line["event"] for line in errors] == ["cannot start"], done.stderr
    return str(errors[0]["reason"])


def test_the_port_is_in_use(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        reason = _refused("--listen", f"amqp://127.0.0.1:{port}", "--data-dir", str(folder / "data"), status=1)
    assert f"127.0.0.1:{port}" in reason
    assert "in use" in reason.lower()


def test_the_data_folder_cannot_be_made(folder: Path) -> None:
    (folder / "file").touch()
    reason = _refused("--listen", "amqp://127.0.0.1:0", "--data-dir", str(folder / "file" / "data"))
    assert str(folder / "file") in reason


def test_the_data_folder_is_of_another_version(folder: Path) -> None:
    cluster = folder / "data" / "postgresql"
    cluster.mkdir(parents=True)
    (cluster / "PG_VERSION").write_text("9.6\n")
    reason = _refused("--listen", "amqp://127.0.0.1:0", "--data-dir", str(folder / "data"))
    assert "9.6" in reason


@pytest.mark.parametrize("what", ["newer", "none"])
def test_the_schema_is_another(database_url: str, empty_database_url: str, what: str) -> None:
    url = empty_database_url
    if what == "newer":
        url = database_url
        with psycopg.connect(url) as connection:
            connection.execute(f"update {SCHEMA}.alembic_version set version_num = '9.9'".encode())
    reason = _refused("--listen", "amqp://127.0.0.1:0", "--database-url", url)
    assert ("which this version does not know" if what == "newer" else "coordinator migrate") in reason


def test_the_database_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"postgresql://me:secret-word@127.0.0.1:{port}/store"
    reason = _refused("--listen", "amqp://127.0.0.1:0", "--database-url", url, status=1)
    assert "refused" in reason.lower()
    assert "secret-word" not in reason


def _with(url: str, user: str, **parts: str) -> str:
    """``url`` for another user, with more of what libpq takes behind the question mark."""
    more = "".join(f"&{name}={value}" for name, value in parts.items())
    return url.replace(f"//{urlsplit(url).username}@", f"//{user}@") + more


def test_a_wrong_host_and_a_wrong_password_are_told_apart(own_server: tuple[EmbeddedServer, str]) -> None:
    _, url = own_server
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create role me login password 'right-word'")
        log_in(connection, "me", "scram-sha-256")
    texts = {
        "there is no host of that name": "postgresql://me:secret-word@nowhere.invalid/store",
        "the database refuses the password, or knows no such user": _with(url, "me", password="secret-word"),
        "the database asks for a password, and none is given": _with(url, "me", passfile="/nonexistent"),
        "there is no database of that name": url.replace("/coordinator?", "/other?"),
    }
    for text, given in texts.items():
        status = 1 if "host" in text else 2  # a name may be known later
        reason = _refused("--listen", "amqp://127.0.0.1:0", "--database-url", given, status=status)
        assert text in reason
        assert "secret-word" not in reason


def test_no_connection_is_left(own_server: tuple[EmbeddedServer, str]) -> None:
    _, url = own_server
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create role me login connection limit 0")
        log_in(connection, "me", "trust")
    reason = _refused("--listen", "amqp://127.0.0.1:0", "--database-url", _with(url, "me"), status=1)
    assert "CONNECTION LIMIT" in reason


@pytest.mark.parametrize(("in_turn", "idle"), [(False, 0), by_night(True, 2), by_night(True, 0), by_night(False, 2)])
def test_a_pooler_that_lends_sessions_for_one_transaction(pooler: Pooler, in_turn: bool, idle: int) -> None:
    """The workers would have no session of their own: no prepared statement, no notice, no setting that stays.
    ``idle``: so many were there before.
    """
    pooler.in_turn = in_turn
    with contextlib.ExitStack() as stack:
        for _ in range(idle):
            stack.enter_context(psycopg.connect(pooler.url))
    reason = _refused("--listen", "amqp://127.0.0.1:0", "--database-url", pooler.url, status=2)
    assert "has to be in session mode" in reason


def test_its_own_server_does_not_start(folder: Path) -> None:
    server = EmbeddedServer(folder / "data")
    server.start()
    server.stop()
    cluster = server.data_dir / "postgresql"
    (cluster / "global" / "pg_control").rename(cluster / "moved")
    reason = _refused("--listen", "amqp://127.0.0.1:0", "--data-dir", str(folder / "data"), status=1)
    assert "pg_control" in reason


def test_a_parameter_of_the_database_url_that_is_unknown_is_named() -> None:
    """A part of the URL that may belong to an unescaped password is not shown."""
    url = "postgresql://me:secret-word@localhost/store?aplication_name=x"
    reason = _refused("--listen", "amqp://127.0.0.1:0", "--database-url", url)
    assert "aplication_name" in reason
    assert "secret-word" not in reason
    url = "postgresql://me:hunt/er?two=x@localhost/store"
    reason = _refused("--listen", "amqp://127.0.0.1:0", "--database-url", url)
    assert "written as %25" in reason
    assert not any(part in reason for part in ("hunt", "er?", "two"))


@pytest.mark.parametrize(
    ("parameter", "status", "said"),
    [
        ("sslmode=secret-word", 2, "the database URL, or the environment, gives sslmode a value that it cannot have"),
        by_night("require_auth=secret-word", 2, "gives require_auth a value that it cannot have"),
        by_night("sslmode=prefer&sslrootcert=system", 2, "gives sslmode a value that it cannot have"),
        by_night(
            "target_session_attrs=standby", 1, "no server is there of the kind that target_session_attrs asks for"
        ),
        by_night("options=-csecret-word%3D1", 1, "the database refuses the connection; its log says why"),
    ],
)
def test_a_value_in_the_database_url_that_cannot_be_used(
    database_url: str, parameter: str, status: int, said: str
) -> None:
    url = f"{database_url}{'&' if '?' in database_url else '?'}{parameter}"
    reason = _refused("--listen", "amqp://127.0.0.1:0", "--database-url", url, status=status)
    assert said in reason
    assert "secret-word" not in reason


def test_hosts_and_ports_that_do_not_match() -> None:
    url = "postgresql:///store?host=a,b,c&port=1,2"
    reason = _refused("--listen", "amqp://127.0.0.1:0", "--database-url", url)
    assert reason == "the database URL needs one port for all its hosts, or one for each"
