"""What a transaction does with what it is told of its decision by another, while retirements are on their way (H20)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.checkable import CheckTerms
from coordinator.group.entries import Entry
from coordinator.group.policies import Policies
from coordinator.in_store import InStore, RowState, make_checkable
from coordinator.outcomes import ACCEPTED, Kind, Outcome
from coordinator.transaction import Transaction
from coordinator.transitions import SENT
from store.commit.batch import Batch
from store.decisions import Decision, Undecided
from store.errors import StoreUnavailable

COMMIT = Decision("commit", "by the books")


class Host:
    """What a transaction needs of its instance: units, questions and timers are kept."""

    def __init__(self) -> None:
        self.units: list[Any] = []
        self.questions: list[Callable[[object], None]] = []
        self.timers: list[Callable[[], None]] = []
        self.left: list[Entry] = []
        self.enqueue = self.settlements = SimpleNamespace()
        self.decisions = SimpleNamespace(ask=lambda _, found: self.questions.append(found))
        self.instance = SimpleNamespace(
            commit=SimpleNamespace(add=lambda unit, octets=0: self.units.append(unit)),
            loop=SimpleNamespace(call_later=lambda seconds, call: self.timers.append(call)),
            memory=SimpleNamespace(transactions=0, most=1 << 30),
        )

    def began(self, txn: object) -> None:
        pass

    def refuse_largest(self) -> None:
        pass


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def in_store(host: Host) -> InStore:
    txn = Transaction(host, bytes(16), None, SimpleNamespace(number=1), 60.0)  # type: ignore[arg-type]
    return make_checkable(txn, "shop", CheckTerms(0, 1, 1))


@pytest.fixture
def entry(host: Host) -> Entry:
    queue: Any = SimpleNamespace(
        group_id=1,
        policies=Policies(max_attempts=16, on_expiry="drop", fifo=False, dead_letters=False),
        done_with=host.left.append,
        refused=SimpleNamespace(remember=lambda _: None),
        in_store=lambda *_: None,
    )
    made = Entry(queue, 5, 5, b"x", 0, 0, b"")
    made.state = SENT
    return made


@pytest.mark.rule("H20", "H13")
def test_what_the_store_says_of_retirements_comes_before_their_decision(
    host: Host, in_store: InStore, entry: Entry
) -> None:
    """Their batch may be in doubt while the notice comes: taken for not held, they would never be let go of."""
    in_store.retire(entry, ACCEPTED, True)
    [unit] = host.units
    in_store.query_decision()
    assert host.questions == []
    unit.durable()
    [found] = host.questions
    found(COMMIT)
    assert host.left == [entry]
    assert in_store.held == {}


@pytest.mark.rule("H20", "H13")
def test_a_retirement_that_is_added_while_it_asks(host: Host, in_store: InStore, entry: Entry) -> None:
    in_store.retire(entry, ACCEPTED, True)
    host.units[0].durable()
    in_store.query_decision()
    in_store.retire(entry, Outcome(Kind.RELEASED), True)
    host.questions[0](COMMIT)
    assert host.left == []
    host.units[1].durable()
    host.questions[1](COMMIT)
    assert host.left == [entry]


@pytest.mark.rule("H20", "T27")
def test_where_the_store_cannot_say_what_another_decided_it_asks_again(
    host: Host, in_store: InStore, entry: Entry
) -> None:
    in_store.retire(entry, ACCEPTED, True)
    host.units[0].durable()
    in_store.query_decision()
    host.questions[0](StoreUnavailable("no answer"))
    [again] = host.timers
    again()
    host.questions[1](Undecided("shop"))
    assert (len(host.questions), len(host.timers), host.left) == (2, 1, [])


@pytest.mark.rule("H20")
def test_annotations_count_as_octets_of_the_batch(host: Host, in_store: InStore, entry: Entry) -> None:
    """So that thousands of retirements whose messages have large ones are not one statement."""
    entry.annotations = bytes(1000)
    in_store.retire(entry, Outcome(Kind.RELEASED), True)
    in_store.row = RowState.UNDECIDED
    batch = Batch()
    host.units[0].write(batch)
    assert batch.octets == 1000
