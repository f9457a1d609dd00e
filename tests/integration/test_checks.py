"""Which transactions are checked, by which checker (``store/questions/checks.py``, ``coordinator/check_back.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection, update

from coordinator.check_back import Checks
from coordinator.group.entries import POSTGRES_EPOCH
from store.commit.terms import BEFORE, INFINITY
from store.questions import checks
from store.questions.checks import LATE_SECONDS, PREFERRED_SECONDS, Due, Taken, Wanted
from store.tables import txn
from tests.fix_check_back import GROUP, Checking, Link, counts, due, rows_of
from tests.fix_proxy import Proxy
from tests.fix_store import Rows
from tests.fix_store_driver import ME, Asking, Truth

OTHER = 9


def next_of(connection: Connection, txn_id: UUID) -> datetime:
    found: list[datetime] = [row.next_check_at for row in rows_of(connection) if row.id == txn_id]
    return found[0]


def taken(asking: Asking, rooms: dict[str, int], lows: dict[str, int] | None = None) -> Taken:
    wanted = {group: Wanted(most, (lows or {}).get(group, BEFORE), INFINITY) for group, most in rooms.items()}
    asking.ask(checks.take, wanted, ME)
    asking.loop.run_until(lambda: asking.answers)
    answer = asking.answers.pop()
    assert isinstance(answer, Taken), answer
    return answer


def ids(answer: Taken) -> list[UUID]:
    return [UUID(bytes=each.txn_id) for each in answer.due]


@pytest.mark.rule("H7", "H9")
def test_those_that_are_due_oldest_first_as_many_as_there_is_room_for(
    asking: Asking, truth: Truth, database: Connection, rows: Rows
) -> None:
    last, first, second = due(rows, seconds=-1), due(rows, seconds=-30, halves=3), due(rows, seconds=-20)
    later, other_group = due(rows, seconds=3600), due(rows, producer_group="other")
    asked_enough = due(rows, checks=15)
    answer = taken(asking, {GROUP: 2, "none": 5})
    assert ids(answer) == [first, second]
    found = answer.due[0]
    assert (found.group, found.checks, found.halves, found.half_id) == (GROUP, 1, 3, rows.pending(first)[0])
    assert (found.address, found.connection) == ("queue", 0)
    assert found.declared_ms / 1000 == pytest.approx(rows.now().timestamp(), abs=60)
    expected = {first: 0, second: 0, last: 0, later: 0, other_group: 0, asked_enough: 15}
    assert counts(database) == expected
    assert next_of(database, first) == pytest.approx(rows.now() + timedelta(seconds=30), abs=timedelta(seconds=20))
    assert ids(taken(asking, {GROUP: 2})) == [last]
    assert ids(taken(asking, {GROUP: 2, "other": 1})) == [other_group]


@pytest.mark.rule("H7")
def test_when_the_next_is_due(asking: Asking, truth: Truth, rows: Rows) -> None:
    assert taken(asking, {GROUP: 5})[:2] == ([], None)
    due(rows, seconds=3600, producer_group="other")
    due(rows, seconds=3600)
    assert taken(asking, {GROUP: 5}).next_ms == pytest.approx(3_600_000, abs=60_000)
    due(rows)  # its second check comes first
    assert taken(asking, {GROUP: 5}).next_ms == pytest.approx(30_000, abs=1)


@pytest.mark.rule("H12")
def test_a_look_begins_where_the_last_has_left_none(
    asking: Asking, truth: Truth, rows: Rows, database_url: str
) -> None:
    """What is being decided is left, and so is what there was no room for; what comes a little late is seen."""
    first, second = due(rows, seconds=-7200), due(rows, seconds=-3600)
    with psycopg.connect(database_url) as deciding:
        deciding.execute("select from coordinator.txn where id = %s for update", [first])
        answer = taken(asking, {GROUP: 1, "none": 1})
        assert ids(answer) == [second]
        assert since(rows, answer.lows["none"]) == pytest.approx(LATE_SECONDS, abs=LATE_SECONDS / 2)
        assert since(rows, answer.lows[GROUP]) == pytest.approx(7200, abs=60)
        assert ids(taken(asking, {GROUP: 1}, answer.lows)) == []
    answer = taken(asking, {GROUP: 1}, answer.lows)
    assert ids(answer) == [first]
    assert since(rows, answer.lows[GROUP]) == pytest.approx(LATE_SECONDS, abs=LATE_SECONDS / 2)
    late, too_late = due(rows, seconds=-LATE_SECONDS / 3), due(rows, seconds=-3600)
    assert ids(taken(asking, {GROUP: 5}, answer.lows)) == [late]
    assert ids(taken(asking, {GROUP: 5})) == [too_late]


@pytest.mark.rule("H12")
def test_a_look_goes_no_further_than_is_asked(asking: Asking, truth: Truth, rows: Rows) -> None:
    first, second, third = (due(rows, seconds=-hours * 3600) for hours in (5, 3, 1))
    now = micros(rows)

    def between(low: float, high: float) -> list[UUID]:
        wanted = Wanted(5, *(now - int(each * 3_600_000_000) for each in (low, high)))
        asking.ask(checks.take, {GROUP: wanted}, ME)
        asking.loop.run_until(lambda: asking.answers)
        answer = asking.answers.pop()
        assert isinstance(answer, Taken), answer
        return ids(answer)

    assert between(4, 2) == [second]
    assert between(4, 2) == []
    assert between(2, 0) == [third]
    assert between(9, 4) == [first]


def micros(rows: Rows) -> int:
    return int((rows.now().timestamp() - POSTGRES_EPOCH) * 1e6)


def since(rows: Rows, low: int) -> float:
    """Seconds since the time that an answer names."""
    return rows.now().timestamp() - POSTGRES_EPOCH - low / 1e6


@pytest.mark.rule("H8")
def test_an_open_connection_at_another_instance_is_preferred(asking: Asking, truth: Truth, rows: Rows) -> None:
    elsewhere = due(rows, seconds=-0.1, instance=OTHER, connection=4)
    left_there = due(rows, seconds=-0.1, instance=OTHER, connection=-4)
    here, left_here = due(rows, seconds=-0.1, connection=5), due(rows, seconds=-0.1, connection=-5)
    gone = due(rows, seconds=-0.1, instance=OTHER)
    asked_before = due(rows, seconds=-0.1, connection=5, checks=1)
    asked_there = due(rows, seconds=-0.1, instance=OTHER, connection=-4, checks=1)
    found = {UUID(bytes=each.txn_id): each.connection for each in taken(asking, {GROUP: 9}).due}
    assert found == {here: 5, left_here: 5, gone: 0, asked_before: 0, asked_there: 0}
    late = rows.now() - timedelta(seconds=PREFERRED_SECONDS)
    rows.connection.execute(update(txn).where(txn.c.id.in_([elsewhere, left_there])).values(next_check_at=late))
    rows.connection.commit()
    found = {UUID(bytes=each.txn_id): each.connection for each in taken(asking, {GROUP: 9}).due}
    assert found == {elsewhere: 0, left_there: 0}


@pytest.mark.rule("H11")
def test_one_that_is_being_decided_holds_up_no_other(
    asking: Asking, truth: Truth, rows: Rows, database_url: str
) -> None:
    """One that is being posted to is checked."""
    first, posted_to, third = (due(rows, seconds=-60 + number) for number in range(3))
    with psycopg.connect(database_url) as deciding, psycopg.connect(database_url) as posting:
        deciding.execute("select from coordinator.txn where id = %s for update", [first])
        posting.execute("select from coordinator.txn where id = %s for key share", [posted_to])
        assert ids(taken(asking, {GROUP: 1})) == [posted_to]
        assert ids(taken(asking, {GROUP: 5})) == [third]
        deciding.rollback()
    assert ids(taken(asking, {GROUP: 5})) == [first]


@pytest.mark.rule("H9")
def test_what_is_given_back_does_not_count(asking: Asking, truth: Truth, database: Connection, rows: Rows) -> None:
    """Another may have it at once; given back again once it was sent to that one, nothing changes."""
    txn_id = due(rows, checks=3)
    (found,) = taken(asking, {GROUP: 1}).due
    assert taken(asking, {GROUP: 1}).due == []
    checks.give_back(asking.queries, found)
    (again,) = taken(asking, {GROUP: 1}).due
    assert again.checks == found.checks == 4
    assert counted(asking, again) == []
    checks.give_back(asking.queries, found)
    assert taken(asking, {GROUP: 1}).due == []
    assert counts(database) == {txn_id: 4}


def counted(asking: Asking, *sent: Due) -> list[tuple[bytes, int]]:
    """Tell the store what was sent; what it could not count."""
    asking.ask(checks.count, [checks.Sent(each.txn_id, each.checks) for each in sent])
    asking.loop.run_until(lambda: asking.answers)
    left: list[tuple[bytes, int]] = asking.answers.pop()
    return left


@pytest.mark.rule("H9", "H11")
def test_what_was_sent_counts_once_and_waits_for_no_decision(
    asking: Asking, truth: Truth, database: Connection, rows: Rows, database_url: str
) -> None:
    deciding_now, free, decided = (due(rows, checks=number) for number in (0, 4, 7))
    found = {UUID(bytes=each.txn_id): each for each in taken(asking, {GROUP: 3}).due}
    truth.run(f"delete from coordinator.txn where id = '{decided}'")
    with psycopg.connect(database_url) as deciding:
        deciding.execute("select from coordinator.txn where id = %s for update", [deciding_now])
        assert counted(asking, *found.values()) == [(deciding_now.bytes, 1)]
        checks.give_back(asking.queries, found[deciding_now])
        assert counted(asking, *found.values()) == [(deciding_now.bytes, 1)]
    assert counts(database) == {deciding_now: 0, free: 5}
    assert counted(asking, found[deciding_now]) == []
    assert counts(database) == {deciding_now: 1, free: 5}


@pytest.mark.rule("H9", "H10")
@pytest.mark.parametrize(("taken_before", "left"), [(5, 25), (40, 30)])
def test_the_answer_to_a_check_that_was_sent_late_has_an_interval(
    asking: Asking, truth: Truth, database: Connection, rows: Rows, taken_before: int, left: int
) -> None:
    """The store or the instance was slow: else the last would be over before a checker could answer it."""
    txn_id = due(rows, checks=14)
    (found,) = taken(asking, {GROUP: 1}).due
    at = rows.now() + timedelta(seconds=30 - taken_before)
    database.execute(update(txn).values(next_check_at=at))
    database.commit()
    assert counted(asking, found) == []
    assert counts(database) == {txn_id: 15}
    assert next_of(database, txn_id) == pytest.approx(rows.now() + timedelta(seconds=left), abs=timedelta(seconds=4))


@pytest.mark.rule("H9")
def test_what_cannot_be_counted_is_counted_later(
    checking: Checking, rows: Rows, database: Connection, database_url: str
) -> None:
    """It is being decided as it is sent; those that are sent meanwhile count at once."""
    link = Link()
    first = due(rows)
    with psycopg.connect(database_url) as deciding:
        link.sending = lambda: deciding.execute("select from coordinator.txn where id = %s for update", [first])
        checking.attach(link)
        checking.loop.run_until(lambda: link.sent)
        link.sending = lambda: None
        second = due(rows)
        checking.loop.run_until(lambda: counts(database) == {first: 0, second: 1})
    checking.loop.run_until(lambda: counts(database) == {first: 1, second: 1})


@pytest.mark.rule("H9")
def test_a_store_that_cannot_count_is_told_again(
    checking: Checking, rows: Rows, database: Connection, truth: Truth
) -> None:
    link = Link()
    link.sending = lambda: truth.run("alter table coordinator.txn rename to away")
    txn_id = due(rows)
    checking.attach(link)
    checking.loop.run_until(lambda: link.sent)
    checking.loop.run_until(checking.asks)
    truth.run("alter table coordinator.away rename to txn")
    checking.loop.run_until(lambda: counts(database) == {txn_id: 1})


@pytest.mark.rule("H8")
def test_the_connection_that_declared_it_is_preferred(checking: Checking, rows: Rows) -> None:
    for _ in range(3):
        due(rows, connection=5)
    others, own = [Link(4), Link(6)], Link(5, credit=2)
    checking.attach(others[0], own, others[1])
    checking.loop.run_until(lambda: sum(len(link.sent) for link in (own, *others)) == 3)
    assert len(own.sent) == 2  # then any


@pytest.mark.rule("H8")
def test_checkers_take_turns(checking: Checking, rows: Rows) -> None:
    for _ in range(6):
        due(rows)
    links = [Link(number) for number in (1, 2, 3)]
    checking.attach(*links)
    checking.loop.run_until(lambda: sum(len(link.sent) for link in links) == 6)
    assert [len(link.sent) for link in links] == [2, 2, 2]


@pytest.mark.rule("H8")
def test_checkers_take_turns_also_where_checks_come_one_by_one(checking: Checking, rows: Rows) -> None:
    links = [Link(number) for number in (1, 2)]
    checking.attach(*links)
    sent: list[int] = []
    for _ in range(4):
        due(rows, seconds=0)
        sent.append(0)
        checking.loop.run_until(lambda: sum(len(link.sent) for link in links) == len(sent))
    assert [len(link.sent) for link in links] == [2, 2]


@contextmanager
def taken_unanswered(checking: Checking, rows: Rows, database: Connection, proxy: Proxy) -> Iterator[tuple[Link, UUID]]:
    """A checker, and a transaction that was taken for it; in the block, the store's answer is held back."""
    link = Link()
    checking.attach(link)
    checking.loop.run_until(lambda: link.looks and checking.asks())
    with proxy.held("replies"):
        txn_id = due(rows)
        checking.loop.run_until(lambda: next_of(database, txn_id) > rows.now())
        yield link, txn_id


@pytest.mark.rule("H9")
def test_a_checker_that_is_lost_while_one_is_taken_for_it_costs_none(
    checking: Checking, rows: Rows, database: Connection, proxy: Proxy
) -> None:
    with taken_unanswered(checking, rows, database, proxy) as (link, txn_id):
        checking.checks.lost(link)
    checking.loop.run_until(lambda: next_of(database, txn_id) <= rows.now())
    assert counts(database) == {txn_id: 0}
    assert link.sent == []


@pytest.mark.rule("H9")
def test_a_check_whose_taking_is_not_known_counts_when_it_is_sent(
    checking: Checking, rows: Rows, database: Connection, proxy: Proxy
) -> None:
    """The connection is lost with the store's answer: it was taken, not sent, and is sent an interval later."""
    with taken_unanswered(checking, rows, database, proxy) as (link, txn_id):
        proxy.cut()
    looks = link.looks
    checking.loop.run_until(lambda: link.looks > looks)
    assert (link.sent, counts(database)) == ([], {txn_id: 0})
    database.execute(update(txn).values(next_check_at=rows.now()))
    database.commit()
    checking.loop.run_until(lambda: counts(database) == {txn_id: 1})
    assert [each.checks for each in link.sent] == [1]


class Leaving(Link):
    """Leaves while the half for it is read."""

    def __init__(self, checks: Checks) -> None:
        super().__init__()
        self._checks = checks

    def none_due(self) -> None:
        if self.coming:
            self._checks.lost(self)
        super().none_due()


@pytest.mark.rule("H9")
@pytest.mark.parametrize("others", [[], [Link(2)]], ids=["alone", "with another"])
def test_a_checker_that_is_lost_while_the_half_is_read(
    checking: Checking, rows: Rows, database: Connection, others: list[Link]
) -> None:
    """Its check goes to another checker, or does not count."""
    link = Leaving(checking.checks)
    checking.attach(link)
    checking.loop.run_until(lambda: link.looks)
    txn_id = due(rows, seconds=0)
    checking.loop.run_until(lambda: link.coming)
    checking.attach(*others)
    checking.loop.run_until(lambda: not link.coming)
    assert not checking.checks.has(link.number, GROUP)
    checking.loop.run_until(lambda: [len(each.sent) for each in others] == [1] * len(others))
    checking.loop.run_until(lambda: counts(database) == {txn_id: len(others)})
    assert link.sent == []


@pytest.mark.rule("H7")
def test_a_store_that_cannot_answer_is_asked_again(checking: Checking, rows: Rows, truth: Truth) -> None:
    truth.run("alter table coordinator.txn rename to away")
    link = Link()
    checking.attach(link)
    checking.loop.run_until(checking.asks)
    checking.loop.run_for(0.1)
    truth.run("alter table coordinator.away rename to txn")
    due(rows)
    checking.loop.run_until(lambda: link.sent)


def test_no_group_without_room_is_asked_for(checking: Checking, rows: Rows, database: Connection) -> None:
    txn_id = due(rows)
    full, others = Link(credit=0), Link()
    others.group = "other"
    checking.attach(full, others)
    checking.loop.run_until(lambda: others.looks)
    assert counts(database) == {txn_id: 0}


def test_which_connection_has_a_checker(checking: Checking) -> None:
    links = [Link(1), Link(1), Link(2)]
    checking.attach(*links)
    assert [checking.checks.has(number, GROUP) for number in (1, 2, 3)] == [True, True, False]
    assert not checking.checks.has(1, "other")
    checking.checks.lost(links[0])
    assert checking.checks.has(1, GROUP)
    checking.checks.lost(links[1])
    assert not checking.checks.has(1, GROUP)
