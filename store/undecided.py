"""Undecided transactions: list them, and decide one by hand. First decision wins (H5)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, case, delete, exists, func, insert, select, update

from store import audit
from store.audit import Action
from store.database import LONGEST_WAIT
from store.errors import AddressGone, AlreadyDecided, CannotCheck, CannotCommit, Locked, NotUndecided, boundary
from store.outcomes import POSTED, RETIRED, Outcome, outcome_of
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
    #: ``open``, or ``left`` by its client (a checkable one)
    state: str
    posted: int
    retired: int
    #: check-back; None: it is a plain one
    producer_group: str | None
    checks: int
    most_checks: int | None
    #: None: not before its control link is gone, or its time is over. After the last check: its end
    next_check_at: datetime | None
    #: for how long a check has been due that no checker took (H9); None: none is due
    waits_seconds: float | None


def all_undecided(connection: Connection) -> list[Undecided]:
    """Undecided transactions, oldest first. Those younger than a moment are not in the store, and so not in the
    list.
    """
    decided = exists().where(op.c.id == txn.c.id)
    with boundary():
        rows = connection.execute(
            select(
                txn,
                POSTED.label("posted_now"),
                RETIRED.label("retired_now"),
                func.greatest(0, func.extract("epoch", func.now() - txn.c.declared_at)).label("age"),
                func.extract("epoch", func.now() - txn.c.next_check_at).label("waits"),
            )
            .where(~decided)
            .order_by(txn.c.declared_at, txn.c.id)
        ).all()
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
    """Decide ``txn_id``: rollback, for ``reason``; commits. A commit that its client asks for later comes too late.
    ``action``: what the audit says.

    :raises AlreadyDecided: saying how, when another decision was first; it stands.
    :raises NotUndecided: when no such transaction is known.
    :raises Locked: when another decides it now, and takes long.
    """
    if _checkable(connection, txn_id):
        return _decide(connection, txn_id, "rollback", reason, action)
    try:
        with waiting(connection, txn_id):
            listed = select(txn.c.posted, txn.c.producer_group).where(txn.c.id == txn_id)
            found = connection.execute(listed.with_for_update()).one_or_none()
            if found is None:
                connection.rollback()
                raise _not_undecided(connection, txn_id)
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
        raise _not_undecided(connection, txn_id) from None
    return _decided(connection, txn_id)


def commit(connection: Connection, txn_id: UUID, reason: str, action: Action = Action.RESOLVE) -> Outcome:
    """Decide ``txn_id``: commit, for ``reason``; commits. Its messages are delivered then. ``action``: what the audit
    says.

    :raises CannotCommit: when it is a plain transaction, or an address that it posted to is gone.
    :raises AlreadyDecided: saying how, when another decision was first; it stands.
    :raises NotUndecided: when no such transaction is known.
    :raises Locked: when another decides it now, and takes long.
    """
    if _checkable(connection, txn_id):
        return _decide(connection, txn_id, "commit", reason, action)
    outcome = outcome_of(connection, txn_id)
    if outcome is None or outcome.outcome != "undecided":
        raise _not_undecided(connection, txn_id)
    raise CannotCommit(
        f"transaction {txn_id} cannot be committed by hand: it is a plain one, and its messages are not in the store "
        "before its client commits; it can be rolled back"
    )


def resume(connection: Connection, txn_id: UUID) -> bool:
    """Check ``txn_id`` again, from the first check on; commits. Whether it is due now: else its client holds it still.

    :raises CannotCheck: when it is a plain transaction.
    :raises AlreadyDecided: saying how.
    :raises NotUndecided: when no such transaction is known.
    :raises Locked: when another decides it now, and takes long.
    """
    if not _checkable(connection, txn_id):
        outcome = outcome_of(connection, txn_id)
        if outcome is None or outcome.outcome != "undecided":
            raise _not_undecided(connection, txn_id)
        raise CannotCheck(f"transaction {txn_id} is a plain one: it has no producer group that could be asked")
    due = case((txn.c.next_check_at.is_not(None), func.now()))
    with waiting(connection, txn_id):
        anew = update(txn).where(txn.c.id == txn_id).values(checks=0, next_check_at=due)
        found = connection.execute(anew.returning(txn.c.next_check_at)).one_or_none()
        if found is not None:
            audit.note(connection, Action.RESUME, str(txn_id))
        connection.commit()
    if found is None:
        raise _not_undecided(connection, txn_id)
    return found.next_check_at is not None


def _checkable(connection: Connection, txn_id: UUID) -> bool:
    with boundary():
        group = connection.scalar(select(txn.c.producer_group).where(txn.c.id == txn_id))
        connection.rollback()
    return group is not None


@contextmanager
def waiting(connection: Connection, txn_id: UUID) -> Iterator[None]:
    """A block whose statements wait for those who decide the transaction now, but not for ever."""
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
        raise CannotCommit(
            f"transaction {txn_id} cannot be committed: an address that it posted to was removed; it can be rolled back"
        ) from None
    if not won:
        raise _not_undecided(connection, txn_id)
    return _decided(connection, txn_id)


def _decided(connection: Connection, txn_id: UUID) -> Outcome:
    outcome = outcome_of(connection, txn_id)
    assert outcome is not None
    return outcome


def _not_undecided(connection: Connection, txn_id: UUID) -> AlreadyDecided | NotUndecided:
    outcome = outcome_of(connection, txn_id)
    if outcome is None:
        return NotUndecided(
            f"no undecided transaction {txn_id}; a transaction is listed when it is older than a moment"
        )
    because = f" ({outcome.reason})" if outcome.reason else ""
    when = "" if outcome.decided_at is None else f" at {outcome.decided_at.isoformat(timespec='milliseconds')}"
    return AlreadyDecided(f"transaction {txn_id} is decided already: {outcome.outcome}{because}{when}")
