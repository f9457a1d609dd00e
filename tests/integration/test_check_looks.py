"""When an instance looks for checks, and from which time on (``coordinator/checks.py``): polls come too late here."""

from __future__ import annotations

import pytest

from coordinator import checks
from tests.fix_check_back import Checking, Link, due
from tests.fix_proxy import Proxy
from tests.fix_store import Rows

OTHER = "other"


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_LOOK_SECONDS", 3600.0)


@pytest.mark.rule("H7")
@pytest.mark.usefixtures("no_polls")
def test_it_looks_again_at_once_where_as_many_were_due_as_are_taken(
    checking: Checking, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_AT_ONCE", 2)
    for _ in range(5):
        due(rows)
    link = Link()
    checking.attach(link)
    checking.loop.run_until(lambda: len(link.sent) == 5)


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


@pytest.mark.rule("H7", "H12")
def test_what_was_written_very_late_is_seen_by_a_whole_look(
    checking: Checking, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_WHOLE_SECONDS", 0.0)
    link = Link()
    checking.attach(link)
    checking.loop.run_until(lambda: link.looks)
    due(rows, seconds=-3600)
    checking.loop.run_until(lambda: link.sent)


@pytest.mark.rule("H7", "H12")
def test_where_a_look_begins_is_forgotten_with_the_last_checker_of_the_group(checking: Checking, rows: Rows) -> None:
    """Clients name groups: what is kept for each must not grow."""
    first, second = Link(), Link()
    checking.attach(first)
    checking.loop.run_until(lambda: first.looks)
    checking.checks.lost(first)
    due(rows, seconds=-3600)
    checking.attach(second)
    checking.loop.run_until(lambda: second.sent)


@pytest.mark.rule("H7", "H12")
@pytest.mark.usefixtures("no_polls")
def test_a_look_for_a_group_that_is_lost_meanwhile_leaves_nothing(checking: Checking, rows: Rows, proxy: Proxy) -> None:
    first, second, other = Link(), Link(), Link()
    other.group = OTHER
    checking.loop.run_until(checking.asks)
    with proxy.held("replies"):
        checking.attach(first, other)
        checking.loop.run_until(lambda: not checking.asks())
        checking.checks.lost(first)
    checking.loop.run_until(lambda: other.looks)
    due(rows, seconds=-3600)
    checking.attach(second)
    checking.loop.run_until(lambda: second.sent)
