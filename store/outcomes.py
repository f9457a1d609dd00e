"""The outcome of a transaction (H15)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, Select, case, func, select

from store.errors import boundary
from store.ids import declared_at, id_at
from store.tables import address, half, op, pending, pending_retirement, txn

#: The messages that a checkable transaction has posted; of a plain one, as its instance last wrote it.
POSTED = case(
    (txn.c.producer_group.is_(None), txn.c.posted),
    else_=func.coalesce(func.cardinality(txn.c.half_ids), 0)
    + select(func.count()).where(pending.c.txn_id == txn.c.id).scalar_subquery(),
)

#: The deliveries that it has retired, likewise.
RETIRED = case(
    (txn.c.producer_group.is_(None), txn.c.retired),
    else_=select(func.count()).where(pending_retirement.c.txn_id == txn.c.id).scalar_subquery(),
)

# How far the time of an id may be from the database's clock: machines differ.
_SLACK = timedelta(minutes=1)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """``outcome``: ``commit``, ``rollback`` or ``undecided``. Times are aware UTC."""

    txn_id: UUID
    outcome: str
    reason: str | None
    declared_at: datetime
    #: None while undecided
    decided_at: datetime | None
    #: messages posted and deliveries retired; as last seen while undecided
    posted: int
    retired: int
    #: the instance that decided, or that holds it; None: an operator decided, or an application in SQL
    instance_id: int | None
    #: names of the addresses that the committed messages went to, and that the retired deliveries came from; of a
    #: decision in the archive none
    posted_to: tuple[str, ...] = ()
    retired_from: tuple[str, ...] = ()


def outcome_of(connection: Connection, txn_id: UUID) -> Outcome | None:
    """The outcome of ``txn_id``. None: it was never declared, or has no work and so no op, or is undecided and too
    young to be in the store, or retention has dropped its op.
    """
    with boundary():
        decided = connection.execute(
            select(op).where(op.c.id == txn_id, op.c.decision.in_(("commit", "rollback")))
        ).one_or_none()
        if decided is not None:
            half_ids = list(decided.half_ids or ())
            return Outcome(
                txn_id=txn_id,
                outcome=decided.decision,
                reason=decided.reason,
                declared_at=declared_at(txn_id.bytes),
                decided_at=decided.decided_at,
                posted=decided.posted,
                retired=len(half_ids),
                instance_id=decided.instance_id,
                posted_to=_names(connection, _halves_posted(txn_id, decided.decided_at)) if decided.posted else (),
                retired_from=_names(connection, _halves(half_ids)) if half_ids else (),
            )
        undecided = connection.execute(
            select(txn, POSTED.label("posted_now"), RETIRED.label("retired_now")).where(txn.c.id == txn_id)
        ).one_or_none()
    if undecided is None:
        return None
    return Outcome(
        txn_id=txn_id,
        outcome="undecided",
        reason=None,
        declared_at=undecided.declared_at,
        decided_at=None,
        posted=undecided.posted_now,
        retired=undecided.retired_now,
        instance_id=undecided.instance_id,
    )


def _halves_posted(txn_id: UUID, decided_at: datetime) -> Select[tuple[int]]:
    """Halves are found by the ids of the transaction's time, which saves an index by transaction."""
    return select(half.c.address_id).where(
        half.c.id >= id_at(declared_at(txn_id.bytes) - _SLACK),
        half.c.id < id_at(decided_at + _SLACK),
        half.c.txn_id == txn_id,
    )


def _halves(half_ids: list[int]) -> Select[tuple[int]]:
    return select(half.c.address_id).where(half.c.id.in_(half_ids))


def _names(connection: Connection, halves: Select[tuple[int]]) -> tuple[str, ...]:
    """Names of the addresses; an address whose name is not known any more is shown by its id."""
    used = halves.distinct().subquery()
    name = func.coalesce(address.c.name, func.concat("#", used.c.address_id))
    rows = connection.scalars(select(name).select_from(used.outerjoin(address, address.c.id == used.c.address_id)))
    return tuple(sorted(rows))
