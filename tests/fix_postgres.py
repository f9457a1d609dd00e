"""PostgreSQL for the tests: one server a session, a migrated template, and a clone of it for each test.

``COORDINATOR_TEST_DATABASE_URL`` names another server (a role that may create databases); else the embedded one runs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from sqlalchemy import Connection

from store import migrations, partitions
from store.database import connected, engine
from store.embedded.server import EmbeddedServer
from store.ids import moment_of

_numbers = itertools.count(1)


def _other(url: str, database: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


def _administer(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def signal_server(pid: int, number: signal.Signals) -> None:
    """Send a signal to all processes of the server ``pid``; ignores those that end meanwhile."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    started = set(children.read_text().split())
    os.kill(pid, number)  # first, so that a stopped server starts no other process
    with contextlib.suppress(FileNotFoundError):
        started.update(children.read_text().split())
    for child in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), number)


@pytest.fixture(scope="session")
def open_folder() -> Iterator[Path]:
    """A folder with a short path that every user may enter; started by root, the server runs as another user."""
    folder = Path(tempfile.mkdtemp(prefix="coordinator-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def server_url(open_folder: Path) -> Iterator[str]:
    """A server for tests that create databases themselves; others use :func:`database_url`."""
    given = os.environ.get("COORDINATOR_TEST_DATABASE_URL")
    if given:
        yield given
        return
    server = EmbeddedServer(open_folder / "session")
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def _template(server_url: str) -> Iterator[str]:
    name = f"coordinator_template_{os.getpid()}"
    _administer(server_url, f"create database {name}")
    migrations.upgrade(_other(server_url, name))
    with connected(_other(server_url, name)) as connection:
        partitions.make_ahead(connection)
        partitions.make_days(connection, [moment_of(1).date()])  # for tests that count their halves from 1
    yield name
    _administer(server_url, f"drop database {name} with (force)")


@pytest.fixture
def empty_database_url(server_url: str) -> Iterator[str]:
    """An empty database."""
    name = f"coordinator_empty_{os.getpid()}_{next(_numbers)}"
    _administer(server_url, f"create database {name}")
    yield _other(server_url, name)
    _administer(server_url, f"drop database {name} with (force)")


@pytest.fixture
def own_server(open_folder: Path) -> Iterator[tuple[EmbeddedServer, str]]:
    """A migrated server for one test, which may stop it or change its settings; and its URL."""
    server = EmbeddedServer(open_folder / f"own-{next(_numbers)}")
    try:
        url = server.start()
        migrations.upgrade(url)
        yield server, url
    finally:
        server.stop()


def log_in(connection: psycopg.Connection[Any], user: str, method: str) -> None:
    """Have an embedded server ask ``user`` by ``method`` (of pg_hba.conf), until its next start."""
    row = connection.execute("show hba_file").fetchone()
    assert row is not None
    rules = Path(row[0])
    rules.write_text(f"local all {user} {method}\n{rules.read_text('utf-8')}", "utf-8")
    connection.execute("select pg_reload_conf()")


@contextlib.contextmanager
def clone(server_url: str, template: str) -> Iterator[str]:
    """A database with what the template has, and no longer than it is wanted."""
    name = f"coordinator_test_{os.getpid()}_{next(_numbers)}"
    _administer(server_url, f"create database {name} template {template}")
    yield _other(server_url, name)
    _administer(server_url, f"drop database {name} with (force)")


@pytest.fixture
def database_url(server_url: str, _template: str) -> Iterator[str]:
    """A migrated store for one test."""
    with clone(server_url, _template) as url:
        yield url


@pytest.fixture(scope="module")
def module_database_url(server_url: str, _template: str) -> Iterator[str]:
    """A migrated store for all tests of a module, which use addresses of their own."""
    with clone(server_url, _template) as url:
        yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Connection]:
    """A synchronous connection to :func:`database_url`."""
    with engine(database_url, application_name="test").connect() as connection:
        yield connection
