"""Undecided transactions: list them, and decide one by hand. First decision wins (H5)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, delete, exists, func, insert, select

from store.errors import AlreadyDecided, CannotCommit, NotUndecided, boundary
from store.outcomes import Outcome, outcome_of
from store.tables import op, txn


@dataclass(frozen=True, kw_only=True)
class Undecided:
    """A transaction without an op, as its instance last wrote it."""

    txn_id: UUID
    #: container-id and remote address of the connection that declared it: text from the wire
    owner: str
    instance_id: int
    declared_at: datetime
    timeout_at: datetime
    age_seconds: float
    posted: int
    retired: int


def all_undecided(connection: Connection) -> list[Undecided]:
    """Undecided transactions, oldest first. Those younger than a moment are not in the store, and so not in the
    list.
    """
    decided = exists().where(op.c.id == txn.c.id)
    with boundary():
        rows = connection.execute(
            select(txn, func.extract("epoch", func.now() - txn.c.declared_at).label("age"))
            .where(~decided)
            .order_by(txn.c.declared_at, txn.c.id)
        ).all()
    return [
        Undecided(
            txn_id=row.id,
            owner=row.owner,
            instance_id=row.instance_id,
            declared_at=row.declared_at,
            timeout_at=row.timeout_at,
            age_seconds=float(row.age),
            posted=row.posted,
            retired=row.retired,
        )
        for row in rows
    ]


def roll_back(connection: Connection, txn_id: UUID, reason: str) -> Outcome:
    """Decide ``txn_id``: rollback, for ``reason``; commits. A commit that its client asks for later is refused by the
    op's primary key.

    :raises AlreadyDecided: saying how, when another decision was first; it stands.
    :raises NotUndecided: when no such transaction is known.
    """
    try:
        with boundary():
            posted = connection.scalar(select(txn.c.posted).where(txn.c.id == txn_id).with_for_update())
            if posted is None:
                connection.rollback()
                raise _not_undecided(connection, txn_id)
            connection.execute(
                insert(op).values(id=txn_id, decision="rollback", txn_id=txn_id, reason=reason, posted=posted)
            )
            connection.execute(delete(txn).where(txn.c.id == txn_id))
            connection.commit()
    except AlreadyDecided:
        connection.rollback()
        raise _not_undecided(connection, txn_id) from None
    outcome = outcome_of(connection, txn_id)
    assert outcome is not None
    return outcome


def commit(connection: Connection, txn_id: UUID) -> None:
    """A plain transaction cannot be committed here: raises why, or how it was decided.

    :raises CannotCommit: when it is undecided.
    :raises AlreadyDecided: when it is decided.
    :raises NotUndecided: when no such transaction is known.
    """
    outcome = outcome_of(connection, txn_id)
    if outcome is None or outcome.outcome != "undecided":
        raise _not_undecided(connection, txn_id)
    raise CannotCommit(
        f"transaction {txn_id} cannot be committed by hand: it is a plain one, and its messages are not in the store "
        "before its client commits; it can be rolled back"
    )


def _not_undecided(connection: Connection, txn_id: UUID) -> AlreadyDecided | NotUndecided:
    outcome = outcome_of(connection, txn_id)
    if outcome is None:
        return NotUndecided(
            f"no undecided transaction {txn_id}; a transaction is listed when it is older than a moment"
        )
    because = f" ({outcome.reason})" if outcome.reason else ""
    when = "" if outcome.decided_at is None else f" at {outcome.decided_at.isoformat(timespec='milliseconds')}"
    return AlreadyDecided(f"transaction {txn_id} is decided already: {outcome.outcome}{because}{when}")
