"""List undecided transactions, and decide one by hand. The first decision wins (H5)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import Connection, Row, Select, case, delete, exists, func, insert, select, text, tuple_, update

from store import audit
from store.audit import Action
from store.database import LONGEST_WAIT
from store.errors import (
    AddressGone,
    AlreadyDecided,
    CannotCheck,
    CannotCommit,
    Locked,
    NotUndecided,
    StoreError,
    boundary,
)
from store.ids import declared_at, id_at
from store.tables import SCHEMA, address, half, op, pending, pending_retirement, txn
from store.tables import audit as audited

if TYPE_CHECKING:
    from store.history import Decided

# The outcome of a transaction (H15).

#: The number of messages that a transaction has posted; of a plain one, as its instance last wrote it.
POSTED = case(
    (txn.c.producer_group.is_(None), txn.c.posted),
    else_=func.coalesce(func.cardinality(txn.c.half_ids), 0)
    + select(func.count()).where(pending.c.txn_id == txn.c.id).scalar_subquery(),
)

#: The number of deliveries that it has retired, likewise.
RETIRED = case(
    (txn.c.producer_group.is_(None), txn.c.retired),
    else_=select(func.count()).where(pending_retirement.c.txn_id == txn.c.id).scalar_subquery(),
)

# The most that the time of an id may differ from the database's clock.
_SLACK = timedelta(minutes=1)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a transaction: ``commit``, ``rollback`` or ``undecided``. Times are aware UTC."""

    txn_id: UUID
    outcome: str
    reason: str | None
    declared_at: datetime
    #: None while undecided
    decided_at: datetime | None
    #: messages posted and deliveries retired; while undecided, as last written
    posted: int
    retired: int
    #: the instance that decided, or that holds it; None: an operator decided, or an application in SQL
    instance_id: int | None
    #: names of the addresses that the committed messages were posted to, and that the retired deliveries are from;
    #: empty for a decision in the archive
    posted_to: tuple[str, ...] = ()
    retired_from: tuple[str, ...] = ()


def decided_outcome(txn_id: UUID, decided: Row[Any] | Decided, retired: int) -> Outcome:
    """Return the outcome that an op, of the store or of the archive, says, without the names of addresses."""
    return Outcome(
        txn_id=txn_id,
        outcome=decided.decision,
        reason=decided.reason,
        declared_at=declared_at(txn_id.bytes),
        decided_at=decided.decided_at,
        posted=decided.posted,
        retired=retired,
        instance_id=decided.instance_id,
    )


def outcome_of(connection: Connection, txn_id: UUID) -> Outcome | None:
    """Return the outcome of ``txn_id``.

    None: it was never declared, or has no work and so no op, or is undecided and too young to be in the store, or
    retention has dropped its op.
    """
    with boundary():
        decided = connection.execute(
            select(op).where(op.c.id == txn_id, op.c.decision.in_(("commit", "rollback")))
        ).one_or_none()
        if decided is not None:
            half_ids = list(decided.half_ids or ())
            return replace(
                decided_outcome(txn_id, decided, len(half_ids)),
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
    """Return a query of the transaction's halves, by its id in the days of its time, as :mod:`store.history`."""
    return select(half.c.address_id).where(
        half.c.id >= id_at(declared_at(txn_id.bytes) - _SLACK),
        half.c.id < id_at(decided_at + _SLACK),
        half.c.txn_id == txn_id,
    )


def _halves(half_ids: list[int]) -> Select[tuple[int]]:
    return select(half.c.address_id).where(half.c.id.in_(half_ids))


def _names(connection: Connection, halves: Select[tuple[int]]) -> tuple[str, ...]:
    """Return the names of the addresses; one whose name is no longer known is shown by its id."""
    used = halves.distinct().subquery()
    name = func.coalesce(address.c.name, func.concat("#", used.c.address_id))
    rows = connection.scalars(select(name).select_from(used.outerjoin(address, address.c.id == used.c.address_id)))
    return tuple(sorted(rows))


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
    #: ``open``, or ``left`` by its client (a checkable one)
    state: str
    posted: int
    retired: int
    #: check-back; None: it is a plain transaction
    producer_group: str | None
    checks: int
    most_checks: int | None
    #: None: not before its control link is detached, or its timeout is over. After the last check: when it is ended
    next_check_at: datetime | None
    #: for how long a check has been due that no checker received (H9); None: no check is due
    waits_seconds: float | None


def all_undecided(connection: Connection, *, after: UUID | None = None, most: int | None = None) -> list[Undecided]:
    """Return the undecided transactions, oldest first, except those too young to be in the store: those behind
    ``after``, and ``most`` at most.
    """
    query = (
        select(
            txn,
            POSTED.label("posted_now"),
            RETIRED.label("retired_now"),
            func.greatest(0, func.extract("epoch", func.now() - txn.c.declared_at)).label("age"),
            func.extract("epoch", func.now() - txn.c.next_check_at).label("waits"),
        )
        .where(~exists().where(op.c.id == txn.c.id))
        .order_by(txn.c.declared_at, txn.c.id)
        .limit(most)
    )
    if after is not None:  # which may be decided by now: its id has its time
        query = query.where(tuple_(txn.c.declared_at, txn.c.id) > (declared_at(after.bytes), after))
    with boundary():
        rows = connection.execute(query).all()
    lines = []
    for row in rows:
        left = row.producer_group is not None and (row.connection is None or row.connection < 0)
        line = Undecided(
            txn_id=row.id,
            owner=row.owner,
            instance_id=row.instance_id,
            declared_at=row.declared_at,
            timeout_at=row.timeout_at,
            age_seconds=float(row.age),
            state="left" if left else "open",
            posted=row.posted_now,
            retired=row.retired_now,
            producer_group=row.producer_group,
            checks=row.checks,
            most_checks=row.most_checks,
            next_check_at=row.next_check_at,
            waits_seconds=float(row.waits) if row.waits is not None and row.waits > 0 else None,
        )
        lines.append(line)
    return lines


def roll_back(connection: Connection, txn_id: UUID, reason: str, action: Action = Action.RESOLVE) -> Outcome:
    """Roll ``txn_id`` back, for ``reason``; commits. A commit that its client discharges later is too late.

    ``action``: the action in the audit.

    :raises AlreadyDecided: with the decision, when another was first; it stands.
    :raises NotUndecided: when no such transaction is known.
    :raises Locked: when another decides it now, and takes long.
    """
    if checkable(connection, txn_id):
        return _decide(connection, txn_id, "rollback", reason, action)
    try:
        with waiting(connection, txn_id):
            listed = select(txn.c.posted, txn.c.producer_group).where(txn.c.id == txn_id)
            # lock order: 3
            found = connection.execute(listed.with_for_update()).one_or_none()
            if found is None:
                connection.rollback()
                raise not_undecided(connection, txn_id)
            if found.producer_group is not None:  # a post has made it checkable meanwhile, and has a half in the store
                return _decide(connection, txn_id, "rollback", reason, action)
            connection.execute(
                insert(op).values(id=txn_id, decision="rollback", txn_id=txn_id, reason=reason, posted=found.posted)
            )
            connection.execute(delete(txn).where(txn.c.id == txn_id))
            audit.note(connection, action, str(txn_id), {"decision": "rollback", "reason": reason})
            connection.commit()
    except AlreadyDecided:
        connection.rollback()
        raise not_undecided(connection, txn_id) from None
    return _decided(connection, txn_id)


def commit(connection: Connection, txn_id: UUID, reason: str, action: Action = Action.RESOLVE) -> Outcome:
    """Commit ``txn_id``, for ``reason``, so that its messages are delivered; commits.

    ``action``: the action in the audit.

    :raises CannotCommit: when it is a plain transaction, or an address that it posted to was removed.
    :raises AlreadyDecided: with the decision, when another was first; it stands.
    :raises NotUndecided: when no such transaction is known.
    :raises Locked: when another decides it now, and takes long.
    """
    _see_checkable(connection, txn_id, CannotCommit(_PLAIN_COMMIT.format(txn_id)))
    return _decide(connection, txn_id, "commit", reason, action)


def check_commit(connection: Connection, txn_id: UUID) -> None:
    """See that :func:`commit` can be done, and raise what it would."""
    _see_checkable(connection, txn_id, CannotCommit(_PLAIN_COMMIT.format(txn_id)))
    gone = text(
        f"select exists (select from {SCHEMA}.pending_half p left join {SCHEMA}.address a on a.id = p.address_id"
        " where p.txn_id = :txn and a.id is null)"
    )
    with boundary():
        found = connection.scalar(gone, {"txn": txn_id})
        connection.rollback()
    if found:
        raise CannotCommit(_GONE_COMMIT.format(txn_id))


def check_resume(connection: Connection, txn_id: UUID) -> None:
    """See that :func:`resume` can be done, and raise what it would."""
    _see_checkable(connection, txn_id, CannotCheck(_PLAIN_CHECK.format(txn_id)))


_PLAIN_COMMIT = (
    "transaction {} cannot be committed by hand: it is a plain one, and its messages are not in the store before its "
    "client commits; it can be rolled back"
)
_GONE_COMMIT = "transaction {} cannot be committed: an address that it posted to was removed; it can be rolled back"
_PLAIN_CHECK = "transaction {} is a plain one: it has no producer group that could be asked"


def _see_checkable(connection: Connection, txn_id: UUID, plain: StoreError) -> None:
    """Raise ``plain`` for a plain transaction, or that it is not undecided."""
    if not checkable(connection, txn_id):
        outcome = outcome_of(connection, txn_id)
        raise plain if outcome is not None and outcome.outcome == "undecided" else not_undecided(connection, txn_id)


def resume(connection: Connection, txn_id: UUID) -> bool:
    """Check ``txn_id`` again, from the first check on; commits. Whether it is due now: else its client still has it.

    :raises CannotCheck: when it is a plain transaction.
    :raises AlreadyDecided: with the decision.
    :raises NotUndecided: when no such transaction is known.
    :raises Locked: when another decides it now, and takes long.
    """
    check_resume(connection, txn_id)
    due = case((txn.c.next_check_at.is_not(None), func.now()))
    with waiting(connection, txn_id):
        anew = update(txn).where(txn.c.id == txn_id).values(checks=0, next_check_at=due)
        found = connection.execute(anew.returning(txn.c.next_check_at)).one_or_none()
        if found is not None:
            audit.note(connection, Action.RESUME, str(txn_id))
        connection.commit()
    if found is None:
        raise not_undecided(connection, txn_id)
    return found.next_check_at is not None


def checkable(connection: Connection, txn_id: UUID) -> bool:
    """Whether the transaction is undecided, and has a producer group."""
    with boundary():
        group = connection.scalar(select(txn.c.producer_group).where(txn.c.id == txn_id))
        connection.rollback()
    return group is not None


@contextmanager
def waiting(connection: Connection, txn_id: UUID) -> Iterator[None]:
    """Limit how long the statements of the block wait for others who decide the transaction now."""
    try:
        with boundary():
            connection.execute(LONGEST_WAIT)
            yield
    except Locked as error:
        connection.rollback()
        said = f"transaction {txn_id} is being decided by another, whose commit takes long: ask for its outcome later"
        raise Locked(said, sqlstate=error.sqlstate) from None


def _decide(connection: Connection, txn_id: UUID, decision: str, reason: str, action: Action) -> Outcome:
    try:
        with waiting(connection, txn_id):
            won = connection.scalar(select(func.coordinator.decide(txn_id, decision, reason)))
            if won:
                audit.note(connection, action, str(txn_id), {"decision": decision, "reason": reason})
            connection.commit()
    except AddressGone:
        connection.rollback()
        raise CannotCommit(_GONE_COMMIT.format(txn_id)) from None
    if not won:
        raise not_undecided(connection, txn_id)
    return _decided(connection, txn_id)


def _decided(connection: Connection, txn_id: UUID) -> Outcome:
    outcome = outcome_of(connection, txn_id)
    assert outcome is not None
    return outcome


def not_undecided(connection: Connection, txn_id: UUID) -> AlreadyDecided | NotUndecided:
    """Return the error of a transaction that is not undecided; it tells the decision: why, when, and by whom."""
    outcome = outcome_of(connection, txn_id)
    if outcome is None:
        return NotUndecided(
            f"no undecided transaction {txn_id}; a transaction is listed when it is older than a moment"
        )
    because = f" ({outcome.reason})" if outcome.reason else ""
    when = "" if outcome.decided_at is None else f" at {outcome.decided_at.isoformat(timespec='milliseconds')}"
    by = "" if outcome.decided_at is None else _by(connection, txn_id, outcome.decided_at)
    return AlreadyDecided(f"transaction {txn_id} is decided already: {outcome.outcome}{because}{when}{by}")


def _by(connection: Connection, txn_id: UUID, decided_at: datetime) -> str:
    """Return who decided by hand, as the audit has it: its row is of the SQL transaction of the decision."""
    query = select(func.coalesce(audited.c.os_user, audited.c.database_role), audited.c.place).where(
        audited.c.at.between(decided_at - _SLACK, decided_at + _SLACK),
        audited.c.subject == str(txn_id),
        audited.c.action.in_((Action.RESOLVE, Action.REPAIR)),
    )
    with boundary():
        row = connection.execute(query.limit(1)).one_or_none()
        connection.rollback()
    return "" if row is None else f" by {row[0]}" + (f" ({row[1]})" if row[1] else "")
