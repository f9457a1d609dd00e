"""Commands do not wait for ever where another session, or a server that was stopped, holds them up; those whose work
takes as long as it takes say who does.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import text

from store import migrations
from store.database import BRIEF, COUNTING, Patience, connected
from store.embedded.server import EmbeddedServer
from store.errors import Contended, StoreUnavailable
from tests.fix_command import PATIENCE_SECONDS, Command
from tests.fix_night import by_night
from tests.fix_postgres import signal_server
from tests.fix_proxy import Proxy
from tests.fix_store_driver import Truth, let_commits_wait

_TABLES = "coordinator.op, coordinator.address, coordinator.half, coordinator.txn, coordinator.entry"
_COMMANDS = {
    "check": 2,
    f"transaction show {uuid4()}": 2,
    "message show 1": 2,
    "transaction list": 1,
    "group list": 1,
    "address list": 1,
    "address add orders": 1,
    f"transaction resolve {uuid4()} --rollback --reason late": 1,
}


def test_a_lock_of_another_session_ends_a_command(command: Command, database_url: str) -> None:
    with psycopg.connect(database_url) as other, ThreadPoolExecutor(len(_COMMANDS)) as threads:
        other.execute(f"lock table {_TABLES} in access exclusive mode".encode())
        asked = {each: threads.submit(command, *each.split(), "--database-url", database_url) for each in _COMMANDS}
        ended = {each: done.result() for each, done in asked.items()}
    for each, status in _COMMANDS.items():
        assert ended[each].returncode == status, (each, ended[each].stderr)
        (line,) = ended[each].stderr.splitlines()
        assert line.startswith("error: ")
        assert "another" in line, (each, line)


def test_a_lock_of_a_commit_that_waits_for_a_standby_is_told_as_that(
    command: Command, own_server: tuple[EmbeddedServer, str]
) -> None:
    _, url = own_server

    def commit() -> None:
        with psycopg.connect(url) as other:
            other.execute(b"lock table coordinator.address in access exclusive mode")
            other.execute(b"select pg_logical_emit_message(true, 'held', '')")

    with closing(Truth(url)) as truth, ThreadPoolExecutor(1) as beside:
        let_commits_wait(truth, url)
        held = beside.submit(commit)
        try:
            done = command("address", "add", "orders", "--database-url", url)
        finally:
            truth.run("alter system reset synchronous_standby_names")
            truth.run("select pg_reload_conf()")
        held.result(PATIENCE_SECONDS)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: another session holds a lock for too long (SQLSTATE 55P03); ")
    assert line.endswith("1 session of this database waits to commit until a synchronous standby answers")


@pytest.mark.parametrize(
    ("does", "lock", "said"),
    [
        ("migrate", f"select pg_advisory_lock({migrations._LOCK})", "(advisory)"),
        by_night("maintain", "lock table coordinator.inbox in share mode", "(coordinator.inbox)"),
    ],
)
def test_what_works_as_long_as_it_takes_says_who_holds_it_up(
    command: Command, database_url: str, does: str, lock: str, said: str
) -> None:
    waiting = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as beside, psycopg.connect(database_url, autocommit=True) as seen:
        with psycopg.connect(database_url, application_name="the neighbour") as other:
            other.execute(lock.encode())
            asked = beside.submit(command, does, "--database-url", database_url)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while seen.execute(waiting).fetchone() is None:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            time.sleep(7)
            assert not asked.done()
            pid = other.info.backend_pid
        done = asked.result()
    assert done.returncode == 0, done.stderr
    assert f"waiting for a lock {said}, held by process {pid} (the neighbour)" in done.stderr


def _sleep(url: str, patience: Patience, seconds: float = 600.0, begun: Callable[[], None] = lambda: None) -> None:
    with connected(url, patience=patience) as connection:
        begun()
        connection.execute(text("select pg_sleep(:seconds)"), {"seconds": seconds})


def test_a_connection_that_passes_nothing_on_is_given_up(proxy: Proxy) -> None:
    with pytest.raises(StoreUnavailable, match=r"has not answered for 0\.2 s"):
        _sleep(proxy.url, replace(BRIEF, answer_seconds=0.2), begun=proxy.freeze)


@pytest.mark.parametrize("others", ["", ",127.0.0.1"], ids=["alone", "beside one that is away"])
def test_a_server_that_was_stopped_is_given_up(own_server: tuple[EmbeddedServer, str], others: str) -> None:
    server, url = own_server
    url = re.sub(r"host=([^&]+)&port=(\d+)", rf"host=\1{others}&port=\2{others and ',1'}", url)
    assert server.pid is not None
    impatient = replace(COUNTING, answer_seconds=0.2, connect_seconds=2)
    try:
        with pytest.raises(StoreUnavailable, match="has not answered for"):
            _sleep(url, impatient, begun=lambda: signal_server(server.pid or 0, signal.SIGSTOP))
    finally:
        signal_server(server.pid, signal.SIGCONT)


def test_what_counts_may_take_longer_while_the_server_lives(database_url: str) -> None:
    _sleep(database_url, replace(COUNTING, answer_seconds=0.1), seconds=0.5)


def test_a_statement_that_takes_too_long_is_ended(database_url: str) -> None:
    with pytest.raises(Contended, match="took longer than it may"):
        _sleep(database_url, replace(BRIEF, statement_seconds=0.2))


def test_a_pause_between_statements_is_no_fault(database_url: str) -> None:
    """The archive is read meanwhile."""
    with connected(database_url, patience=replace(BRIEF, statement_seconds=0.2)) as connection:
        connection.execute(text("select 1"))
        threading.Event().wait(0.5)
        assert connection.scalar(text("select 1")) == 1
