"""Deliveries that the test client retires in checkable transactions, and what the store has of them."""

from __future__ import annotations

import time
from typing import Any

from tests.fix_service import PATIENCE
from tests.fix_wire import Ask
from tests.wire.checkable import left
from tests.wire.frames import Accepted, State, TransactionalState
from tests.wire.links import Delivery, Receiver
from tests.wire.messages import data
from tests.wire.peer import Session


def waiting(session: Session, address: str, *bodies: bytes, message: Any = data) -> None:
    sender = session.sender(address)
    for body in bodies:
        assert sender.outcome(message(body)) == Accepted()


def held(ask: Ask, txn: bytes) -> list[tuple[Any, ...]]:
    """What it holds: decision, whether an instance has it in memory, lease."""
    return ask(
        "select r.decision, r.holder is not null, e.lease from coordinator.pending_retirement r "
        "join coordinator.entry e on e.group_id = r.group_id and e.id = r.entry_id "
        "where r.txn_id = encode(%s, 'hex')::uuid order by r.entry_id",
        txn,
    )


def retire(delivery: Delivery, txn: bytes, outcome: State | None = None) -> None:
    """And wait until the service says that it is held."""
    delivery.retire(txn, outcome, settled=False)
    answer = delivery.settlement()
    assert isinstance(answer.state, TransactionalState)
    assert (answer.settled or False, answer.state.txn_id) == (False, txn)
    assert type(answer.state.outcome) is type(outcome or Accepted())


def let_go(ask: Ask, txn: bytes) -> None:
    """Wait until no instance has anything of it in memory."""
    left(ask, txn)
    deadline = time.monotonic() + PATIENCE
    while any(here for _, here, _ in held(ask, txn)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ops(ask: Ask, txn: bytes) -> list[tuple[Any, ...]]:
    """Those of its deliveries: decision and how many."""
    return ask(
        "select decision, cardinality(half_ids) from coordinator.op where txn_id = encode(%s, 'hex')::uuid "
        "order by decision",
        txn,
    )


def soon(receiver: Receiver, body: bytes, count: int) -> None:
    """It comes, with this delivery-count."""
    found = receiver.take()
    assert (found.body, found.count) == (body, count)
