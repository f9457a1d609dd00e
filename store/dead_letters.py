"""List, read and replay dead letters (rule D4); lease the failed entries that instances convert to dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from sqlalchemy import BigInteger, Connection, Select, any_, cast, delete, func, insert, select, text
from sqlalchemy.dialects.postgresql import ARRAY

from store import audit, channels, counts, partitions
from store.asking import Query, nothing
from store.audit import Action
from store.commit.terms import DeliveryTerms, key_of
from store.errors import AddressGone, boundary
from store.ids import ADMINISTRATION, HalfIds, UuidV7, moment_of
from store.keys import BY_KEY, keys_of, listed
from store.libpq import int4
from store.questions.columns import MESSAGE, SIZE, WHOLE
from store.recovery import held
from store.tables import SCHEMA, address, consumer_group, entry, half, op

if TYPE_CHECKING:
    from store.asking import Queries, Row
    from store.errors import StoreError


#: The reason of the ops that a replay adds: one for the letters, one for the groups that do not get the message again.
REPLAYED = "replayed"

#: Letters replayed in one SQL transaction.
CHUNK = 100
#: The octets of a message that are read at first to find where it came from.
HEAD_OCTETS = 1 << 16
#: above all ids of entries
_NO_ID = 1 << 63

#: Replays one after the other: they share the slot of their ids.
_LOCK = 0x636F6F72_7265706C  # "coorrepl"

#: Why a hundred letters stay.
_REMOVED = "an address or group that letters go to was removed meanwhile; again, the others go"


@dataclass(frozen=True, kw_only=True)
class Box:
    """An address of dead letters."""

    name: str
    letters: int
    #: beyond those that are counted, as of :class:`store.counts.Counts`
    more: int | None
    #: when the oldest one became a dead letter
    oldest: datetime | None


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A dead letter.

    ``id``: of its entry, while everything else names it by its ``half_id``; ``head``: the message, or its beginning;
    ``size`` in octets.
    """

    id: int
    half_id: int
    head: bytes
    size: int

    @property
    def since(self) -> datetime:
        return moment_of(self.half_id)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """Where a letter is replayed to. ``group``: the consumer group that gets it; None: all groups of the address."""

    address_id: int
    group: int | None
    #: the address is of kind fifo: entries have a message group
    fifo: bool


#: Decides where a letter is replayed to, and on which terms; a text is the reason why it stays. None: it is not asked
#: for.
Decide = Callable[[Stored], tuple[Goal, DeliveryTerms] | str | None]
_Moved = tuple[Stored, Goal, DeliveryTerms]


@dataclass(frozen=True, kw_only=True)
class ReplayRest:
    """The letters that a replay has not looked at: those whose entries have an id above ``after``, up to ``until``."""

    after: int
    until: int


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """The result of a replay. ``ids``: halves of the replayed letters; ``left``: the others, each with the reason;
    ``next``: where to go on, if its time was over before all were looked at.
    """

    ids: tuple[int, ...]
    left: tuple[tuple[int, str], ...]
    next: ReplayRest | None = None


def boxes(connection: Connection, *, after: str | None = None, most: int | None = None) -> list[Box]:
    """Return the addresses of dead letters, by name: those behind ``after``, and ``most`` at most."""
    query = select(address.c.name, consumer_group.c.id).join_from(address, consumer_group).where(*_OF_LETTERS)
    if after is not None:
        query = query.where(address.c.name > after)
    with boundary():
        rows = connection.execute(query.order_by(address.c.name).limit(most)).all()
        counted = counts.of_groups(connection, [row.id for row in rows])
    return [_box(row.name, counted[row.id]) for row in rows if row.id in counted]


_OF_LETTERS = address.c.origin == "dead-letter", consumer_group.c.name == ""


def _box(name: str, line: counts.Line) -> Box:
    oldest = None if line.first is None else moment_of(line.first)
    return Box(name=name, letters=line.counts.counted, more=line.counts.more, oldest=oldest)


def group_of(connection: Connection, name: str) -> int | None:
    """Return the consumer group that has the letters of this address; None: it is no address of dead letters."""
    with boundary():
        return connection.scalar(
            select(consumer_group.c.id)
            .join(address, address.c.id == consumer_group.c.address_id)
            .where(address.c.name == name, *_OF_LETTERS)
        )


def letters(
    connection: Connection, group: int, *, ids: Sequence[int] | None = None, above: int = 0, most: int = CHUNK
) -> list[Stored]:
    """Return the letters of a group with an entry id above ``above``, the oldest first. ``ids``: of their halves; None:
    all.
    """
    with boundary():
        rows = connection.execute(_letters(group, ids).where(entry.c.id > above).limit(most)).all()
    return [Stored(**row._mapping) for row in rows]


def _letters(group: int, ids: Sequence[int] | None) -> Select[tuple[int, int, bytes, int]]:
    wanted = (
        select(
            entry.c.id,
            entry.c.half_id,
            func.substr(half.c.message, 1, HEAD_OCTETS).label("head"),
            func.octet_length(half.c.message).label("size"),
        )
        .join(half, half.c.id == entry.c.half_id)
        .where(entry.c.group_id == group)
        .order_by(entry.c.id)
    )
    if ids is None:
        return wanted
    possible = [each for each in ids if 0 < each < _NO_ID]
    return wanted.where(entry.c.half_id == any_(cast(possible, ARRAY(BigInteger))))


def message(connection: Connection, half_id: int, most: int = 1 << 30) -> bytes:
    """Return the encoded AMQP message of a letter, or its first ``most`` octets."""
    beginning = func.substr(half.c.message, 1, most)
    with boundary():
        return bytes(connection.execute(select(beginning).where(half.c.id == half_id)).scalar_one())


def head(connection: Connection, half_id: int) -> bytes | None:
    """Return the beginning of a message; None: the store does not have it."""
    beginning = func.substr(half.c.message, 1, HEAD_OCTETS)
    with boundary():
        found = connection.scalar(select(beginning).where(half.c.id == half_id))
    return None if found is None else bytes(found)


def goal(connection: Connection, name: str, group_name: str | None) -> Goal | None:
    """Find where a letter is replayed to; None if there is no such address, or no such group of it.

    ``group_name``: the one group that gets the message (``''``: the default one); None: all groups.
    """
    with boundary():
        found = connection.execute(select(address.c.id, address.c.kind).where(address.c.name == name)).one_or_none()
        if found is None:
            return None
        group = None
        if group_name is not None:
            group = connection.scalar(
                select(consumer_group.c.id).where(
                    consumer_group.c.address_id == found.id, consumer_group.c.name == group_name
                )
            )
            if group is None:
                return None
    return Goal(address_id=found.id, group=group, fifo=found.kind == "fifo")


def group_names(connection: Connection, name: str) -> list[str]:
    """Return the names of an address's groups."""
    with boundary():
        return list(
            connection.scalars(
                select(consumer_group.c.name)
                .join(address, address.c.id == consumer_group.c.address_id)
                .where(address.c.name == name)
            )
        )


@contextmanager
def alone(connection: Connection) -> Iterator[HalfIds]:
    """Provide ids of new halves; one process at a time has the slot of administration."""
    # lock order: d
    connection.execute(select(func.pg_advisory_lock(_LOCK)))
    try:
        yield HalfIds(ADMINISTRATION, above=connection.scalar(select(func.max(half.c.id))) or 0)
    finally:
        connection.rollback()
        connection.execute(select(func.pg_advisory_unlock(_LOCK)))
        connection.rollback()


def replay(
    connection: Connection,
    group: int,
    ids: Sequence[int] | None,
    decide: Decide,
    *,
    after: int = 0,
    until: int | None = None,
    seconds: float | None = None,
    told: Mapping[str, object] | None = None,
) -> Replayed:
    """Post letters of a group anew where they came from; commits after each hundred.

    ``ids``: of their halves; None: all letters there are now. ``after``, ``until``: of the :class:`ReplayRest` of
    another replay, which this one goes on with. ``seconds``: after so long no hundred begins but the first; None: no
    limit.
    ``told``: what the audit has beside the ids.

    A letter is posted and leaves the dead letters in one SQL transaction. Its message is a new half; the groups of its
    address that do not get it are in an op. A letter that an instance holds for a consumer stays; one that an instance
    reads at that moment may still be delivered, and its retirement is then refused (D10).
    """
    done: list[int] = []
    left: list[tuple[int, str]] = []
    partitions.make_ahead(connection)  # the service, which makes them, may have been stopped for weeks
    with boundary(), alone(connection) as half_ids:
        uuids = UuidV7()
        box_name = connection.scalar(select(address.c.name).join(consumer_group).where(consumer_group.c.id == group))
        newest = select(func.max(entry.c.id)).where(entry.c.group_id == group)
        last = (connection.scalar(newest) or 0) if until is None else until
        wanted = _letters(group, ids).where(entry.c.id <= last).limit(CHUNK)
        above, end, rest = after, inf if seconds is None else time.monotonic() + seconds, None
        while rows := connection.execute(wanted.where(entry.c.id > above)).all():
            if above > after and time.monotonic() > end:
                rest = ReplayRest(after=above, until=last)
                break
            above = rows[-1].id
            goals, stay = _decided([Stored(**row._mapping) for row in rows], decide)
            left += stay
            free = _take(connection, group, [stored.id for stored, _, _ in goals])
            moved = [each for each in goals if each[0].id in free]
            left += [(stored.half_id, "a consumer has it") for stored, _, _ in goals if stored.id not in free]
            try:
                _move(connection, group, moved, half_ids, uuids)
                if moved and not done:
                    audit.note(connection, Action.REPLAY, box_name, {"ids": ids and list(ids), **(told or {})})
            except AddressGone as error:
                connection.rollback()
                left += [(stored.half_id, str(error)) for stored, _, _ in moved]
            else:
                connection.commit()
                done += [stored.half_id for stored, _, _ in moved]
    found = {*done, *(each for each, _ in left)}
    if rest is None and not after:
        left += [(each, "there is no such letter") for each in dict.fromkeys(ids or ()) if each not in found]
    return Replayed(ids=tuple(done), left=tuple(left), next=rest)


def _decided(letters: Sequence[Stored], decide: Decide) -> tuple[list[_Moved], list[tuple[int, str]]]:
    """Return the letters that go somewhere, and the halves of the others, each with the reason."""
    goals: list[_Moved] = []
    stay: list[tuple[int, str]] = []
    for stored in letters:
        goes = decide(stored)
        if goes is None:
            continue
        if isinstance(goes, str):
            stay.append((stored.half_id, goes))
        else:
            goals.append((stored, *goes))
    return goals, stay


def _take(connection: Connection, group: int, ids: Sequence[int]) -> set[int]:
    """Lock the letters that no instance holds, and return their ids.

    It waits for no lock: a batch under way may have locked what it retires, and would wait for the letters locked here.
    From now on rows are looked up by key.
    """
    connection.execute(BY_KEY)
    keys = keys_of([(group, each) for each in ids])
    free = select(entry.c.id).join_from(keys, entry, listed(keys)).where(~held)
    # lock order: 5, skipping those that are locked
    return set(connection.scalars(free.with_for_update(of=entry, skip_locked=True)))


def _move(connection: Connection, group: int, moved: Sequence[_Moved], half_ids: HalfIds, uuids: UuidV7) -> None:
    """Post letters anew and delete their entries. The SQL transaction is the caller's.

    :raises AddressGone: an address or a group that a letter is replayed to was removed.
    """
    if not moved:
        return
    post_anew(connection, [(stored.half_id, to, terms) for stored, to, terms in moved], half_ids, uuids)
    gone = [stored for stored, _, _ in moved]
    connection.execute(delete(entry).where(listed(keys_of([(group, stored.id) for stored in gone]))))
    _accept(connection, [[(stored.half_id, group) for stored in gone]], uuids)


def post_anew(
    connection: Connection, messages: Sequence[tuple[int, Goal, DeliveryTerms]], half_ids: HalfIds, uuids: UuidV7
) -> None:
    """Post the messages of these halves, each to its goal, as new halves with ids of :func:`alone`.

    The SQL transaction is the caller's.

    :raises AddressGone: an address or a group that one of them is posted to was removed.
    """
    _lock(connection, {to.address_id for _, to, _ in messages})
    made = [(half_ids.next(), *each) for each in messages]
    connection.execute(
        text(
            f"insert into {SCHEMA}.half (id, address_id, message) select u.i, u.a, h.message "
            f"from unnest(cast(:ids as int8[]), cast(:addresses as int4[]), cast(:of as int8[])) u(i, a, o) "
            f"join {SCHEMA}.half h on h.id = u.o"
        ),
        {
            "ids": [new for new, _, _, _ in made],
            "addresses": [to.address_id for _, _, to, _ in made],
            "of": [half_id for _, half_id, _, _ in made],
        },
    )
    _enter(connection, [(new, to, terms) for new, _, to, terms in made], uuids)
    connection.execute(select(func.pg_notify(channels.DUE, "")))


def _lock(connection: Connection, addresses: set[int]) -> None:
    """Lock addresses, so that they are not removed before the commit; in the order of ids, as a removal does.

    :raises AddressGone: one of them was removed already.
    """
    ordered = select(address.c.id).where(address.c.id.in_(addresses)).order_by(address.c.id)
    # lock order: 7
    if len(connection.execute(ordered.with_for_update(read=True, key_share=True)).all()) < len(addresses):
        raise AddressGone(_REMOVED)


def _enter(connection: Connection, made: Sequence[tuple[int, Goal, DeliveryTerms]], uuids: UuidV7) -> None:
    """Insert the entries of new halves. They are due now: the schedule gives them ids above all others.

    :raises AddressGone: no group exists that gets one of them.
    """
    groups = {
        address_id: _groups(connection, address_id) for address_id in sorted({to.address_id for _, to, _ in made})
    }
    entries, others = [], []
    for new, to, terms in made:
        chosen = [each for each in groups[to.address_id] if to.group in (None, each)]
        if not chosen:
            raise AddressGone(_REMOVED)
        key = key_of(terms, new) if to.fifo else None
        entries += [
            {"group_id": each, "id": new, "half_id": new, "priority": terms.priority, "message_group": key}
            for each in chosen
        ]
        if left := [(new, each) for each in groups[to.address_id] if each not in chosen]:
            others.append(left)
    connection.execute(insert(entry).values(available_at=func.now()), entries)
    if others:
        _accept(connection, others, uuids)


def _groups(connection: Connection, address_id: int) -> list[int]:
    """Lock the groups of an address, so that they are not removed before the commit; returns their ids."""
    ordered = select(consumer_group.c.id).where(consumer_group.c.address_id == address_id).order_by(consumer_group.c.id)
    # lock order: 8
    return list(connection.scalars(ordered.with_for_update(read=True, key_share=True)))


def _accept(connection: Connection, ended: Sequence[Sequence[tuple[int, int]]], uuids: UuidV7) -> None:
    """Insert an op for each of ``ended``: deliveries by half and group."""
    ops = [
        {
            "id": UUID(bytes=uuids.next()),
            "half_ids": [half_id for half_id, _ in covers],
            "group_ids": [group for _, group in covers],
        }
        for covers in ended
    ]
    connection.execute(insert(op).values(decision="accept", reason=REPLAYED), ops)


# Queries of entries that are marked failed and on their way to the dead letters (rule D4).


class Failed(NamedTuple):
    """An entry marked failed, with what its letter must say."""

    group: int
    id: int
    half_id: int
    failures: int
    #: the reason
    failed: str
    annotations: bytes | None
    #: the message, or the beginning of a large one
    message: bytes | None
    txn_id: bytes | None
    #: ``''``: its address, or group, was removed
    address: str
    group_name: str
    #: size of a large message; 0 for all others
    whole: int


def _failed(rows: list[Row]) -> list[Failed]:
    return [Failed(*row) for row in rows]


#: lease: entries of any group on their way to the dead letters, with what their letter must say; of a large message its
#: beginning. Entries whose half is missing are passed over.
LEASE_FAILED = Query(
    b"lease_failed",
    f"""with picked as (
          select e.group_id, e.id, e.half_id from {SCHEMA}.entry e join {SCHEMA}.half h on h.id = any(array[e.half_id])
           where e.failed is not null and e.lease = 0
           limit 100 for update of e skip locked),
        sized as materialized (
          select p.group_id, p.id, sum({SIZE}) over (order by p.id) - {SIZE} as before
            from picked p join {SCHEMA}.half h on h.id = any(array[p.half_id])),
        leased as (
          update {SCHEMA}.entry e set lease = $1::int4 from sized s
           where e.group_id = any(array[s.group_id]) and e.id = s.id and s.before < 4194304
          returning e.group_id, e.id, e.half_id, e.failures, e.failed, e.annotations)
        select l.group_id, l.id, l.half_id, l.failures, l.failed, l.annotations, {MESSAGE}, uuid_send(h.txn_id),
               coalesce(a.name, ''), coalesce(g.name, ''), {WHOLE}
          from leased l join {SCHEMA}.half h on h.id = any(array[l.half_id])
          left join {SCHEMA}.consumer_group g on g.id = any(array[l.group_id])
          left join {SCHEMA}.address a on a.id = any(array[g.address_id])
         order by l.group_id, l.id""",
    _failed,
    again=False,
)

#: lease: gives up the leases of entries marked failed, after the reply that named them was lost
GIVE_BACK_FAILED = Query(
    b"yield_failed",
    f"update {SCHEMA}.entry set lease = 0 where failed is not null and lease = $1::int4",
    nothing,
)


def lease_failed(asked: Queries, instance: int, leased: Callable[[list[Failed] | StoreError], None]) -> None:
    """Lease entries marked failed, of any group: at most a hundred, and some megabytes."""
    asked.ask(LEASE_FAILED, [int4(instance)], leased)


def give_back_failed(asked: Queries, instance: int, given_back: Callable[[StoreError | None], None]) -> None:
    """Give up the instance's leases of entries marked failed."""
    asked.ask(GIVE_BACK_FAILED, [int4(instance)], given_back)
