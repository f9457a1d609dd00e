"""What a client says of a delivery while the discharge of its transaction is on its way to the store
(``coordinator/retirement.py``): the model of histories waits there.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.errors import Condition, Refusal
from coordinator.group.entries import Entry
from coordinator.outcomes import ACCEPTED, FAILED, LOST, RELEASED, RETURNED, UNTRANSFERRED, Kind, Outcome
from coordinator.retirement import Departure, Retirement
from coordinator.transitions import COMMITTING, ENLISTED, ROLLED_BACK, SENT, TxnState
from tests.tables import all_cases


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


def _retirement() -> tuple[Retirement, list[tuple[Outcome, bool]]]:
    """With the outcomes that it settles, and whether each comes back behind others."""
    outcomes: list[tuple[Outcome, bool]] = []

    def add(entry: Entry, outcome: Outcome, event: object = None, *, behind_others: bool = False) -> None:
        outcomes.append((outcome, behind_others))

    settlements: Any = SimpleNamespace(add=add)
    registry: Any = None
    return Retirement(registry, settlements), outcomes


_MODIFIED = Outcome(Kind.MODIFIED)


@pytest.mark.rule("D5", "P11")
@all_cases(
    ("departure", "default", "decided", "wanted"),
    [
        (Departure.LOST, None, False, [LOST, LOST]),
        (Departure.LOST, RELEASED, True, [LOST, LOST]),
        (Departure.LEFT, None, False, [LOST, RETURNED]),
        (Departure.LEFT, FAILED, False, [LOST, RETURNED]),
        (Departure.LEFT, None, True, [RETURNED, RETURNED]),
        (Departure.LEFT, RELEASED, False, [RELEASED, RELEASED]),
        (Departure.LEFT, _MODIFIED, False, [RELEASED, RELEASED]),
        (Departure.LEFT, ACCEPTED, False, [RETURNED, RETURNED]),
        (Departure.ENDED, None, False, [RETURNED, RETURNED]),
        (Departure.ENDED, FAILED, False, [RETURNED, RETURNED]),
        (Departure.ENDED, RELEASED, False, [RELEASED, RELEASED]),
    ],
)
@all_cases("how", ["has_decided", "transactional"])
def test_what_each_departure_makes_of_what_was_transferred(
    departure: Departure, default: Outcome | None, decided: bool, how: str, wanted: list[Outcome]
) -> None:
    """What was not transferred is as before, and comes back behind what has failed. Among three the last was not."""
    retirement, outcomes = _retirement()
    link, queue = Link(), cast(Any, SimpleNamespace(group_id=1))
    link.default_outcome, link.departure = default, departure
    setattr(link, how, decided)
    entries = [Entry(queue, number, number, b"x", 0, 0, b"") for number in range(3)]
    for entry in entries:
        entry.state = SENT
    retirement.link_ended(link, entries, unsent={entries[2]}, dropped=False)
    failed = LOST in wanted
    assert outcomes == [(each, failed) for each in (*wanted, UNTRANSFERRED)]


@pytest.mark.rule("D5", "P11")
def test_a_client_that_has_decided_one_and_releases_another_has_decided() -> None:
    retirement, link = _retirement()[0], Link()
    queue: Any = SimpleNamespace(group_id=1)
    for number, outcome in enumerate((RELEASED, ACCEPTED, RELEASED)):
        retirement.settle(link, Entry(queue, number, number, b"x", 0, 0, b""), outcome, True)
        assert link.has_decided is (number > 0)
