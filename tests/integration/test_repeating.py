"""Questions that PostgreSQL refuses though the connection stays: which are asked again, and before which others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime

import psycopg
import pytest
from structlog.testing import capture_logs

from store import asking as asking_module
from store.errors import Contended, StoreError, StoreFault
from store.ids import id_at
from store.loop import Backoff
from store.questions import consumer_groups, entries, message_groups
from store.tables import SCHEMA
from tests.fix_proxy import Proxy
from tests.fix_store_driver import GROUP, ME, Asking, Truth
from tests.refusing import CANCELLED, refused

KEY = -5
WAITS = "datname = current_database() and wait_event_type = 'Lock'"
CLAIMS = f"select key, instance_id from {SCHEMA}.message_group order by key"
#: invalid parameter value: the same again would be refused again
FAULT = "22023"


def _claimed(truth: Truth, *keys: int) -> None:
    """Message groups with a message each, which this instance has claimed."""
    for key in keys:
        entry = id_at(datetime.now(UTC)) - key
        truth.run(f"insert into {SCHEMA}.half (id, address_id, message) values ({entry}, 1, 'm')")
        columns = "(group_id, id, half_id, message_group)"
        truth.run(f"insert into {SCHEMA}.entry {columns} values ({GROUP}, {entry}, {entry}, {key})")
        truth.run(f"insert into {SCHEMA}.message_group (group_id, key, instance_id) values ({GROUP}, {key}, {ME})")


def _refused(url: str, code: str = CANCELLED) -> AbstractContextManager[Callable[[], int]]:
    """Inside the block no claim of a message group can be given up."""
    return refused(url, f"delete on {SCHEMA}.message_group", code)


def _release(asking: Asking) -> None:
    message_groups.release(asking.queries, GROUP, [KEY], ME, notify=False)


def _forget(asking: Asking, forgotten: Callable[[StoreError | None], None] = lambda _: None) -> None:
    message_groups.forget(asking.queries, GROUP, [], ME, forgotten)


def _ask_other(asking: Asking) -> None:
    asking.ask(consumer_groups.subscription_of, "none", 0)
    asking.loop.run_until(asking.answered(1))


@pytest.mark.rule("P18")
@pytest.mark.parametrize("give_up", [_release, _forget])
@pytest.mark.parametrize("lost", [False, True], ids=["", "connection lost meanwhile"])
def test_what_is_claimed_anew_is_not_given_up(
    asking: Asking, truth: Truth, proxy: Proxy, database_url: str, give_up: Callable[[Asking], None], lost: bool
) -> None:
    """The claim waits for the question that is asked again, all others do not."""
    _claimed(truth, KEY)
    with _refused(database_url) as tries:
        give_up(asking)
        asking.ask(message_groups.claim, GROUP, [KEY], ME)
        asking.loop.run_until(lambda: tries() > 1)
        _ask_other(asking)
        assert asking.answers == [None]
        if lost:
            proxy.cut()
            asking.loop.run_until(lambda: asking.connections == 2)
    asking.loop.run_until(asking.answered(2))
    assert asking.answers == [None, [KEY]]
    asking.loop.run_for(0.3)
    assert truth.rows(CLAIMS) == [(KEY, ME)]
    assert not asking.queries.waiting


@pytest.mark.rule("D5")
def test_what_is_held_is_found_in_the_end(asking: Asking, truth: Truth, database_url: str) -> None:
    """What a load has leased whose answer was lost: it would stay leased for ever."""
    truth.fill(3)
    asking.lease()
    asking.loop.run_until(asking.answered(1))
    waiting = f"select pg_cancel_backend(pid) from pg_stat_activity where {WAITS}"
    with psycopg.connect(database_url) as blocker:
        blocker.execute(f"lock table {SCHEMA}.entry in access exclusive mode".encode())
        asking.ask(entries.leased, GROUP, ME)
        asking.loop.run_until(lambda: truth.rows(waiting))
    asking.loop.run_until(asking.answered(2))
    assert len(asking.answers[1]) == 3


@pytest.mark.rule("D5")
def test_what_is_read_anew_counts_as_read(asking: Asking, truth: Truth, database_url: str) -> None:
    """The mark of how far the holder has read is not taken away by a question that was asked before it read on."""
    truth.fill(2)
    asking.ask(entries.hold, GROUP, ME, None)
    asking.ask(entries.read, GROUP, 0, 1, 1 << 20, ME)
    asking.loop.run_until(asking.answered(2))
    marks = f"select read_through from {SCHEMA}.group_read where read_through > 0"
    assert truth.rows(marks) == [(asking.answers[1].rows[0][0],)]
    with refused(database_url, f"delete on {SCHEMA}.group_read") as tries:
        entries.unread(asking.queries, GROUP, ME)
        asking.ask(entries.read, GROUP, 0, 2, 1 << 20, ME)
        asking.loop.run_until(lambda: tries() > 1)
    asking.loop.run_until(asking.answered(3))
    asking.loop.run_for(0.3)
    assert truth.rows(marks) == [(asking.answers[2].rows[1][0],)]


def test_all_of_a_line_keep_their_order(asking: Asking, truth: Truth, database_url: str) -> None:
    _claimed(truth, KEY)
    with _refused(database_url) as tries:
        _release(asking)
        asking.ask(message_groups.claim, GROUP, [KEY], ME)
        _release(asking)
        asking.ask(message_groups.claim, GROUP, [KEY], ME)
        asking.loop.run_until(lambda: tries() > 1)
        assert asking.queries.waiting == 4
    asking.loop.run_until(asking.answered(2))
    assert asking.answers == [[KEY], [KEY]]


def test_pauses_grow_and_the_log_does_not(
    asking: Asking, truth: Truth, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking_module, "PAUSES", Backoff(first=0.01, longest=30.0))
    monkeypatch.setattr(asking_module, "LOG_AGAIN_SECONDS", 0.2)
    _claimed(truth, KEY)
    with capture_logs() as lines, _refused(database_url) as tries:
        _forget(asking)
        asking.loop.run_until(lambda: len(lines) == 2)
        assert tries() > 2
    assert {line["event"] for line in lines} == {"query refused"}
    assert lines[0]["times"] == 1
    assert lines[0]["again_in"] == 0.01
    assert lines[1]["times"] > 1
    assert lines[1]["again_in"] > 0.1
    asking.loop.run_until(lambda: not truth.rows(CLAIMS))


def test_what_can_never_pass_is_told_at_once(asking: Asking, truth: Truth, database_url: str) -> None:
    _claimed(truth, KEY)
    told: list[StoreError | None] = []
    with capture_logs() as lines, _refused(database_url, FAULT) as tries:
        _forget(asking, told.append)
        asking.loop.run_until(lambda: told)
        asking.loop.run_for(0.3)
        assert tries() == 1
    assert isinstance(told[0], StoreFault)
    assert [line["event"] for line in lines] == ["query refused"]


def test_no_more_wait_than_there_is_room_for(
    asking: Asking, truth: Truth, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking_module, "MOST_PAUSING", 0)
    _claimed(truth, KEY)
    told: list[StoreError | None] = []
    with _refused(database_url):
        _forget(asking, told.append)
        asking.loop.run_until(lambda: told)
    assert isinstance(told[0], Contended)
    assert not asking.queries.waiting
