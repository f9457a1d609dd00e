"""The heartbeat on a real PostgreSQL: nothing delays it, and no connection that fell silent is waited for for ever."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy import Connection as Database
from structlog.testing import capture_logs

from store import health, heartbeat
from store.clock import CLOCK
from store.commit import parts
from store.heartbeat import Heartbeat
from store.ids import HalfIds, moment_of
from store.libpq import Connection
from store.questions import consumer_groups, message_groups
from store.tables import SCHEMA
from tests.fix_loop import EpollLoop
from tests.fix_proxy import Proxy
from tests.fix_store_driver import ME, Asking, Post, Store, Truth, Yield, beat_of, running
from tests.refusing import refused


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(heartbeat, "_TURN_SECONDS", 0.05)
    monkeypatch.setattr(heartbeat, "OVERDUE_SECONDS", 0.2)
    monkeypatch.setattr(heartbeat, "LIMIT_SECONDS", 0.5)


@contextmanager
def beating(
    loop: EpollLoop, url: str, *watched: Connection, waits: Callable[[], tuple[float, str]] = lambda: (0.0, "")
) -> Iterator[list[tuple[bool, int]]]:
    beats: list[tuple[bool, int]] = []
    heart = Heartbeat(loop, url, ME, watched=watched, waits=waits, beaten=lambda *beat: beats.append(beat))
    heart.start()
    try:
        yield beats
    finally:
        heart.close()


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
def test_a_clock_that_is_not_the_databases_is_told(
    database_url: str, truth: Truth, database: Database, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """Once, and again when it is put right; ``coordinator check`` tells it while it lasts. Delays, expiries and retries
    go by the database's all the while.
    """
    loop, real, off = EpollLoop(), time.time, [0.0]
    monkeypatch.setattr("store.heartbeat.time.time", lambda: real() + off[0])
    told = []
    with capture_logs() as lines, beating(loop, database_url) as beats:
        for off[0] in (0.0, ahead, 0.0):
            before = len(beats)
            loop.run_until(lambda: len(beats) > before + 3)  # noqa: B023
            found = health.read(database)
            told.append((found.clock_ahead_instance, round((found.clock_ahead_seconds or 0.0) / 60)))
            # what an instance delays, expires and numbers goes by the database's
            made = moment_of(HalfIds(1).last).timestamp()
            assert [each == pytest.approx(real(), abs=5) for each in (CLOCK.now(), made)] == [True, True]
    assert told == [(None, 0), (ME, round(ahead / 60)), (None, 0)]
    assert [line["log_level"] for line in lines] == ["error", "info"]
    assert "clock of this machine" in lines[0]["event"]
    assert abs(lines[0]["seconds_ahead"] - ahead) < 5


def test_a_beat_that_takes_long_says_nothing_of_the_clock(
    database_url: str, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database has looked at its own at any moment of it."""
    monkeypatch.setattr(heartbeat, "LIMIT_SECONDS", 60.0)
    monkeypatch.setattr(heartbeat, "CLOCK_SECONDS", 0.5)
    loop = EpollLoop()
    with (
        capture_logs() as lines,
        beating(loop, database_url) as beats,
        psycopg.connect(database_url) as blocker,
    ):
        loop.run_until(lambda: beats)
        blocker.execute(f"lock table {SCHEMA}.heartbeat".encode())
        loop.run_for(1.5)
        blocker.rollback()
        seen = len(beats)
        loop.run_until(lambda: len(beats) > seen + 1)
    loop.close()
    assert lines == []


def _beat_at(truth: Truth) -> object:
    return truth.rows(f"select beaten_at from {SCHEMA}.heartbeat where instance_id = {ME}")


def test_a_beat_says_who_lives(database_url: str, truth: Truth) -> None:
    loop = EpollLoop()
    with beating(loop, database_url) as beats:
        loop.run_until(lambda: beats)
        assert beats[0] == (True, 0)
        truth.run(
            f"insert into {SCHEMA}.instance (slot, host, pid, process_start, version) values (1023, 'x', 1, 1, '1')"
        )
        loop.run_until(lambda: beats[-1] == (True, 1))
        truth.run(f"update {SCHEMA}.instance set ended_at = now() where id = {ME}")
        loop.run_until(lambda: beats[-1] == (False, 1))
    loop.close()


def test_after_a_host_that_does_not_answer_comes_the_next(proxy: Proxy, truth: Truth) -> None:
    """libpq would wait for the first one again and again."""
    loop = EpollLoop()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = proxy.url.replace("127.0.0.1:", f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:")
        with beating(loop, url) as beats:
            loop.run_until(lambda: beats)
    loop.close()


@pytest.mark.rule("S5")
def test_it_goes_on_while_a_question_waits(asking: Asking, truth: Truth, database_url: str) -> None:
    with (
        beating(asking.loop, database_url, asking.queries.connection) as beats,
        psycopg.connect(database_url) as blocker,
    ):
        blocker.execute(f"lock table {SCHEMA}.consumer_group".encode())
        asking.ask(consumer_groups.subscription_of, "none", 0)
        asking.loop.run_until(lambda: len(beats) > 3)
        before = _beat_at(truth)
        asking.loop.run_until(lambda: len(beats) > 6)
        assert _beat_at(truth) != before
        assert not asking.answers


@pytest.mark.rule("H13")
def test_a_batch_that_waits_holds_no_beat_up(store: Store, truth: Truth, database_url: str) -> None:
    """Not even one that leaves nothing but its number in the store."""
    store.add(post := Post(store))
    store.settle()
    with beating(store.loop, database_url) as beats, psycopg.connect(database_url) as blocker:
        blocker.execute(f"update {SCHEMA}.entry set attempts = 1".encode())
        store.add(unit := Yield(store, post.ids[0]))
        store.loop.run_until(lambda: truth.waiting_backends() == 1)
        before = _beat_at(truth)
        seen = len(beats)
        store.loop.run_until(lambda: len(beats) > seen + 3)
        assert _beat_at(truth) != before
        assert not unit.heard
        blocker.rollback()
    store.settle()
    assert unit.heard == [None]


def test_what_a_batch_asks_of_its_instance_costs_the_same_while_a_snapshot_is_held(
    store: Store, truth: Truth, database_url: str
) -> None:
    """Neither beats nor batches leave versions of the row that each batch looks for."""
    store.add(post := Post(store))
    store.settle()
    beat = beat_of(ME)
    asked = f"explain (analyze, buffers, timing off, format json) {parts._ALIVE.format(me=ME)}"

    def pages() -> int:
        plan = truth.rows(asked)[0][0][0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    pages()
    before = pages()
    with psycopg.connect(database_url) as holder:
        holder.execute(b"set transaction isolation level repeatable read")
        holder.execute(b"select 1")
        for _ in range(500):
            truth.run(beat)
        for _ in range(100):
            store.add(Yield(store, post.ids[0]))
            store.settle()
        assert pages() <= before


@pytest.mark.rule("H13")
def test_a_heartbeat_without_an_answer_is_sent_again_on_a_new_connection(truth: Truth, proxy: Proxy) -> None:
    loop = EpollLoop()
    with beating(loop, proxy.url) as beats:
        loop.run_until(lambda: beats)
        proxy.freeze()
        seen = len(beats)
        loop.run_until(lambda: len(beats) > seen + 3)
    loop.close()


@pytest.mark.rule("T8", "H4", "H13")
def test_a_batch_whose_connection_neither_answers_nor_closes_is_found_out(
    cuttable: Store, proxy: Proxy, truth: Truth, database_url: str
) -> None:
    store = cuttable
    store.add(Post(store))
    store.settle()
    with beating(store.loop, database_url, store.commit.connection):
        for _ in range(2):
            proxy.freeze()
            units = [Post(store) for _ in range(10)]
            store.add(*units)
            store.settle()
            assert store.heard[-10:] == units
    assert all(unit.heard == [None] for unit in store.heard)
    assert truth.halves() == sorted(id_ for unit in store.heard for id_ in unit.ids)


@pytest.mark.rule("H13")
def test_a_question_whose_connection_neither_answers_nor_closes_is_asked_again(
    asking: Asking, proxy: Proxy, database_url: str
) -> None:
    asking.ask(consumer_groups.subscription_of, "none", 0)
    asking.loop.run_until(asking.answered(1))
    with beating(asking.loop, database_url, asking.queries.connection):
        proxy.freeze()
        asking.ask(consumer_groups.subscription_of, "none", 0)
        asking.loop.run_until(asking.answered(2))
    assert asking.answers == [None, None]


@pytest.mark.usefixtures("pooled")
def test_a_slow_commit_keeps_its_connection(cuttable: Store, truth: Truth, database_url: str) -> None:
    """The server is at work on it: it waits for a lock, as it would for a slow disk."""
    store = cuttable
    store.add(Post(store))
    store.settle()
    backend = store.commit.connection.backend
    unit = Post(store)
    with (
        beating(store.loop, database_url, store.commit.connection) as beats,
        psycopg.connect(database_url) as blocker,
    ):
        blocker.execute(f"lock table {SCHEMA}.op in exclusive mode".encode())
        store.add(unit)
        store.loop.run_until(lambda: store.commit.connection.overdue(heartbeat.OVERDUE_SECONDS))
        seen = len(beats)
        store.loop.run_until(lambda: len(beats) > seen + 5)
        assert not unit.heard
        blocker.rollback()
        store.settle()
    assert unit.heard == [None]
    assert store.commit.connection.backend == backend


@pytest.mark.rule("H19")
def test_a_batch_that_loses_each_connection_is_told_as_one_that_waits(
    store: Store, database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No session is at it for long: on a full disk each attempt ends at once. The log says it once, not each second."""
    monkeypatch.setattr(health, "_LONG_SECONDS", 1)
    unit = Post(store)
    with (
        capture_logs() as lines,
        beating(store.loop, database_url, waits=lambda: store.commit.waits) as beats,
    ):
        with refused(database_url, f"insert on {SCHEMA}.half", "53100"):
            store.add(unit)
            store.loop.run_for(4)
            found = health.read(database)
            assert found.commit_waits_seconds is not None
            assert 3 < found.commit_waits_seconds < 6
            assert found.commit_refused_with == "the database's disk is full (SQLSTATE 53100)"
            (line,) = [each for each in health.wrong(found, fewest_free=0, least_bytes=0) if "batch" in each]
            assert line.endswith(f" s, and clients with it; {found.commit_refused_with}")
        store.settle()
        beats.clear()
        store.loop.run_until(lambda: len(beats) > 1)
        found = health.read(database)
        assert (found.commit_waits_seconds, found.commit_refused_with) == (None, None)
    assert unit.heard == [None]
    assert [line["event"] for line in lines] == ["database away", "database connected", "batch in doubt looked up"]


@pytest.mark.rule("H19")
def test_an_error_that_refuses_a_batch_no_more_is_not_told(store: Store, database_url: str) -> None:
    """The disk has room again, and another holds the batch up."""
    unit = Post(store)
    with psycopg.connect(database_url) as blocker:
        with refused(database_url, f"insert on {SCHEMA}.half", "53100"):
            store.add(unit)
            store.loop.run_until(lambda: store.commit.waits[1] == "53100")
            blocker.execute(f"lock table {SCHEMA}.entry in share mode".encode())
        store.loop.run_until(lambda: not store.commit.waits[1])
        store.loop.run_for(1.5)
        seconds, refused_with = store.commit.waits
        assert (seconds > 1.5, refused_with) == (True, "")
    store.settle()
    assert unit.heard == [None]


@pytest.mark.rule("H19")
def test_the_end_of_a_long_wait_is_told_at_once(
    database_url: str, truth: Truth, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with the next beat, until which ``coordinator check`` would say that the batch still waits. That of a short
    one is told with the next.
    """
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 3600.0)
    loop, waits = EpollLoop(), [4000.0]
    with beating(loop, database_url, waits=lambda: (waits[0], "")) as beats:
        loop.run_until(lambda: beats)
        assert health.read(database).commit_waits_seconds == 4000.0
        waits[0] = 4001.0
        loop.run_for(0.5)
        assert len(beats) == 1
        waits[0] = 1.0
        loop.run_until(lambda: len(beats) > 1)
        assert health.read(database).commit_waits_seconds is None
        waits[0] = 0.0
        loop.run_for(0.5)
        assert len(beats) == 2
    loop.close()


def test_a_batch_that_takes_long_to_transmit_keeps_its_connection(
    truth: Truth, proxy: Proxy, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waits for the rest of it: it is at work on nothing, and could never be sent whole otherwise."""
    monkeypatch.setattr(heartbeat, "OVERDUE_SECONDS", 1.0)
    proxy.slow(0.05)
    with running(proxy.url) as store:
        store.add(Post(store))
        store.settle()
        backend = store.commit.connection.backend
        unit = Post(store, size=6 << 20)
        with beating(store.loop, database_url, store.commit.connection):
            store.add(unit)
            store.settle()
        assert unit.heard == [None]
        assert store.commit.connection.backend == backend


def test_a_release_still_at_work_is_ended_before_it_is_asked_again(
    asking: Asking, proxy: Proxy, truth: Truth, database_url: str
) -> None:
    """Else it could give up a claim that was made after it: two consumers would have one message group."""
    group, key = 1, -5
    insert = f"insert into {SCHEMA}.message_group (group_id, key, instance_id) values (1, {key}, {ME})"
    truth.run(insert)
    message_groups.release(asking.queries, group, [-6], ME, notify=False)  # prepared from now on
    asking.loop.run_until(lambda: not asking.queries.waiting)
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
    with psycopg.connect(database_url) as blocker:
        blocker.execute(f"select from {SCHEMA}.message_group for update".encode())
        message_groups.release(asking.queries, group, [key], ME, notify=False)
        asking.loop.run_until(lambda: truth.rows(waiting) == [(1,)])
        (old,) = truth.rows("select pid from pg_stat_activity where wait_event_type = 'Lock'")
        proxy.cut_client_side()
        asking.loop.run_until(
            lambda: (
                truth.rows(waiting) == [(1,)]
                and truth.rows("select pid from pg_stat_activity where wait_event_type = 'Lock'") != [old]
            )
        )
    asking.loop.run_until(lambda: not asking.queries.waiting)
    assert truth.rows(f"select count(*) from {SCHEMA}.message_group") == [(0,)]
