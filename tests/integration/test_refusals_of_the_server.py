"""Why the server takes no connection, or no statement, as the log says it."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
from structlog.testing import capture_logs

from store.embedded.server import EmbeddedServer
from store.tables import SCHEMA
from tests.fix_postgres import log_in
from tests.fix_store_driver import Asking, Post, Store, Truth, running
from tests.refusing import refused


@pytest.fixture
def owner(own_server: tuple[EmbeddedServer, str]) -> Iterator[Truth]:
    truth = Truth(own_server[1])
    yield truth
    truth.close()


@pytest.fixture
def url(own_server: tuple[EmbeddedServer, str], owner: Truth) -> str:
    """For a role that is no superuser, and may read and write the store."""
    given = own_server[1]
    with psycopg.connect(given, autocommit=True) as connection:
        log_in(connection, "guest", "trust")
    owner.run("create role guest login")
    owner.run(f"grant usage on schema {SCHEMA} to guest; grant all on all tables in schema {SCHEMA} to guest")
    owner.run(f"grant all on all sequences in schema {SCHEMA} to guest")
    return given.replace(f"//{urlsplit(given).username}@", "//guest@")


def _why(url: str) -> str:
    """What the log says of the attempts to connect."""
    asking = Asking(url)
    with capture_logs() as lines:
        asking.queries.start()
        asking.loop.run_until(lambda: lines)
    asking.queries.close()
    asking.loop.close()
    assert {line["event"] for line in lines} == {"database away"}
    return str(lines[0]["why"])


def test_a_role_that_may_not_log_in_any_more(url: str, owner: Truth) -> None:
    owner.run("alter role guest nologin")
    assert _why(url) == "the database refuses the log-in: the user may not log in (SQLSTATE 28000)"


def test_a_rule_that_rejects_the_log_in(url: str, own_server: tuple[EmbeddedServer, str]) -> None:
    with psycopg.connect(own_server[1], autocommit=True) as connection:
        log_in(connection, "guest", "reject")
    assert _why(url) == "the database refuses the log-in: a line of its pg_hba.conf rejects it (SQLSTATE 28000)"


def test_a_server_that_refuses_for_another_reason(url: str, owner: Truth) -> None:
    (database,) = owner.rows("select current_database()")
    owner.run(f"revoke connect on database {database[0]} from public")
    assert _why(url) == "the database refuses the connection; its log says why"


def test_a_table_that_the_role_may_not_write(url: str, owner: Truth) -> None:
    owner.run(f"revoke insert on {SCHEMA}.half from guest")
    with running(url) as store, capture_logs() as lines:
        store.add(Post(store))
        store.loop.run_until(lambda: lines)
    assert lines[0]["why"] == "the database's role lacks a permission for table half (SQLSTATE 42501)"


@pytest.mark.rule("H19")
def test_the_reason_of_one_statement_is_not_that_of_the_next(store: Store, truth: Truth, database_url: str) -> None:
    """A batch whose server process dies is not told as one for which the disk is full, as it was for another."""
    with refused(database_url, f"insert on {SCHEMA}.half", "53100"):
        store.add(Post(store))
        store.loop.run_until(lambda: store.commit.waits[1] == "53100")
    store.settle()
    with psycopg.connect(database_url) as blocker:
        blocker.execute(f"lock table {SCHEMA}.half".encode())
        store.add(Post(store))
        store.loop.run_until(lambda: truth.waiting_backends() == 1)
        truth.kill_backends()
        store.loop.run_until(lambda: not store.commit.connection.up)
        assert store.commit.waits[1] == ""
    store.settle()
