"""What can be repaired of what a reconciliation has found (R34): by the store's own decisions, and by entries that it
makes; no row that is there is edited.

Each repair looks first whether it can still be done, and is one SQL transaction. One that was done before, by an
earlier run or by another way, is found done; one that came too late is told, not forced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from sqlalchemy import Connection, exists, func, insert, select, text, update

from store import audit, channels, history, outcomes, recovery, traces, undecided
from store.audit import Action
from store.commit.terms import Terms, key_of
from store.errors import AlreadyDecided, CannotCommit, NotUndecided, boundary
from store.ids import UuidV7
from store.seeks import time_of
from store.tables import address, consumer_group, entry, instance, op, store_identity, txn

#: How the reason of a repair's op begins; the run follows.
REASON: Final = "reconciliation"

#: Repairs of deliveries one after the other: two of one delivery would both find it lost.
_LOCK: Final = 0x636F6F72_72657061  # "coorrepa"


class State(StrEnum):
    CAN = "can"
    DONE = "done"
    CANNOT = "cannot"


class Verdict(NamedTuple):
    """What can be done, was done, or why it cannot be done; ``said`` begins a sentence."""

    state: State
    said: str


class Repair(Protocol):
    """One repair. :meth:`look` changes nothing; :meth:`apply` needs partitions for today.

    :raises Contended: others are in its way; it did nothing.
    """

    def look(self, connection: Connection) -> Verdict: ...

    def apply(self, connection: Connection, reason: str) -> Verdict: ...


def store_id(connection: Connection) -> str:
    """The store's id, as reports name it."""
    with boundary():
        found: str = connection.execute(select(store_identity.c.id)).scalar_one()
        connection.rollback()
    return found


@dataclass(frozen=True)
class Decide:
    """Decide an undecided transaction as the book says (R22); ``decision``: ``commit`` or ``rollback``."""

    txn_id: UUID
    decision: str

    def look(self, connection: Connection) -> Verdict:
        found = outcomes.outcome_of(connection, self.txn_id)
        plain = found is not None and found.outcome == "undecided" and self._plain(connection)
        connection.rollback()
        if found is None:
            return Verdict(State.CANNOT, f"transaction {self.txn_id} is not known any more")
        if found.outcome == "undecided":
            if plain and self.decision == "commit":
                return Verdict(State.CANNOT, f"only its client can commit the plain transaction {self.txn_id}")
            return Verdict(State.CAN, f"{self.decision} transaction {self.txn_id}")
        because = f" ({found.reason})" if found.reason else ""
        at = "" if found.decided_at is None else f" at {found.decided_at.isoformat(timespec='milliseconds')}"
        state = State.DONE if found.outcome == self.decision else State.CANNOT
        return Verdict(state, f"transaction {self.txn_id} is decided already: {found.outcome}{because}{at}")

    def _plain(self, connection: Connection) -> bool:
        with boundary():
            listed = select(txn.c.id).where(txn.c.id == self.txn_id, txn.c.producer_group.is_(None))
            return connection.scalar(listed) is not None

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
        return Verdict(State.DONE, f"transaction {self.txn_id} is decided now: {self.decision}")


@dataclass(frozen=True)
class Resume:
    """Begin the checks of an overdue transaction anew (R10, H10), where all were sent: the report saw it so."""

    txn_id: UUID
    seen_at: datetime

    def look(self, connection: Connection) -> Verdict:
        with boundary():
            found = connection.execute(
                select(txn, func.now().label("now")).where(txn.c.id == self.txn_id)
            ).one_or_none()
            connection.rollback()
        if found is None:
            known = outcomes.outcome_of(connection, self.txn_id)
            connection.rollback()
            if known is None:
                return Verdict(State.CANNOT, f"transaction {self.txn_id} is listed nowhere: ask its producer")
            return Verdict(State.DONE, f"transaction {self.txn_id} is decided meanwhile: {known.outcome}")
        if found.next_check_at is None:
            held = "its client has it, though its time is over: see that the service runs"
            return Verdict(State.CANNOT, f"transaction {self.txn_id} is not to be checked, as {held}")
        if found.next_check_at > self.seen_at:
            return Verdict(State.DONE, f"transaction {self.txn_id} was checked, or its checks resumed, meanwhile")
        if found.checks < found.most_checks:
            wait = f"waits for a checker of its producer group {found.producer_group}"
            return Verdict(State.CANNOT, f"transaction {self.txn_id} {wait}: start one")
        return Verdict(State.CAN, f"check transaction {self.txn_id} again, from the first check on")

    def apply(self, connection: Connection, reason: str) -> Verdict:
        """``reason`` is kept with no op: it decides nothing."""
        with undecided.waiting(connection, self.txn_id):
            found = connection.execute(
                update(txn)
                .where(txn.c.id == self.txn_id, txn.c.next_check_at <= self.seen_at, txn.c.checks >= txn.c.most_checks)
                .values(checks=0, next_check_at=func.now())
            )
            if found.rowcount:
                note(connection, str(self.txn_id), "resume", reason)
            connection.commit()
        if found.rowcount:
            return Verdict(State.DONE, f"transaction {self.txn_id} is checked again, from the first check on")
        return self.look(connection)


@contextmanager
def _one_by_one(connection: Connection) -> Iterator[None]:
    connection.execute(select(func.pg_advisory_lock(_LOCK)))
    connection.commit()
    try:
        yield
    finally:
        connection.rollback()
        connection.execute(select(func.pg_advisory_unlock(_LOCK)))
        connection.commit()


def note(connection: Connection, subject: str, how: str, reason: str) -> None:
    """Tell the audit of a repair. The SQL transaction is the caller's."""
    audit.note(connection, Action.REPAIR, subject, {"repair": how, "reason": reason})


def named(half_id: int, address: str, group: str) -> str:
    """A delivery, as it is said."""
    return f"message {half_id} to {address}{f'::{group}' if group else ''}"


def tell(connection: Connection, decision: str, reason: str, covers: Sequence[tuple[int, int]]) -> None:
    """Add the op of a repair that decides no transaction; ``covers``: halves and groups. The SQL transaction is the
    caller's."""
    half_ids, group_ids = map(list, zip(*covers, strict=True))
    row = {"id": UUID(bytes=UuidV7().next()), "decision": decision, "reason": reason}
    connection.execute(insert(op).values(**row, half_ids=half_ids, group_ids=group_ids))


@dataclass(frozen=True)
class Release:
    """Give back a delivery that is leased by an instance which is gone (R16), as the service does at its start; on an
    address of kind fifo with what it has of the message group.
    """

    half_id: int
    address: str
    group: str

    @property
    def _named(self) -> str:
        return named(self.half_id, self.address, self.group)

    def look(self, connection: Connection) -> Verdict:
        verdict, _ = self._look(connection)
        connection.rollback()
        return verdict

    def _look(self, connection: Connection) -> tuple[Verdict, tuple[int, int] | None]:
        """Also the group, and the entry. The SQL transaction is the caller's."""
        of_group = (
            select(consumer_group.c.id)
            .join(address, address.c.id == consumer_group.c.address_id)
            .where(address.c.name == self.address, consumer_group.c.name == self.group)
        )
        alive = exists().where(instance.c.id == entry.c.lease, instance.c.ended_at.is_(None))
        with boundary():
            group = connection.scalar(of_group)
            # an entry has the id of its half, or got a later one
            waits = select(entry.c.id, entry.c.lease, alive.label("alive")).where(
                entry.c.group_id == group, entry.c.id >= self.half_id, entry.c.half_id == self.half_id
            )
            found = connection.execute(waits.order_by(entry.c.id).limit(1)).one_or_none()
        if group is None or found is None:
            gone = "the group is" if group is None else "its entry is"
            return Verdict(State.DONE, f"{gone} not there any more: {self._named}"), None
        if found.lease <= 0:
            return Verdict(State.DONE, f"no instance has it: {self._named}"), None
        if found.alive:
            return Verdict(State.DONE, f"instance {found.lease}, which runs, has it: {self._named}"), None
        return Verdict(State.CAN, f"release from instance {found.lease}: {self._named}"), (group, found.id)

    def apply(self, connection: Connection, reason: str) -> Verdict:
        with boundary():
            verdict, to = self._look(connection)
            if to is None:
                connection.rollback()
                return verdict
            group, entry_id = to
            freed = recovery.give_back(connection, group, entry_id)
            if not freed:
                connection.rollback()
                return self.look(connection)  # another has done it since
            tell(connection, "release", reason, [(half_id, group) for half_id in sorted(freed)])
            note(connection, self._named, "release", reason)
            connection.commit()
        others = f", with {len(freed) - 1} others of its message group" if len(freed) > 1 else ""
        return Verdict(State.DONE, f"released: {self._named}{others}")


#: On which terms a message is delivered again, and whether its address is of kind ``fifo``.
TermsOf = Callable[[Connection, history.Message, bool], Terms]


@dataclass(frozen=True)
class Requeue:
    """Give a consumer group the entry of a committed message that it has lost (R13). ``terms_of``: on which terms."""

    half_id: int
    address: str
    group: str
    terms_of: TermsOf

    @property
    def _named(self) -> str:
        return named(self.half_id, self.address, self.group)

    def look(self, connection: Connection) -> Verdict:
        verdict, _ = self._look(connection)
        connection.rollback()
        return verdict

    def _look(self, connection: Connection, *, lock: bool = False) -> tuple[Verdict, tuple[int, Terms, bool] | None]:
        """Also the group, and how it gets the message. The SQL transaction is the caller's; ``lock``: the group stays
        until its end.
        """
        message = history.message(connection, self.half_id)
        with boundary():
            places = (
                select(consumer_group.c.id, address.c.kind)
                .join(address, address.c.id == consumer_group.c.address_id)
                .where(
                    address.c.name == self.address,
                    consumer_group.c.name == self.group,
                    address.c.id == (None if message is None else message.address_id),
                )
            )
            locked = places.with_for_update(read=True, key_share=True, of=consumer_group)
            place = connection.execute(locked if lock else places).one_or_none()
            now = connection.execute(select(func.now())).scalar_one()
        if message is None or place is None:
            gone = "the message" if message is None else "the group"
            return Verdict(State.CANNOT, f"{gone} is not there any more: {self._named}"), None
        committed_at = message.posted_at
        if message.txn_id is not None:
            decided = history.decision(connection, message.txn_id)
            if decided is None or decided.decision != "commit":
                return Verdict(State.CANNOT, f"its transaction is not committed: {self._named}"), None
            committed_at = decided.decided_at
        found = traces.deliveries(connection, {self.half_id: message.address_id}, committed_at, now)
        if any(waits.group_id == place.id for waits in found.places):
            return Verdict(State.DONE, f"waits, or is on its way: {self._named}"), None
        said = [step.decision for step in found.steps if step.group_id == place.id]
        if sum(each in traces.ENDS for each in said) > said.count("replay"):  # which takes an end back
            return Verdict(State.DONE, f"came to its end: {self._named}"), None
        fifo = place.kind == "fifo"
        terms = self.terms_of(connection, message, fifo)
        expires = time_of(terms.expires)
        if expires is not None and expires <= now:
            return Verdict(State.CANNOT, f"its time is over: {self._named}"), None
        return Verdict(State.CAN, f"deliver {self._named}"), (place.id, terms, fifo)

    def apply(self, connection: Connection, reason: str) -> Verdict:
        with boundary(), _one_by_one(connection):
            # as of one moment: a delivery that ends while this looks has its entry still, or its op
            connection.execute(text("set transaction isolation level repeatable read"))
            verdict, to = self._look(connection, lock=True)
            if to is None:
                connection.rollback()
                return verdict
            group, terms, fifo = to
            connection.execute(
                insert(entry).values(
                    group_id=group,
                    id=self.half_id,
                    half_id=self.half_id,
                    # due now: the schedule gives it a place above all that an instance has read
                    available_at=func.now(),
                    expires_at=time_of(terms.expires),
                    priority=terms.priority,
                    message_group=key_of(terms, self.half_id) if fifo else None,
                    acquired=True,
                )
            )
            tell(connection, "release", reason, [(self.half_id, group)])
            note(connection, self._named, "deliver", reason)
            connection.execute(select(func.pg_notify(channels.DUE, "")))
            connection.commit()
        return Verdict(State.DONE, f"delivered again: {self._named}")
