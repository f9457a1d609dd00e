"""An instance is dead when its heartbeat stands still while the database answers, by the observer's own clock."""

from __future__ import annotations

import subprocess

import pytest
from sqlalchemy import Connection, text

from store.errors import StoreUnavailable
from store.processes import machine, start_ticks
from store.watch import Watch
from tests.fix_proxy import Proxy
from tests.fix_store import Rows


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _looks(watch: Watch, clock: _Clock, seconds: int) -> list[int]:
    """Look each second; the instances that were given up."""
    found: list[int] = []
    for _ in range(seconds):
        found += watch.look().given_up.instances
        clock.now += 1
    return found


def _beat(database: Connection, instance: int, value: str) -> None:
    database.execute(
        text(f"update coordinator.heartbeat set beaten_at = {value} where instance_id = :i"),
        {"i": instance},
    )
    database.commit()


def test_one_whose_heartbeat_stands_still_is_dead(database: Connection, database_url: str, rows: Rows) -> None:
    clock = _Clock()
    watch = Watch(database_url, clock=clock)
    silent, beating = rows.instance(), rows.instance()
    found = []
    for _ in range(10):
        found += _looks(watch, clock, 1)
        _beat(database, beating, "clock_timestamp()")
    assert found == []
    assert _looks(watch, clock, 1) == [silent]


def test_the_age_of_a_heartbeat_says_nothing(database: Connection, database_url: str, rows: Rows) -> None:
    """A clock may have been set forward by an hour, or back."""
    clock = _Clock()
    watch = Watch(database_url, clock=clock)
    late, early = rows.instance(), rows.instance()
    for number in range(20):
        _beat(database, late, f"now() - interval '1 hour' + interval '{number} s'")
        _beat(database, early, f"now() + interval '1 hour' - interval '{number} s'")
        assert _looks(watch, clock, 1) == []


@pytest.mark.rule("F2")
def test_an_outage_of_the_database_makes_no_instance_dead(database: Connection, database_url: str, rows: Rows) -> None:
    clock = _Clock()
    proxy = Proxy(database_url)
    watch = Watch(proxy.url, clock=clock)
    silent = rows.instance()
    assert _looks(watch, clock, 9) == []
    proxy.cut()
    proxy.close()
    with pytest.raises(StoreUnavailable):
        watch.look()
    clock.now += 1
    # It is back: all counts from here.
    watch._url = database_url
    assert _looks(watch, clock, 10) == []
    assert _looks(watch, clock, 1) == [silent]


def test_an_observer_that_did_not_look_knows_nothing(database: Connection, database_url: str, rows: Rows) -> None:
    """It was stopped itself, or its question hung: the database may have been away meanwhile."""
    clock = _Clock()
    watch = Watch(database_url, clock=clock)
    silent = rows.instance()
    assert _looks(watch, clock, 5) == []
    clock.now += 15
    assert _looks(watch, clock, 10) == []
    assert _looks(watch, clock, 1) == [silent]


def test_a_process_that_is_there_though_its_instance_has_ended_is_named(
    database: Connection, database_url: str, rows: Rows
) -> None:
    clock = _Clock()
    watch = Watch(database_url, clock=clock)
    with subprocess.Popen(["sleep", "600"]) as stuck, subprocess.Popen(["sleep", "600"]) as twice:
        process = (stuck.pid, start_ticks(stuck.pid))
        ended = rows.instance(host=machine(), pid=stuck.pid, process_start=process[1])
        first = rows.instance(host=machine(), pid=twice.pid, process_start=start_ticks(twice.pid))
        # The answer to its first registration was lost.
        rows.instance(host=machine(), pid=twice.pid, process_start=start_ticks(twice.pid))
        assert watch.look().ended == ()
        for each in (ended, first):
            database.execute(text("update coordinator.instance set ended_at = now() where id = :i"), {"i": each})
        database.commit()
        clock.now += 1
        # It may be ending by itself.
        assert watch.look().ended == ()
        clock.now += 1
        assert watch.look().ended == (process,)
        stuck.kill()
        twice.kill()
    clock.now += 1
    assert watch.look().ended == ()
