"""An instance is dead when its heartbeat stands still while the database answers, by the observer's own clock."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import Connection, text

from store.errors import StoreUnavailable
from store.processes import machine, start_ticks
from store.recovery import DeadInstances
from tests.fix_proxy import Proxy
from tests.fix_store import Rows


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def watch(database_url: str, clock: _Clock) -> Iterator[DeadInstances]:
    with closing(DeadInstances(database_url, clock=clock)) as made:
        yield made


def _looks(watch: DeadInstances, clock: _Clock, seconds: int) -> list[int]:
    """Look each second; the instances that were given up."""
    found: list[int] = []
    for _ in range(seconds):
        found += watch.check().given_up.instances
        clock.now += 1
    return found


def _assert_counts_from_here(watch: DeadInstances, clock: _Clock, silent: int) -> None:
    """What was seen before counts for nothing: an instance is given up as late as if the watch began now."""
    assert _looks(watch, clock, 10) == []
    assert _looks(watch, clock, 1) == [silent]


def _beat(database: Connection, instance: int, value: str) -> None:
    database.execute(
        text(f"update coordinator.heartbeat set beaten_at = {value} where instance_id = :i"),
        {"i": instance},
    )
    database.commit()


def test_one_whose_heartbeat_stands_still_is_dead(
    database: Connection, rows: Rows, watch: DeadInstances, clock: _Clock
) -> None:
    silent, beating = rows.instance(), rows.instance()
    found = []
    for _ in range(10):
        found += _looks(watch, clock, 1)
        _beat(database, beating, "clock_timestamp()")
    assert found == []
    assert _looks(watch, clock, 1) == [silent]


def test_one_that_has_not_beaten_yet_is_given_longer(
    database: Connection, rows: Rows, watch: DeadInstances, clock: _Clock
) -> None:
    """A machine that looks for a database host that answers is not given up while it starts."""
    starting = rows.instance(has_beaten=False)
    assert _looks(watch, clock, 30) == []
    assert _looks(watch, clock, 1) == [starting]


def test_the_age_of_a_heartbeat_says_nothing(
    database: Connection, rows: Rows, watch: DeadInstances, clock: _Clock
) -> None:
    """A clock may have been set forward by an hour, or back."""
    late, early = rows.instance(), rows.instance()
    for number in range(20):
        _beat(database, late, f"now() - interval '1 hour' + interval '{number} s'")
        _beat(database, early, f"now() + interval '1 hour' - interval '{number} s'")
        assert _looks(watch, clock, 1) == []


@pytest.mark.rule("F2")
def test_an_outage_of_the_database_makes_no_instance_dead(
    database: Connection, database_url: str, rows: Rows, watch: DeadInstances, clock: _Clock
) -> None:
    proxy = Proxy(database_url)
    watch._url = proxy.url
    silent = rows.instance()
    assert _looks(watch, clock, 9) == []
    proxy.cut()
    proxy.close()
    with pytest.raises(StoreUnavailable):
        watch.check()
    clock.now += 1
    # It is back.
    watch._url = database_url
    _assert_counts_from_here(watch, clock, silent)


@pytest.mark.rule("F2")
def test_a_database_that_stands_still_holds_no_look_up(
    database: Connection, database_url: str, rows: Rows, watch: DeadInstances, clock: _Clock
) -> None:
    """Its machine takes what it is sent, and no answer comes: the next look is on a connection of its own."""
    proxy = Proxy(database_url)
    watch._url = proxy.url
    silent = rows.instance()
    assert _looks(watch, clock, 2) == []
    proxy.freeze()
    with pytest.raises(StoreUnavailable):
        watch.check()
    _assert_counts_from_here(watch, clock, silent)
    watch.close()
    proxy.close()


def test_an_observer_that_did_not_look_knows_nothing(
    database: Connection, rows: Rows, watch: DeadInstances, clock: _Clock
) -> None:
    """It was stopped itself, or its question hung: the database may have been away meanwhile."""
    silent = rows.instance()
    assert _looks(watch, clock, 5) == []
    clock.now += 15
    _assert_counts_from_here(watch, clock, silent)


def test_a_process_that_is_there_though_its_instance_has_ended_is_named(
    database: Connection, rows: Rows, watch: DeadInstances, clock: _Clock
) -> None:
    with subprocess.Popen(["sleep", "600"]) as stuck, subprocess.Popen(["sleep", "600"]) as twice:
        process = (stuck.pid, start_ticks(stuck.pid))
        ended = rows.instance(host=machine(), pid=stuck.pid, process_start=process[1])
        first = rows.instance(host=machine(), pid=twice.pid, process_start=start_ticks(twice.pid))
        # The answer to its first registration was lost.
        rows.instance(host=machine(), pid=twice.pid, process_start=start_ticks(twice.pid))
        assert watch.check().ended == ()
        for each in (ended, first):
            database.execute(text("update coordinator.instance set ended_at = now() where id = :i"), {"i": each})
        database.commit()
        clock.now += 1
        # It may be ending by itself.
        assert watch.check().ended == ()
        clock.now += 1
        assert watch.check().ended == (process,)
        stuck.kill()
        twice.kill()
    clock.now += 1
    assert watch.check().ended == ()


def test_looks_share_a_connection(database: Connection, rows: Rows, watch: DeadInstances, clock: _Clock) -> None:
    """A new one each second costs more than all else that an idle service does. None is left behind a look open in a
    transaction, and one that the database has ended is replaced by the next look."""
    of_looks = text("select pid, state from pg_stat_activity where application_name = 'coordinator watch'")

    def kept() -> tuple[int, str]:
        """Once that in which instances are given up has ended."""
        for _ in range(500):
            found = [(row.pid, row.state) for row in database.execute(of_looks)]
            database.rollback()
            if len(found) == 1:
                break
            time.sleep(0.01)
        (one,) = found
        return one

    silent = rows.instance()
    assert _looks(watch, clock, 1) == []
    first, state = kept()
    assert state == "idle"
    assert _looks(watch, clock, 8) == []
    assert kept() == (first, "idle")
    database.execute(text("select pg_terminate_backend(:pid, 5000)"), {"pid": first})
    database.commit()
    with pytest.raises(StoreUnavailable):
        watch.check()
    _assert_counts_from_here(watch, clock, silent)
    assert kept()[0] != first
