"""Checkable transactions of the test client, and what the store has of them."""

from __future__ import annotations

import time
from typing import Any

from tests.fix_service import PATIENCE
from tests.fix_wire import Ask
from tests.wire.frames import Accepted, TransactionalState
from tests.wire.links import Control, Sender
from tests.wire.messages import APPLICATION_PROPERTIES, data, section
from tests.wire.peer import Session
from tests.wire.types import Symbol

GROUP = Symbol("coordinator:producer-group")


def in_group(session: Session, group: str = "shop", **properties: Any) -> Control:
    more = {Symbol(f"coordinator:{name.replace('_', '-')}"): value for name, value in properties.items()}
    return session.control(properties={GROUP: group, **more})


def named(body: bytes, **properties: Any) -> bytes:
    """A message with application properties."""
    given = {key.replace("_", "-"): each for key, each in properties.items()}
    return section(APPLICATION_PROPERTIES, given) + data(body)


def row(ask: Ask, txn: bytes) -> Any:
    """Producer group, connection, next check; None: there is none."""
    found = ask(
        "select producer_group, connection is not null, next_check_at, check_immunity_ms, check_interval_ms, "
        "most_checks from coordinator.txn where id = encode(%s, 'hex')::uuid",
        txn,
    )
    return found[0] if found else None


def pending(ask: Ask, txn: bytes) -> int:
    ((count,),) = ask("select count(*) from coordinator.pending_half where txn_id = encode(%s, 'hex')::uuid", txn)
    return int(count)


def left(ask: Ask, txn: bytes) -> Any:
    """Wait until the store knows that the client has left it; its row."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = row(ask, txn)
        if found is not None and found[2] is not None:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{txn.hex()} is not left")


def accept(sender: Sender, body: bytes, txn: bytes, **fields: Any) -> None:
    assert sender.outcome(data(body), txn=txn, **fields) == TransactionalState(txn_id=txn, outcome=Accepted())
