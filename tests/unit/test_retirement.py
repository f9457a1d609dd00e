"""What a client says of a delivery while the discharge of its transaction is on its way to the store
(``coordinator/retirement.py``): the model of histories waits there.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.errors import Condition, Refusal
from coordinator.group.entries import Entry
from coordinator.outcomes import ACCEPTED, LOST, RELEASED, Outcome
from coordinator.retirement import MOST_FORGIVEN, MOST_REMEMBERED, Departure, Retirement
from coordinator.transitions import COMMITTING, ENLISTED, ROLLED_BACK, SENT, TxnState


class Link:
    default_outcome: Outcome | None = RELEASED
    departure = Departure.LOST
    has_decided = transactional = False

    def __init__(self) -> None:
        self.refusals: list[Refusal] = []

    def refuse(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)


def retired(named: bytes, *, settled: bool = True, state: TxnState = COMMITTING) -> tuple[Entry, Link]:
    """A delivery enlisted in ``b"one"``, whose discharge is under way to the store; then an outcome under ``named``."""
    registry: Any = SimpleNamespace(
        for_work=lambda txn_id, owner: None, unknown=lambda txn_id, user: Refusal(Condition.TXN_UNKNOWN_ID, "")
    )
    queue: Any = None
    entry, link = Entry(queue, 1, 1, b"x", 0, 0, b""), Link()
    txn: Any = SimpleNamespace(id=b"one", state=state)
    entry.txn, entry.outcome, entry.state = txn, ACCEPTED, ENLISTED
    settlements: Any = None
    owner: Any = SimpleNamespace(user_id=None)
    Retirement(registry, settlements).retire(link, owner, entry, named, RELEASED, settled)
    return entry, link


@pytest.mark.rule("T28", "T34")
def test_a_settlement_while_the_discharge_is_under_way() -> None:
    """Part 4, section 4.4.4: it counts, and the outcome stays the one that goes to the store."""
    entry, link = retired(b"one")
    assert (entry.peer_settled, entry.outcome) == (True, ACCEPTED)
    assert not link.refusals


@pytest.mark.rule("T30")
def test_a_settlement_under_another_that_is_unknown() -> None:
    """Part 4, section 4.4: not applied; the link is told."""
    entry, link = retired(b"two")
    assert (entry.peer_settled, entry.outcome) == (False, ACCEPTED)
    assert [refusal.condition for refusal in link.refusals] == [Condition.TXN_UNKNOWN_ID]


@pytest.mark.rule("T30", "T34")
@pytest.mark.parametrize("state", [COMMITTING, ROLLED_BACK])
def test_an_outcome_that_settles_nothing_while_the_discharge_is_under_way(state: TxnState) -> None:
    """Part 4, section 4.4: a commit still tells what became of the delivery; after a rollback nothing else would."""
    entry, link = retired(b"one", settled=False, state=state)
    assert (entry.peer_settled, entry.outcome) == (False, ACCEPTED)
    assert [each.condition for each in link.refusals] == [Condition.TXN_UNKNOWN_ID] * (state is ROLLED_BACK)


def _left(retirement: Retirement, number: int, *, has_decided: bool) -> None:
    """A client leaves the delivery of the entry ``number`` undecided, in order."""
    link = Link()
    link.default_outcome, link.departure, link.has_decided = None, Departure.LEFT, has_decided
    queue: Any = SimpleNamespace(group_id=1)
    entry = Entry(queue, number, number, b"x", 0, 0, b"")
    entry.state = SENT
    retirement.link_ended(link, [entry], dropped=False)


def _retirement() -> tuple[Retirement, list[Outcome]]:
    """With the outcomes that it settles."""
    outcomes: list[Outcome] = []
    settlements: Any = SimpleNamespace(add=lambda entry, outcome, event=None: outcomes.append(outcome))
    registry: Any = None
    return Retirement(registry, settlements), outcomes


@pytest.mark.rule("D5", "D4")
def test_what_is_left_again_and_again_behind_others_counts_in_the_end() -> None:
    """As a message does that makes its consumers leave, each time behind one of a higher priority."""
    retirement, outcomes = _retirement()
    for _ in range(2 * MOST_FORGIVEN + 2):
        _left(retirement, 1, has_decided=True)
    assert outcomes == 2 * ([RELEASED] * MOST_FORGIVEN + [LOST])
    _left(retirement, 1, has_decided=False)
    assert outcomes[-1] == LOST


@pytest.mark.rule("D5", "S4")
def test_how_often_a_delivery_was_forgiven_is_known_of_the_latest() -> None:
    retirement, outcomes = _retirement()
    for number in range(2 * MOST_REMEMBERED):
        _left(retirement, number, has_decided=True)
    assert len(retirement._forgiven) == MOST_REMEMBERED
    assert set(outcomes) == {RELEASED}


@pytest.mark.rule("D5", "P11")
def test_a_client_that_has_decided_one_and_releases_another_has_decided() -> None:
    retirement, link = _retirement()[0], Link()
    queue: Any = SimpleNamespace(group_id=1)
    for number, outcome in enumerate((RELEASED, ACCEPTED, RELEASED)):
        retirement.settle(link, Entry(queue, number, number, b"x", 0, 0, b""), outcome, True)
        assert link.has_decided is (number > 0)
