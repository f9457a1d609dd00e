"""What was checked often enough is set aside in one SQL transaction (``coordinator.exhaust``; rule H10)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg
import pytest

from coordinator import check_back
from store.asking import Queries
from store.codec.encoding import encode_map, encode_string, encode_symbol
from store.commit.terms import BEFORE, INFINITY
from store.errors import StoreError
from store.ids import HalfIds
from store.questions import checks
from store.questions.checks import LATE_SECONDS, Exhausted, Late
from tests.fix_check_back import GROUP, QUEUE, counts, due, rows_of
from tests.fix_store import Rows
from tests.fix_store_driver import ME, Asking, Truth
from tests.wire.messages import Message

#: an address, and its groups
ASIDE = (
    "insert into coordinator.address (id, name, kind) overriding system value values (2, 'aside', '{}'); "
    "insert into coordinator.consumer_group (id, address_id, name) overriding system value "
    "values (2, 2, ''), (3, 2, 'b')"
)
#: what copies of a queue's messages say
TOLD = {QUEUE: encode_map([encode_symbol("x-opt-original-address") + encode_string("queue")])}
#: one for all: two that begin in the same millisecond give the same
_copy_ids = HalfIds(ME)


def exhaust(asking: Asking, txn_id: UUID, count: int = 5, told: dict[int, bytes] = TOLD) -> bool:
    asking.ask(checks.exhaust, txn_id.bytes, [_copy_ids.next() for _ in range(count)], 2, told, ME)
    asking.loop.run_until(lambda: asking.answers)
    answer = asking.answers.pop()
    assert isinstance(answer, bool), answer
    return answer


def found_from(asking: Asking, low: int) -> Late:
    asking.ask(checks.find_exhausted, 5, low)
    asking.loop.run_until(lambda: asking.answers)
    answer = asking.answers.pop()
    assert isinstance(answer, Late), answer
    return answer


@pytest.mark.rule("H10")
@pytest.mark.parametrize("kind", ["normal", "fifo"])
def test_what_was_checked_often_enough_is_set_aside_once(asking: Asking, truth: Truth, rows: Rows, kind: str) -> None:
    """In order, for each group; one that has a check left, or an interval to wait, is not."""
    truth.run(ASIDE.format(kind))
    txn_id = due(rows, halves=3, checks=15)
    others = [due(rows, checks=14), due(rows, checks=15, seconds=60)]
    assert found_from(asking, BEFORE).found == [Exhausted(txn_id.bytes, GROUP, 15, {QUEUE: 3}, {QUEUE: "queue"})]
    assert [exhaust(asking, each) for each in (txn_id, txn_id, *others)] == [True, False, False, False]
    found = truth.rows(
        "select group_id, id = half_id, annotations, lease, available_at <= now(), message_group is not null "
        "from coordinator.entry order by group_id, id"
    )
    assert found == [(group, True, None, 0, True, kind == "fifo") for group in (2, 3) for _ in range(3)]
    halves = truth.rows(f"select id from coordinator.half where txn_id = '{txn_id}' order by id")
    copies = truth.rows("select txn_id, message from coordinator.half where address_id = 2 order by id")
    # the message cannot be read, and is the body
    assert [(txn_id, Message(octets).body) for txn_id, octets in copies] == [(None, b"x")] * 3
    told = [{"x-opt-original-address": "queue", "x-opt-original-id": number} for (number,) in halves]
    assert [Message(octets).annotations for _, octets in copies] == told
    assert truth.rows("select id, decision, reason, posted, instance_id from coordinator.op") == [
        (txn_id, "rollback", "check-exhausted", 3, ME)
    ]


@pytest.mark.rule("H10", "H13")
def test_nothing_is_set_aside_that_is_not_known_whole(
    asking: Asking, truth: Truth, rows: Rows, database_url: str
) -> None:
    """A post under way, more halves than ids, one at another address, and no address to copy to."""
    txn_id = due(rows, halves=3, checks=15)
    assert not exhaust(asking, txn_id)
    truth.run(ASIDE.format("normal"))
    assert not exhaust(asking, txn_id, count=2)
    assert not exhaust(asking, txn_id, told={2: b"told"})
    with psycopg.connect(database_url) as posting:
        posting.execute("select from coordinator.txn where id = %s for key share", [txn_id])
        assert not exhaust(asking, txn_id)
    assert truth.entries() == []
    assert truth.ops() == set()
    assert exhaust(asking, txn_id)


@pytest.mark.rule("H5", "H10")
def test_what_was_decided_is_not_set_aside(asking: Asking, truth: Truth, rows: Rows) -> None:
    """An op that came before the first half stands, and its row goes."""
    truth.run(ASIDE.format("normal"))
    txn_id = due(rows, checks=15)
    rows.decision("commit", txn_id=txn_id)
    assert not exhaust(asking, txn_id)
    assert truth.entries() == []
    assert rows_of(rows.connection) == []


@pytest.mark.rule("H11")
def test_what_cannot_be_set_aside_lets_others_go_first(asking: Asking, truth: Truth, rows: Rows) -> None:
    first, second = due(rows, checks=15, seconds=-60), due(rows, checks=15, seconds=-50)
    checks.postpone(asking.queries, first.bytes)
    assert [UUID(bytes=each.txn_id) for each in found_from(asking, BEFORE).found] == [second]
    assert counts(rows.connection) == {first: 15, second: 15}


@pytest.mark.rule("H10", "H12")
def test_a_look_begins_where_the_last_has_left_none(
    asking: Asking, truth: Truth, rows: Rows, database_url: str
) -> None:
    """What is being decided is left, and looked for again; what comes a little late is seen."""
    txn_id = due(rows, checks=15, seconds=-7200)
    with psycopg.connect(database_url) as deciding:
        deciding.execute("select from coordinator.txn where id = %s for update", [txn_id])
        answer = found_from(asking, BEFORE)
        assert answer.found == []
    answer = found_from(asking, answer.low)
    assert [UUID(bytes=each.txn_id) for each in answer.found] == [txn_id]
    truth.run("delete from coordinator.txn")
    answer = found_from(asking, answer.low)
    late, too_late = due(rows, checks=15, seconds=-LATE_SECONDS / 3), due(rows, checks=15, seconds=-3600)
    assert [UUID(bytes=each.txn_id) for each in found_from(asking, answer.low).found] == [late]
    assert [UUID(bytes=each.txn_id) for each in found_from(asking, BEFORE).found] == [too_late, late]


@pytest.mark.rule("H10", "H12")
@pytest.mark.parametrize(("whole_seconds", "wholes"), [(600.0, 1), (0.0, 3)], ids=["in time", "now and then all"])
def test_an_instance_looks_at_all_of_the_past_at_first_and_seldom_again(
    asking: Asking, truth: Truth, monkeypatch: pytest.MonkeyPatch, whole_seconds: float, wholes: int
) -> None:
    monkeypatch.setattr(check_back, "_SCAN_SECONDS", 0.0)
    monkeypatch.setattr(check_back, "_WHOLE_SECONDS", whole_seconds)
    lows: list[int] = []
    find = checks.find_exhausted

    def noting(asked: Queries, most: int, low: int, found: Callable[[Late | StoreError], None]) -> None:
        lows.append(low)
        find(asked, most, low, found)

    monkeypatch.setattr(checks, "find_exhausted", noting)
    instance: Any = SimpleNamespace(loop=asking.loop, queries=asking.queries, disk_low=False)
    directory: Any = None
    check_back.Exhaustion(instance, directory).search()
    asking.loop.run_until(lambda: len(lows) >= 3)
    assert lows[:3].count(BEFORE) == wholes
    assert lows[0] == BEFORE


@pytest.mark.rule("H7", "H10")
def test_one_whose_checks_were_resumed_meanwhile_is_not_put_off(asking: Asking, truth: Truth, rows: Rows) -> None:
    txn_id = due(rows, checks=0, seconds=-60)
    checks.postpone(asking.queries, txn_id.bytes)
    asking.ask(checks.take, {GROUP: checks.Wanted(1, BEFORE, INFINITY)}, ME)
    asking.loop.run_until(lambda: asking.answers)
    assert [UUID(bytes=each.txn_id) for each in asking.answers.pop().due] == [txn_id]
