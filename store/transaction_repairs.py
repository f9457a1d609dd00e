"""Repairs of undecided transactions (R34): decided as the book says, or checked again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self
from uuid import UUID

from sqlalchemy import Connection, Row, func, text, update

from store import audit, undecided
from store.audit import Action
from store.errors import AlreadyDecided, CannotCommit, NotUndecided, boundary
from store.keys import BY_KEY
from store.repairs import SHORT_WAIT, Repair, State, Verdict, note, note_each
from store.tables import SCHEMA, txn

#: What is known of some transactions: the decision, if there is one, and the row of an undecided one.
_KNOWN: Final = text(
    f"""select a.id, o.decision, o.reason, o.decided_at, t.id is not null as listed, t.producer_group, t.checks,
               t.most_checks, t.next_check_at
          from unnest(cast(:ids as uuid[])) a(id)
          left join lateral (select o.decision, o.reason, o.decided_at from {SCHEMA}.op o
            where o.id = a.id and o.decision in ('commit', 'rollback') limit 1) o on true
          left join {SCHEMA}.txn t on t.id = any(array[a.id])"""
)
#: Checkable ones that no other decides now; in the order in which all lock them.
_FREE: Final = text(
    f"""select t.id from {SCHEMA}.txn t where t.id = any(cast(:ids as uuid[])) and t.producer_group is not null
         order by t.id for update skip locked"""
)
_DECIDE: Final = text(
    f"""select d.txn_id from {SCHEMA}.decide_all(cast(:ids as uuid[]), cast(:decisions as text[]),
             array_fill(cast(:reason as text), array[cardinality(cast(:ids as uuid[]))]), null, '{{}}', '{{}}', '{{}}',
             null) d where d.won"""
)


def _known(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, Row[Any]]:
    """What is known of each."""
    with boundary():
        connection.execute(BY_KEY)
        found = {row.id: row for row in connection.execute(_KNOWN, {"ids": list(ids)})}
        connection.rollback()
    return found


@dataclass(frozen=True)
class Decide(Repair):
    """Decide an undecided transaction as the book says (R22); ``decision``: ``commit`` or ``rollback``.
    ``contradicted``: the books say the other one, too, of another of its messages; then a person decides."""

    txn_id: UUID
    decision: str
    contradicted: bool = False

    def look(self, connection: Connection) -> Verdict:
        return self._verdict(_known(connection, [self.txn_id])[self.txn_id])

    @classmethod
    def look_together(cls, connection: Connection, repairs: Sequence[Self]) -> Mapping[Self, Verdict]:
        found = _known(connection, list({each.txn_id for each in repairs}))
        return {each: each._verdict(found[each.txn_id]) for each in repairs}

    def _verdict(self, found: Row[Any]) -> Verdict:
        if found.decision is not None:
            because = f" ({found.reason})" if found.reason else ""
            at = found.decided_at.isoformat(timespec="milliseconds")
            state = State.DONE if found.decision == self.decision else State.CANNOT
            said = f"transaction {self.txn_id} is decided already: {found.decision}{because} at {at}"
            return Verdict(state, said)
        if not found.listed:
            return Verdict(State.CANNOT, f"transaction {self.txn_id} is not known any more")
        if self.contradicted:
            both = "the books say committed of some of its messages, and rolled back of others"
            return Verdict(State.CANNOT, f"transaction {self.txn_id} is for a person to decide: {both}")
        if found.producer_group is None and self.decision == "commit":
            return Verdict(State.CANNOT, f"only its client can commit the plain transaction {self.txn_id}")
        return Verdict(State.CAN, f"{self.decision} transaction {self.txn_id}")

    def apply(self, connection: Connection, reason: str) -> Verdict:
        decide = undecided.commit if self.decision == "commit" else undecided.roll_back
        try:
            decide(connection, self.txn_id, reason, Action.REPAIR)
        except AlreadyDecided:
            connection.rollback()
            stands = self.look(connection)
            lost = f"lost the race: {stands.said}"
            return stands if stands.state is State.DONE else Verdict(State.CANNOT, lost)
        except (CannotCommit, NotUndecided) as error:
            connection.rollback()
            return Verdict(State.CANNOT, str(error))
        return self._decided

    @property
    def _decided(self) -> Verdict:
        return Verdict(State.DONE, f"transaction {self.txn_id} is decided now: {self.decision}")

    @classmethod
    def apply_together(cls, connection: Connection, repairs: Sequence[Self], reason: str) -> Mapping[Self, Verdict]:
        wanted = {each.txn_id: each for each in reversed(repairs)}  # of two about one, the first
        connection.execute(SHORT_WAIT)
        connection.execute(BY_KEY)
        free = [wanted[row.id] for row in connection.execute(_FREE, {"ids": list(wanted)})]
        if not free:
            return {}
        decisions = {"ids": [each.txn_id for each in free], "decisions": [each.decision for each in free]}
        won = [wanted[row.txn_id] for row in connection.execute(_DECIDE, {**decisions, "reason": reason})]
        if won:
            details = [(str(each.txn_id), {"decision": each.decision, "reason": reason}) for each in won]
            audit.note_each(connection, Action.REPAIR, details)
        connection.commit()
        return {each: each._decided for each in won}


@dataclass(frozen=True)
class Resume(Repair):
    """Begin the checks of an overdue transaction anew (R10, H10), where all were sent: the report saw it so."""

    txn_id: UUID
    seen_at: datetime

    def look(self, connection: Connection) -> Verdict:
        return self._verdict(_known(connection, [self.txn_id])[self.txn_id])

    @classmethod
    def look_together(cls, connection: Connection, repairs: Sequence[Self]) -> Mapping[Self, Verdict]:
        found = _known(connection, [each.txn_id for each in repairs])
        return {each: each._verdict(found[each.txn_id]) for each in repairs}

    def _verdict(self, found: Row[Any]) -> Verdict:
        if not found.listed:
            if found.decision is None:
                return Verdict(State.CANNOT, f"transaction {self.txn_id} is listed nowhere: ask its producer")
            return Verdict(State.DONE, f"transaction {self.txn_id} is decided meanwhile: {found.decision}")
        if found.next_check_at is None:
            held = "its client has it, though its time is over: see that the service runs"
            return Verdict(State.CANNOT, f"transaction {self.txn_id} is not to be checked, as {held}")
        if found.next_check_at > self.seen_at:
            return Verdict(State.DONE, f"transaction {self.txn_id} was checked, or its checks resumed, meanwhile")
        if found.most_checks is None or found.checks < found.most_checks:
            wait = f"waits for a checker of its producer group {found.producer_group}"
            return Verdict(State.CANNOT, f"transaction {self.txn_id} {wait}: start one")
        return Verdict(State.CAN, f"check transaction {self.txn_id} again, from the first check on")

    def apply(self, connection: Connection, reason: str) -> Verdict:
        """``reason`` is kept with no op: it decides nothing."""
        with undecided.waiting(connection, self.txn_id):
            found = _resume(connection, [self.txn_id], self.seen_at)
            if found:
                note(connection, str(self.txn_id), "resume", reason)
            connection.commit()
        return self._resumed if found else self.look(connection)

    @property
    def _resumed(self) -> Verdict:
        return Verdict(State.DONE, f"transaction {self.txn_id} is checked again, from the first check on")

    @classmethod
    def apply_together(cls, connection: Connection, repairs: Sequence[Self], reason: str) -> Mapping[Self, Verdict]:
        wanted = {each.txn_id: each for each in repairs}
        (seen_at,) = {each.seen_at for each in repairs}  # of one run
        free = [row.id for row in connection.execute(_FREE, {"ids": list(wanted)})]
        resumed = [wanted[txn_id] for txn_id in _resume(connection, free, seen_at)]
        if resumed:
            note_each(connection, [str(each.txn_id) for each in resumed], "resume", reason)
        connection.commit()
        return {each: each._resumed for each in resumed}


def _resume(connection: Connection, ids: Sequence[UUID], seen_at: datetime) -> list[UUID]:
    """Those whose checks begin anew. The SQL transaction is the caller's."""
    begun = update(txn).where(txn.c.id.in_(ids), txn.c.next_check_at <= seen_at, txn.c.checks >= txn.c.most_checks)
    return list(connection.scalars(begun.values(checks=0, next_check_at=func.now()).returning(txn.c.id)))
