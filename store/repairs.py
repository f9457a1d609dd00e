"""Repair what a reconciliation has found (R34): by the store's own decisions, and by new entries.

No existing row is edited. Each repair first checks whether it can still be done. One that was done before, by an
earlier run or in another way, is reported as done; one that is too late is reported, not forced. Repairs of one kind
are done in pieces, an SQL transaction each; one that cannot be done with others, as it waits for a lock or is refused,
is done alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

from sqlalchemy import Connection, Row, func, insert, select, text, update

from store import audit, channels, dead_letters, history, recovery, traces, undecided
from store.audit import Action
from store.commit.terms import DeliveryTerms, key_of
from store.errors import (
    AddressGone,
    AlreadyDecided,
    CannotCommit,
    Contended,
    NotUndecided,
    StoreError,
    StoreUnavailable,
    boundary,
)
from store.history import Message
from store.ids import UuidV7
from store.keys import BY_KEY
from store.retention import kept
from store.seeks import time_of
from store.tables import SCHEMA, entry, op, store_identity, txn
from store.traces import SLACK, Step

#: The beginning of the reason of a repair's op; the run follows.
REASON: Final = "reconciliation"
#: Repairs in one SQL transaction: so few that others wait for its locks only briefly.
MOST_TOGETHER: Final = 100
#: Repairs that are done together wait so long for a lock; after a longer wait each is done alone.
SHORT_WAIT: Final = text("set local lock_timeout = '200ms'")

#: Returns the terms on which a message is delivered again. The last argument: whether its address is of kind ``fifo``.
TermsOf = Callable[[Connection, history.Message, bool], DeliveryTerms]


class State(StrEnum):
    CAN = "can"
    DONE = "done"
    CANNOT = "cannot"


class Verdict(NamedTuple):
    """The state of a repair: what can be done, what was done, or why it cannot be done; ``said`` begins a sentence."""

    state: State
    said: str


class Repair(ABC):
    """One repair, as a value. ``examine`` checks it and changes nothing; ``apply`` needs partitions for today."""

    @abstractmethod
    def examine(self, connection: Connection) -> Verdict: ...

    @abstractmethod
    def apply(self, connection: Connection, reason: str) -> Verdict:
        """Do the repair, if it can still be done.

        :raises Contended: others lock what it needs; it did nothing.
        """

    @classmethod
    def examine_all(cls, connection: Connection, repairs: Sequence[Self]) -> Mapping[Self, Verdict]:
        return {each: each.examine(connection) for each in repairs}

    @classmethod
    def apply_together(cls, connection: Connection, repairs: Sequence[Self], reason: str) -> Mapping[Self, Verdict]:
        """Do repairs in one SQL transaction; those missing in the result must be done alone.

        :raises StoreError: no repair was done.
        """
        return {}


def repaired(connection: Connection, repairs: Sequence[Repair], reason: str | None) -> Iterator[tuple[Repair, Verdict]]:
    """Check repairs, at most :data:`MOST_TOGETHER`, and do those that can be done, if a ``reason`` for ops is given.

    Each is yielded with its verdict; a repair that was done is durable then, whatever follows.
    """
    kinds: dict[type[Repair], dict[Repair, None]] = {}
    for each in repairs:
        kinds.setdefault(type(each), {})[each] = None
    for kind, ours in kinds.items():
        verdicts = dict(kind.examine_all(connection, list(ours)))
        can = {each: looked for each, looked in verdicts.items() if looked.state is State.CAN and reason is not None}
        done = {} if reason is None else _together(connection, kind, list(can), reason)
        verdicts |= done
        for each in ours:
            if each in can and reason is not None and each not in done:
                verdicts[each] = _alone(connection, each, can[each], reason)
            yield each, verdicts[each]


def _together(
    connection: Connection, kind: type[Repair], repairs: Sequence[Repair], reason: str
) -> Mapping[Repair, Verdict]:
    if len(repairs) < 2:
        return {}
    try:
        with boundary():
            return kind.apply_together(connection, repairs, reason)
    except StoreUnavailable:
        raise
    except StoreError:  # one of them cannot be done: each alone reports why
        return {}
    finally:
        connection.rollback()


def _alone(connection: Connection, repair: Repair, looked: Verdict, reason: str) -> Verdict:
    try:
        return repair.apply(connection, reason)
    except Contended as error:  # the other repairs go on
        connection.rollback()
        return Verdict(State.CANNOT, f"not {looked.said}: {error}; run it again")


def store_id(connection: Connection) -> str:
    """Return the store's id, as reports name it."""
    with boundary():
        found: str = connection.execute(select(store_identity.c.id)).scalar_one()
        connection.rollback()
    return found


def note(connection: Connection, subject: str, how: str, reason: str) -> None:
    """Add a repair to the audit. The SQL transaction is the caller's."""
    note_each(connection, [subject], how, reason)


def note_each(connection: Connection, subjects: Sequence[str], how: str, reason: str) -> None:
    """Add several repairs to the audit, at least one."""
    audit.note_each(connection, Action.REPAIR, [(each, {"repair": how, "reason": reason}) for each in subjects])


def named(half_id: int, address: str, group: str) -> str:
    """Return the text that names a delivery."""
    return f"message {half_id} to {address}{f'::{group}' if group else ''}"


def add_op(connection: Connection, decision: str, reason: str, covers: Sequence[tuple[int, int]]) -> None:
    """Add the op of a repair that decides no transaction; ``covers``: halves and groups. The SQL transaction is the
    caller's."""
    add_ops(connection, decision, reason, [covers])


def add_ops(connection: Connection, decision: str, reason: str, repairs: Sequence[Sequence[tuple[int, int]]]) -> None:
    """Add the ops of several such repairs, at least one."""
    ids, rows = UuidV7(), []
    for covers in repairs:
        half_ids, group_ids = map(list, zip(*covers, strict=True))
        row = {"id": UUID(bytes=ids.next()), "decision": decision, "reason": reason}
        rows.append({**row, "half_ids": half_ids, "group_ids": group_ids})
    connection.execute(insert(op), rows)


# Repairs of deliveries (R34): released from an instance that has ended, or delivered again.

#: Locked so that repairs of deliveries run one after the other: two of one delivery would both find it lost.
_LOCK: Final = 0x636F6F72_72657061  # "coorrepa"

#: Joins the consumer groups of the wanted deliveries.
_PLACES: Final = f"""from unnest(cast(:halves as int8[]), cast(:addresses as text[]), cast(:groups as text[]))
                          with ordinality w(half_id, address, name, place)
          join {SCHEMA}.address a on a.name = w.address
          join {SCHEMA}.consumer_group g on g.address_id = a.id and g.name = w.name"""
#: Selects the entry of each delivery. An entry has the id of its half, or a later one: those not found by the id of the
#: half are searched together, once.
_LEASES: Final = f"""with wanted as materialized (
      select w.place, w.half_id, g.id as group_id, e.id as entry_id, e.lease, e.message_group {_PLACES}
        left join lateral (select * from {SCHEMA}.entry e
          where e.group_id = g.id and e.id = w.half_id and e.half_id = w.half_id offset 0) e on true),
    later as materialized (
      select e.group_id, e.half_id, e.id, e.lease, e.message_group
        from (select group_id, array_agg(half_id) as halves, min(half_id) as first
                from wanted where entry_id is null group by group_id) w
       cross join lateral (select * from {SCHEMA}.entry e
         where e.group_id = w.group_id and e.id > w.first and e.half_id = any(w.halves) offset 0) e)
    select w.place, w.group_id, coalesce(w.entry_id, l.id) as entry_id, coalesce(w.lease, l.lease) as lease,
           coalesce(w.message_group, l.message_group) as message_group,
           exists (select from {SCHEMA}.instance i
                    where i.id = coalesce(w.lease, l.lease) and i.ended_at is null) as alive
      from wanted w
      left join lateral (select * from later l where w.entry_id is null and l.group_id = w.group_id
                           and l.half_id = w.half_id order by l.id limit 1) l on true"""
_GROUPS: Final = f"select w.place, g.id as group_id, a.id as address_id, a.kind {_PLACES}"


@dataclass(frozen=True)
class _OfDelivery(Repair):
    half_id: int
    address: str
    group: str

    @property
    def _named(self) -> str:
        return named(self.half_id, self.address, self.group)


def _found(connection: Connection, places: str, repairs: Sequence[_OfDelivery]) -> dict[_OfDelivery, Row[Any]]:
    """Return the rows of the repairs whose groups exist."""
    wanted = {
        "halves": [each.half_id for each in repairs],
        "addresses": [each.address for each in repairs],
        "groups": [each.group for each in repairs],
    }
    with boundary():
        return {repairs[row.place - 1]: row for row in connection.execute(text(places), wanted)}


@contextmanager
def _one_by_one(connection: Connection) -> Iterator[None]:
    # lock order: d
    connection.execute(select(func.pg_advisory_lock(_LOCK)))
    connection.commit()
    try:
        yield
    finally:
        connection.rollback()
        connection.execute(select(func.pg_advisory_unlock(_LOCK)))
        connection.commit()


@dataclass(frozen=True)
class Release(_OfDelivery):
    """Releases a delivery that is leased by an instance which has ended (R16), as the service does at its start.

    On an address of kind fifo all that such instances have of its message group is released.
    """

    def examine(self, connection: Connection) -> Verdict:
        return self.examine_all(connection, [self])[self]

    @classmethod
    def examine_all(cls, connection: Connection, repairs: Sequence[Self]) -> Mapping[Self, Verdict]:
        found = _found(connection, _LEASES, repairs)
        connection.rollback()
        return {each: each._verdict(found.get(each)) for each in repairs}

    def _verdict(self, found: Row[Any] | None) -> Verdict:
        if found is None or found.entry_id is None:
            gone = "the group is" if found is None else "its entry is"
            return Verdict(State.DONE, f"{gone} not there any more: {self._named}")
        if found.lease <= 0:
            return Verdict(State.DONE, f"no instance has it: {self._named}")
        if found.alive:
            return Verdict(State.DONE, f"instance {found.lease}, which runs, has it: {self._named}")
        return Verdict(State.CAN, f"release from instance {found.lease}: {self._named}")

    def apply(self, connection: Connection, reason: str) -> Verdict:
        with boundary():
            found = _found(connection, _LEASES, [self]).get(self)
            verdict = self._verdict(found)
            if found is None or verdict.state is not State.CAN:
                connection.rollback()
                return verdict
            freed = recovery.give_back(connection, found.group_id, found.entry_id)
            if not freed:
                connection.rollback()
                return self.examine(connection)  # another process has done it since
            add_op(connection, "release", reason, [(half_id, found.group_id) for half_id in sorted(freed)])
            note(connection, self._named, "release", reason)
            connection.commit()
        others = f", with {len(freed) - 1} others of its message group" if len(freed) > 1 else ""
        return Verdict(State.DONE, f"released: {self._named}{others}")

    @classmethod
    def apply_together(cls, connection: Connection, repairs: Sequence[Self], reason: str) -> Mapping[Self, Verdict]:
        """Release deliveries without message groups together; a message group is released alone, as a whole."""
        connection.execute(SHORT_WAIT)
        found = _found(connection, _LEASES, repairs)
        stuck = {(row.group_id, row.entry_id) for row in found.values() if row.lease and row.message_group is None}
        if not stuck:
            return {}
        freed = set(recovery.give_back_each(connection, sorted(stuck)))
        done = [each for each in repairs if each in found and (found[each].group_id, each.half_id) in freed]
        if done:
            covers = [[(each.half_id, found[each].group_id)] for each in done]
            add_ops(connection, "release", reason, covers)
            note_each(connection, [each._named for each in done], "release", reason)
        connection.commit()
        return {each: Verdict(State.DONE, f"released: {each._named}") for each in done}


class _To(NamedTuple):
    """The group that gets a message, and the terms of its entry."""

    group_id: int
    terms: DeliveryTerms
    fifo: bool


@dataclass(frozen=True)
class Requeue(_OfDelivery):
    """Inserts an entry for a committed message that a consumer group has lost (R13). ``terms_of`` returns its terms."""

    terms_of: TermsOf

    def examine(self, connection: Connection) -> Verdict:
        return self.examine_all(connection, [self])[self]

    @classmethod
    def examine_all(cls, connection: Connection, repairs: Sequence[Self]) -> Mapping[Self, Verdict]:
        found = _DeliveryLook(connection, repairs, lock=False).verdicts()
        connection.rollback()
        return {each: found[each][0] for each in repairs}

    def apply(self, connection: Connection, reason: str) -> Verdict:
        return self._apply(connection, [self], reason)[self]

    @classmethod
    def apply_together(cls, connection: Connection, repairs: Sequence[Self], reason: str) -> Mapping[Self, Verdict]:
        return cls._apply(connection, repairs, reason)

    @classmethod
    def _apply(cls, connection: Connection, repairs: Sequence[Self], reason: str) -> Mapping[Self, Verdict]:
        with boundary(), kept(connection), _one_by_one(connection):
            # one snapshot: a delivery that ends meanwhile still has its entry, or already its op
            connection.execute(text("set transaction isolation level repeatable read"))
            found = _DeliveryLook(connection, repairs, lock=True).verdicts()
            lost = [(each, to) for each, (_, to) in found.items() if to is not None]
            if lost:
                connection.execute(insert(entry).values([each._entry(to) for each, to in lost]))
                add_ops(connection, "release", reason, [[(each.half_id, to.group_id)] for each, to in lost])
                note_each(connection, [each._named for each, _ in lost], "deliver", reason)
                connection.execute(select(func.pg_notify(channels.DUE, "")))
            connection.commit()
        delivered = {each: Verdict(State.DONE, f"delivered again: {each._named}") for each, _ in lost}
        return {each: delivered.get(each, found[each][0]) for each in repairs}

    def _entry(self, to: _To) -> dict[str, Any]:
        return {
            "group_id": to.group_id,
            "id": self.half_id,
            "half_id": self.half_id,
            # due now: the schedule gives it an id above all that an instance has read
            "available_at": func.now(),
            "expires_at": time_of(to.terms.expires),
            "priority": to.terms.priority,
            "message_group": key_of(to.terms, self.half_id) if to.fifo else None,
            "acquired": True,
        }


class _DeliveryLook:
    """Determines what can be delivered again, and how.

    The SQL transaction is the caller's. ``lock``: the groups cannot be removed before its end.
    """

    def __init__(self, connection: Connection, repairs: Sequence[Requeue], *, lock: bool) -> None:
        self._connection = connection
        self._repairs = repairs
        self._messages = history.messages(connection, sorted({each.half_id for each in repairs}))
        # lock order: 8
        locked = " order by g.id for key share of g" if lock else ""
        self._groups = _found(connection, _GROUPS + locked, repairs)
        with boundary():
            self._now = connection.execute(select(func.now())).scalar_one()

    def verdicts(self) -> dict[Requeue, tuple[Verdict, _To | None]]:
        found: dict[Requeue, tuple[Verdict, _To | None]] = {}
        committed = self._committed()
        deliveries = None
        if committed:
            addresses = {half_id: self._messages[half_id].address_id for half_id in committed}
            deliveries = traces.deliveries(self._connection, addresses, max(committed.values()), self._now)
        for each in self._repairs:
            message, group = self._messages.get(each.half_id), self._groups.get(each)
            if message is None or group is None or group.address_id != message.address_id:
                gone = "the message" if message is None else "the group"
                found[each] = Verdict(State.CANNOT, f"{gone} is not there any more: {each._named}"), None
            elif deliveries is None or each.half_id not in committed:
                found[each] = Verdict(State.CANNOT, f"its transaction is not committed: {each._named}"), None
            else:
                found[each] = self._verdict(each, message, group, deliveries)
        return found

    def _committed(self) -> dict[int, datetime]:
        """Return when each committed message was committed."""
        ids = sorted({message.txn_id for message in self._messages.values() if message.txn_id is not None})
        decided = history.decisions(self._connection, ids) if ids else {}
        found = {}
        for message in self._messages.values():
            if message.txn_id is None:
                found[message.half_id] = message.posted_at
            elif message.txn_id in decided and decided[message.txn_id].decision == "commit":
                found[message.half_id] = decided[message.txn_id].decided_at
        return found

    def _verdict(
        self, repair: Requeue, message: Message, group: Row[Any], deliveries: traces.Deliveries
    ) -> tuple[Verdict, _To | None]:
        its = (repair.half_id, group.group_id)
        if any((waits.half_id, waits.group_id) == its for waits in deliveries.places):
            return Verdict(State.DONE, f"waits, or is on its way: {repair._named}"), None
        said = [step.decision for step in deliveries.steps if (step.half_id, step.group_id) == its]
        if sum(each in traces.ENDS for each in said) > said.count("replay"):  # which takes an end back
            return Verdict(State.DONE, f"came to its end: {repair._named}"), None
        fifo = group.kind == "fifo"
        terms = repair.terms_of(self._connection, message, fifo)
        expires = time_of(terms.expires)
        if expires is not None and expires <= self._now:
            return Verdict(State.CANNOT, f"its time is over: {repair._named}"), None
        return Verdict(State.CAN, f"deliver {repair._named}"), _To(group.group_id, terms, fifo)


# Repairs of undecided transactions (R34): decided as in the book, or checked again.

#: Selects the decision of each transaction, if it has one, and the row of an undecided one.
_KNOWN: Final = text(
    f"""select a.id, o.decision, o.reason, o.decided_at, t.id is not null as listed, t.producer_group, t.checks,
               t.most_checks, t.next_check_at
          from unnest(cast(:ids as uuid[])) a(id)
          left join lateral (select o.decision, o.reason, o.decided_at from {SCHEMA}.op o
            where o.id = a.id and o.decision in ('commit', 'rollback') limit 1) o on true
          left join {SCHEMA}.txn t on t.id = any(array[a.id])"""
)
#: Selects checkable transactions that no other session decides now. Lock order: 3, skipping those that are locked.
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
    """Return the decision and the row in ``txn`` of each transaction."""
    with boundary():
        connection.execute(BY_KEY)
        found = {row.id: row for row in connection.execute(_KNOWN, {"ids": list(ids)})}
        connection.rollback()
    return found


@dataclass(frozen=True)
class Decide(Repair):
    """Decides an undecided transaction as in the book (R22); ``decision``: ``commit`` or ``rollback``.

    ``contradicted``: the books have the other decision for another of its messages; then a person must decide."""

    txn_id: UUID
    decision: str
    contradicted: bool = False

    def examine(self, connection: Connection) -> Verdict:
        return self._verdict(_known(connection, [self.txn_id])[self.txn_id])

    @classmethod
    def examine_all(cls, connection: Connection, repairs: Sequence[Self]) -> Mapping[Self, Verdict]:
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
            stands = self.examine(connection)
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
    """Begins the checks of an overdue transaction anew (R10, H10), if the report found that all were sent."""

    txn_id: UUID
    seen_at: datetime

    def examine(self, connection: Connection) -> Verdict:
        return self._verdict(_known(connection, [self.txn_id])[self.txn_id])

    @classmethod
    def examine_all(cls, connection: Connection, repairs: Sequence[Self]) -> Mapping[Self, Verdict]:
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
        """Begin the checks anew. No op has the ``reason``, as this decides nothing; the audit has it."""
        with undecided.waiting(connection, self.txn_id):
            found = _resume(connection, [self.txn_id], self.seen_at)
            if found:
                note(connection, str(self.txn_id), "resume", reason)
            connection.commit()
        return self._resumed if found else self.examine(connection)

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
    """Begin the checks anew. Returns the transactions concerned; the SQL transaction is the caller's."""
    begun = update(txn).where(txn.c.id.in_(ids), txn.c.next_check_at <= seen_at, txn.c.checks >= txn.c.most_checks)
    return list(connection.scalars(begun.values(checks=0, next_check_at=func.now()).returning(txn.c.id)))


# Lost dead letters: an op records that a delivery was given up, and its letter is not in the store (R17, R34).
#
# The message itself is kept, as the half that the op names: it is replayed to the group that failed it, as
# ``coordinator dead-letters replay`` does. A letter has the moment of its op, and an annotation with the half
# that it was: so it is known which of the letters of one moment is lost.


class _Lost(NamedTuple):
    """A delivery without its letter, and the group it is replayed to; None: that cannot be done any more."""

    step: Step
    name: str
    goal: dead_letters.Goal | None


@dataclass(frozen=True)
class Replay(Repair):
    """Replays the messages whose letters are lost, of the moment at which the group gave up this half.

    ``box_of``: returns the address of the letters of an address and group; ``mark_of``: returns octets that only
    letters of a half have in their annotations.
    """

    half_id: int
    group: str
    box_of: Callable[[str, str], str]
    mark_of: Callable[[int], bytes]
    terms_of: TermsOf

    def examine(self, connection: Connection) -> Verdict:
        return self.examine_all(connection, [self])[self]

    @classmethod
    def examine_all(cls, connection: Connection, repairs: Sequence[Self]) -> Mapping[Self, Verdict]:
        found = _LetterState(connection, repairs).verdicts()
        connection.rollback()
        return {each: found[each][0] for each in repairs}

    def apply(self, connection: Connection, reason: str) -> Verdict:
        try:
            return self._apply(connection, [self], reason)[self]
        except AddressGone as error:
            connection.rollback()
            return Verdict(State.CANNOT, str(error))

    @classmethod
    def apply_together(cls, connection: Connection, repairs: Sequence[Self], reason: str) -> Mapping[Self, Verdict]:
        connection.execute(SHORT_WAIT)
        return cls._apply(connection, repairs, reason)

    @classmethod
    def _apply(cls, connection: Connection, repairs: Sequence[Self], reason: str) -> Mapping[Self, Verdict]:
        """:raises AddressGone: an address or a group that one of the messages goes to is removed."""
        with boundary(), dead_letters.alone(connection) as half_ids:
            look = _LetterState(connection, repairs)
            found = look.verdicts()
            # repairs of one moment have the same letters
            can = {(each.step.half_id, each.step.group_id): each for _, lost in found.values() for each in lost}
            if can:
                terms_of = repairs[0].terms_of
                messages = []
                for each in can.values():
                    assert each.goal is not None
                    terms = terms_of(connection, look.message(each.step.half_id), each.goal.fifo)
                    messages.append((each.step.half_id, each.goal, terms))
                dead_letters.post_anew(connection, messages, half_ids, UuidV7())
                add_ops(connection, "release", reason, [[delivery] for delivery in can])
                note_each(connection, [each.name for each in can.values()], "replay", reason)
                connection.commit()
        return {each: _done(*found[each]) for each in repairs}


def _done(verdict: Verdict, replayed: Sequence[_Lost]) -> Verdict:
    if not replayed:
        return verdict
    return Verdict(State.DONE, f"replayed: {', '.join(each.name for each in replayed)}")


class _LetterState:
    """Determines what can be replayed, and how; reads each table once for all. The SQL transaction is the caller's."""

    def __init__(self, connection: Connection, repairs: Sequence[Replay]) -> None:
        self._connection = connection
        self._repairs = repairs
        self._messages = history.messages(connection, sorted({each.half_id for each in repairs}))
        with boundary():
            self._now = connection.execute(select(func.now())).scalar_one()
        self._goal = cache(lambda address, group: dead_letters.goal(connection, address, group))

    def message(self, half_id: int) -> history.Message:
        return self._messages[half_id]

    def verdicts(self) -> dict[Replay, tuple[Verdict, Sequence[_Lost]]]:
        """Return the verdict of each repair, and the lost letters that it can replay."""
        moments = self._moments()
        lost = self._lost(sorted(set().union(*moments.values())))
        found: dict[Replay, tuple[Verdict, Sequence[_Lost]]] = {}
        for each in self._repairs:
            if each not in moments:
                found[each] = Verdict(State.CANNOT, f"message {each.half_id} is not there any more"), ()
            elif not moments[each]:
                said = f"no group of this name has given it up: message {each.half_id}"
                found[each] = Verdict(State.CANNOT, said), ()
            else:
                ours = [one for one in lost if one.step.decided_at in moments[each]]
                found[each] = _verdict(each.half_id, ours)
        return found

    def _moments(self) -> dict[Replay, set[datetime]]:
        """Return when the group gave up the half, for each repair whose message is kept."""
        there = [each for each in self._repairs if each.half_id in self._messages]
        if not there:
            return {}
        addresses = {half_id: message.address_id for half_id, message in self._messages.items()}
        last = max(message.posted_at for message in self._messages.values())
        found = traces.deliveries(self._connection, addresses, last, self._now)
        given_up: dict[tuple[int, str], set[datetime]] = {}
        for step in found.steps:
            if step.decision == "dead-letter":
                _, group = found.names.get(step.group_id, ("", ""))
                given_up.setdefault((step.half_id, group), set()).add(step.decided_at)
        return {each: given_up.get((each.half_id, each.group), set()) for each in there}

    def _lost(self, moments: Sequence[datetime]) -> list[_Lost]:
        """Return the deliveries given up at these moments, in order, that have no letter and were not replayed."""
        if not moments:
            return []
        connection, since = self._connection, moments[0] - SLACK
        given_up = "o.decision = 'dead-letter' and o.decided_at = any(cast(:at as timestamptz[]))"
        ended = traces.steps(connection, given_up, since, moments[-1] + SLACK, at=list(moments))
        ended.sort(key=lambda step: step.decided_at)
        replayed = traces.steps(
            connection,
            "o.decision = 'release' and starts_with(o.reason, :reason) and u.half_id = any(cast(:halves as int8[]))",
            since,
            self._now + SLACK,
            reason=REASON,
            halves=[step.half_id for step in ended],
        )
        last: dict[tuple[int, int], datetime] = {}
        for step in replayed:
            delivery = step.half_id, step.group_id
            last[delivery] = max(step.decided_at, last.get(delivery, step.decided_at))
        names = traces.group_names(connection, sorted({step.group_id for step in ended}))
        box_of, mark_of = self._repairs[0].box_of, self._repairs[0].mark_of
        boxes = {group_id: box_of(*name) for group_id, name in names.items()}
        letters: dict[tuple[datetime, str], list[bytes]] = {}
        for letter in history.written_at(connection, moments, sorted(set(boxes.values()))):
            letters.setdefault((letter.posted_at, letter.address), []).append(letter.front)
        self._messages |= history.messages(connection, sorted({step.half_id for step in ended}))
        lost = []
        for step in ended:
            fronts = letters.get((step.decided_at, boxes[step.group_id]), ())
            is_there = any(mark_of(step.half_id) in front for front in fronts)
            again = last.get((step.half_id, step.group_id))
            if not is_there and (again is None or again <= step.decided_at):
                address, group = names[step.group_id]
                goal = self._goal(address, group)
                if goal is not None and (goal.group != step.group_id or step.half_id not in self._messages):
                    goal = None
                lost.append(_Lost(step, named(step.half_id, address, group), goal))
        return lost


def _verdict(half_id: int, lost: Sequence[_Lost]) -> tuple[Verdict, Sequence[_Lost]]:
    if not lost:
        return Verdict(State.DONE, f"its letter is there, or it was replayed: message {half_id}"), ()
    can = [each for each in lost if each.goal is not None]
    if not can:
        names = ", ".join(each.name for each in lost)
        return Verdict(State.CANNOT, f"the message, or its group, is not there any more: {names}"), ()
    return Verdict(State.CAN, f"replay {', '.join(each.name for each in can)}"), can
