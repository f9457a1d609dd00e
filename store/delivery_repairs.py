"""Repairs of deliveries (R34): given back by an instance that is gone, or delivered again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, Self

from sqlalchemy import Connection, Row, func, insert, select, text

from store import channels, history, returned, traces
from store.commit.terms import Terms, key_of
from store.errors import boundary
from store.history import Message
from store.repairs import SHORT_WAIT, Repair, State, TermsOf, Verdict, named, note, note_each, tell, tell_each
from store.retention import kept
from store.seeks import time_of
from store.tables import SCHEMA, entry

#: Repairs of deliveries one after the other: two of one delivery would both find it lost.
_LOCK: Final = 0x636F6F72_72657061  # "coorrepa"

#: The groups that deliveries go to, and the entry of each; an entry has the id of its half, or got a later one.
_PLACES: Final = f"""from unnest(cast(:halves as int8[]), cast(:addresses as text[]), cast(:groups as text[]))
                          with ordinality w(half_id, address, name, place)
          join {SCHEMA}.address a on a.name = w.address
          join {SCHEMA}.consumer_group g on g.address_id = a.id and g.name = w.name"""
#: Those that are not found by the id of the half are looked for together, once.
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
    """The rows about those whose groups are there."""
    wanted = {
        "halves": [each.half_id for each in repairs],
        "addresses": [each.address for each in repairs],
        "groups": [each.group for each in repairs],
    }
    with boundary():
        return {repairs[row.place - 1]: row for row in connection.execute(text(places), wanted)}


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


@dataclass(frozen=True)
class Release(_OfDelivery):
    """Give back a delivery that is leased by an instance which is gone (R16), as the service does at its start; on an
    address of kind fifo with what it has of the message group.
    """

    def look(self, connection: Connection) -> Verdict:
        return self.look_together(connection, [self])[self]

    @classmethod
    def look_together(cls, connection: Connection, repairs: Sequence[Self]) -> Mapping[Self, Verdict]:
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
            freed = returned.give_back(connection, found.group_id, found.entry_id)
            if not freed:
                connection.rollback()
                return self.look(connection)  # another has done it since
            tell(connection, "release", reason, [(half_id, found.group_id) for half_id in sorted(freed)])
            note(connection, self._named, "release", reason)
            connection.commit()
        others = f", with {len(freed) - 1} others of its message group" if len(freed) > 1 else ""
        return Verdict(State.DONE, f"released: {self._named}{others}")

    @classmethod
    def apply_together(cls, connection: Connection, repairs: Sequence[Self], reason: str) -> Mapping[Self, Verdict]:
        """A message group comes back alone, as a whole."""
        connection.execute(SHORT_WAIT)
        found = _found(connection, _LEASES, repairs)
        stuck = {(row.group_id, row.entry_id) for row in found.values() if row.lease and row.message_group is None}
        if not stuck:
            return {}
        freed = set(returned.give_back_each(connection, sorted(stuck)))
        done = [each for each in repairs if each in found and (found[each].group_id, each.half_id) in freed]
        if done:
            covers = [[(each.half_id, found[each].group_id)] for each in done]
            tell_each(connection, "release", reason, covers)
            note_each(connection, [each._named for each in done], "release", reason)
        connection.commit()
        return {each: Verdict(State.DONE, f"released: {each._named}") for each in done}


class _To(NamedTuple):
    """How a group gets a message."""

    group_id: int
    terms: Terms
    fifo: bool


@dataclass(frozen=True)
class Requeue(_OfDelivery):
    """Give a consumer group the entry of a committed message that it has lost (R13). ``terms_of``: on which terms."""

    terms_of: TermsOf

    def look(self, connection: Connection) -> Verdict:
        return self.look_together(connection, [self])[self]

    @classmethod
    def look_together(cls, connection: Connection, repairs: Sequence[Self]) -> Mapping[Self, Verdict]:
        found = _Look(connection, repairs, lock=False).verdicts()
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
            # as of one moment: a delivery that ends while this looks has its entry still, or its op
            connection.execute(text("set transaction isolation level repeatable read"))
            found = _Look(connection, repairs, lock=True).verdicts()
            lost = [(each, to) for each, (_, to) in found.items() if to is not None]
            if lost:
                connection.execute(insert(entry).values([each._entry(to) for each, to in lost]))
                tell_each(connection, "release", reason, [[(each.half_id, to.group_id)] for each, to in lost])
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
            # due now: the schedule gives it a place above all that an instance has read
            "available_at": func.now(),
            "expires_at": time_of(to.terms.expires),
            "priority": to.terms.priority,
            "message_group": key_of(to.terms, self.half_id) if to.fifo else None,
            "acquired": True,
        }


class _Look:
    """What can be delivered again, and how. The SQL transaction is the caller's; ``lock``: the groups stay until its
    end.
    """

    def __init__(self, connection: Connection, repairs: Sequence[Requeue], *, lock: bool) -> None:
        self._connection = connection
        self._repairs = repairs
        self._messages = history.messages(connection, sorted({each.half_id for each in repairs}))
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
        """When each message was committed that was."""
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
