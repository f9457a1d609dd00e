"""When an instance looks for checks, and from which time on (``coordinator/check_back.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from coordinator import check_back
from store.asking import Queries, Query
from store.ids import SLOTS, HalfIds
from store.loop import TimeShare
from store.questions import checks as questions
from store.questions.checks import SMALL, Due, Wanted
from tests.fix_check_back import GROUP, Checking, Link, due
from tests.fix_proxy import Proxy
from tests.fix_store import Rows
from tests.fix_store_driver import Truth

OTHER = "other"


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_back, "_SCAN_SECONDS", 3600.0)


@pytest.mark.rule("H7")
@pytest.mark.usefixtures("no_polls")
def test_it_looks_again_at_once_where_as_many_were_due_as_are_taken(
    checking: Checking, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_back, "_AT_ONCE", 2)
    for _ in range(5):
        due(rows)
    link = Link()
    checking.attach(link)
    checking.loop.run_until(lambda: len(link.sent) == 5)


class Draining(Link):
    """Notes how many it had when it is told that there are no more."""

    def __init__(self, credit: int) -> None:
        super().__init__(credit=credit)
        self.told: list[int] = []

    def none_due(self) -> None:
        super().none_due()
        if not self.coming:
            self.told.append(len(self.sent))


@pytest.mark.rule("H8", "P5")
@pytest.mark.parametrize(("credit", "come"), [(10, 5), (2, 2)], ids=["room for all", "no more room"])
def test_a_drain_waits_for_all_that_are_due(
    checking: Checking, rows: Rows, monkeypatch: pytest.MonkeyPatch, credit: int, come: int
) -> None:
    """Also where more are due than are taken at once, and all of the past was looked at before."""
    monkeypatch.setattr(check_back, "_AT_ONCE", 2)
    first, second = Link(), Draining(credit)
    checking.attach(first)
    checking.loop.run_until(lambda: first.looks and checking.asks())
    checking.checks.lost(first)
    for _ in range(5):
        due(rows, seconds=-1)
    checking.attach(second)
    checking.loop.run_until(lambda: second.told)
    assert second.told == [come]


@pytest.mark.rule("H12")
@pytest.mark.usefixtures("no_polls")
def test_a_crowd_that_is_due_lets_those_go_first_who_commit(
    checking: Checking, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each look it pauses, as long as something is committed."""
    monkeypatch.setattr(check_back, "_AT_ONCE", 2)
    monkeypatch.setattr(check_back, "_LOOKS", TimeShare(parts=1_000_000))
    for _ in range(5):
        due(rows)
    link = Committing(checking)
    checking.attach(link)
    checking.loop.run_until(lambda: len(link.sent) == 2)
    checking.loop.run_for(0.5)
    checking.checks.ready(link)
    checking.loop.run_for(0.5)
    assert len(link.sent) == 2


class Committing(Link):
    """While a check is on its way to it, a client commits."""

    def __init__(self, checking: Checking) -> None:
        super().__init__()
        self._commit = checking.commit

    @property
    def room(self) -> int:
        self._commit.rows += bool(self.coming)
        return super().room


class Broken(Link):
    def send(self, due: Due, octets: bytes) -> None:
        raise ValueError(due)


@pytest.mark.rule("H11")
@pytest.mark.usefixtures("no_polls")
def test_a_defect_of_one_checker_keeps_no_check_from_the_others(checking: Checking, rows: Rows) -> None:
    for _ in range(6):
        due(rows)
    broken, link = Broken(), Link()
    checking.loop.contained = []
    checking.attach(broken, link)
    checking.loop.run_until(lambda: len(link.sent) == 3 and len(checking.loop.contained or ()) == 3)
    assert checking.loop.contained == [broken] * 3
    assert (broken.coming, link.coming) == (0, 0)


class Noting(Link):
    """Notes what each check is a copy of."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[UUID, bytes] = {}

    def send(self, due: Due, octets: bytes) -> None:
        super().send(due, octets)
        self.copies[UUID(bytes=due.txn_id)] = octets


@pytest.mark.rule("H8", "H11")
def test_first_halves_of_any_size_and_day_are_read_and_one_that_is_lost_stops_no_check(
    checking: Checking, rows: Rows, truth: Truth
) -> None:
    small, large, old, lost = (due(rows, halves=0) for _ in range(4))
    ids = HalfIds(SLOTS - 1)
    yesterday = ids.next() - (24 * 3600 * 1000 << 22)
    for txn_id, half_id, message in (
        (small, ids.next(), f"repeat('s', {SMALL})"),
        (large, ids.next(), f"repeat('l', {SMALL + 1})"),
        (old, yesterday, "'old'"),
        (lost, ids.next(), None),
    ):
        truth.run(f"insert into coordinator.pending (txn_id, half_id, address_id) values ('{txn_id}', {half_id}, 1)")
        half = f"select {half_id}, '{txn_id}'::uuid, 1, ({message})::bytea where {message is not None}"
        truth.run(f"insert into coordinator.half (id, txn_id, address_id, message) {half}".replace("(None)", "null"))
    link = Noting()
    checking.attach(link)
    checking.loop.run_until(lambda: len(link.copies) == 4)
    assert link.copies[small].endswith(b"s" * SMALL)
    assert link.copies[large].endswith(b"l" * (SMALL + 1))
    assert link.copies[old].endswith(b"old")


@pytest.mark.rule("H11")
@pytest.mark.usefixtures("no_polls")
def test_first_halves_that_cannot_be_read_together_are_read_one_by_one(
    checking: Checking, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = "select 1 / cardinality($2::int8[]) * 0 / 0 from (select $1::text) whose"
    monkeypatch.setattr(questions, "FIRST_HALVES", Query(b"fails", fails, lambda found: found))
    txns = {due(rows) for _ in range(3)}
    link = Noting()
    checking.attach(link)
    checking.loop.run_until(lambda: link.copies.keys() == txns)
    assert all(copy.endswith(b"x") for copy in link.copies.values())


@pytest.mark.rule("H7")
@pytest.mark.usefixtures("no_polls")
def test_it_looks_when_the_next_is_due(checking: Checking, rows: Rows) -> None:
    link = Link()
    due(rows, seconds=0.5)
    checking.attach(link)
    checking.loop.run_until(lambda: link.sent)


@pytest.mark.rule("H8")
@pytest.mark.usefixtures("no_polls")
def test_a_checker_that_comes_during_a_look_is_looked_for(checking: Checking, rows: Rows, proxy: Proxy) -> None:
    due(rows, producer_group=OTHER)
    first, second = Link(), Link()
    second.group = OTHER
    checking.loop.run_until(checking.asks)
    with proxy.held("replies"):
        checking.attach(first)
        checking.loop.run_until(lambda: not checking.asks())
        checking.attach(second)
    checking.loop.run_until(lambda: second.sent)


@pytest.mark.rule("H11")
def test_of_very_many_checkers_some_are_looked_for_at_a_time(
    checking: Checking, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When they come, and again and again; the last of them has what is due."""
    monkeypatch.setattr(check_back, "_CHECKERS_AT_ONCE", 10)
    asked: list[set[str]] = []
    take = questions.take

    def noting(queries: Queries, wanted: Mapping[str, Wanted], *others: Any) -> None:
        asked.append(set(wanted))
        take(queries, wanted, *others)

    monkeypatch.setattr(questions, "take", noting)
    links = [Link(number) for number in range(25)]
    for number, link in enumerate(links):
        link.group = f"{GROUP}-{number}"
    checking.attach(*links)
    for _ in range(2):
        asked.clear()
        checking.loop.run_until(lambda: len(set().union(*asked)) == len(links))
        assert max(len(each) for each in asked) == 10
    due(rows, seconds=0, producer_group=links[-1].group)
    checking.loop.run_until(lambda: links[-1].sent)


@pytest.mark.rule("H7", "H12")
def test_what_was_written_very_late_is_seen_by_a_whole_look(
    checking: Checking, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link()
    checking.attach(link)
    checking.loop.run_until(lambda: link.looks)
    due(rows, seconds=-3600)
    monkeypatch.setattr(checking.checks, "_all_again", 0.0)  # it is time for one
    checking.loop.run_until(lambda: link.sent)


@pytest.mark.rule("H7", "H12")
def test_where_a_look_begins_is_forgotten_where_groups_without_a_checker_are_many(
    checking: Checking, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients name groups: what is kept for them must not grow."""
    monkeypatch.setattr(check_back, "_MOST_MARKS", 0)
    first, second, other = Link(), Link(), Link()
    other.group = OTHER
    checking.attach(first)
    checking.loop.run_until(lambda: first.looks)
    checking.checks.lost(first)
    checking.attach(other)
    checking.loop.run_until(lambda: other.looks)
    due(rows, seconds=-3600)
    checking.attach(second)
    checking.loop.run_until(lambda: second.sent)


@pytest.mark.rule("H7", "H12")
@pytest.mark.usefixtures("no_polls")
def test_a_checker_that_is_lost_while_it_is_looked_for(checking: Checking, rows: Rows, proxy: Proxy) -> None:
    """The next of its group gets what is due."""
    first, second, other = Link(), Link(), Link()
    other.group = OTHER
    checking.loop.run_until(checking.asks)
    with proxy.held("replies"):
        checking.attach(first, other)
        checking.loop.run_until(lambda: not checking.asks())
        checking.checks.lost(first)
    checking.loop.run_until(lambda: other.looks)
    due(rows, seconds=-30)
    checking.attach(second)
    checking.loop.run_until(lambda: second.sent)
