"""Move a consumer group back, to get again what it had, or forth, to skip what waits (rule H17).

**Decision.** The place of a message is when it was posted: the id of its half. A seek back inserts a new entry for
each message from there on whose delivery to the group has ended; its id is that of the half, so that it precedes newer
messages, in order, also in a message group. A message that waits, or that a consumer has, keeps its entry unchanged.
Dead letters and expired messages stay so. An op ``replay`` records which end of a delivery it takes back: accepted
or purged. Ops have no index by half, so those since the place are read once, piece by piece, into a temporary table.

Each piece is one short SQL transaction, which also writes its progress (table ``seek``): a command that was killed is
run again, and continues there. A delivery that ended after the seek began is not taken back, so that one seek delivers
no message twice. A piece locks the row of this command's instance, then that of the group, and never an existing entry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Subquery, func, insert, select, text, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError

from store import audit, channels, partitions, recovery, retention
from store.audit import Action
from store.commit.terms import BEFORE, INFINITY, DeliveryTerms, key_of
from store.database import BY_INDEX
from store.errors import AddressGone, Contended, Fenced, StoreUnavailable, boundary
from store.ids import LONGEST_UNDECIDED, UuidV7, id_at, moment_of
from store.partitions import op_id_at
from store.purge import throw_away
from store.retention import kept
from store.tables import (
    PASSED_OVER,
    SCHEMA,
    address,
    consumer_group,
    entry,
    group_read,
    half,
    heartbeat,
    instance,
    op,
    seek,
)

# The places a consumer group can be moved to (rule H17): a message or a time, since when messages are kept.


@dataclass(frozen=True, kw_only=True)
class Group:
    """A consumer group that can be moved. ``retention_hours``: of its address; None: the settings decide."""

    id: int
    address_id: int
    fifo: bool
    retention_hours: int | None


def group(connection: Connection, group_id: int) -> Group:
    """Read a group whose id was just found.

    :raises AddressGone: it was removed meanwhile.
    """
    with boundary():
        found = connection.execute(
            select(address.c.id, address.c.kind, address.c.retention_hours)
            .join(consumer_group, consumer_group.c.address_id == address.c.id)
            .where(consumer_group.c.id == group_id)
        ).one_or_none()
        connection.rollback()
    if found is None:
        raise AddressGone("the consumer group was removed meanwhile")
    hours = found.retention_hours
    return Group(id=group_id, address_id=found.id, fifo=found.kind == "fifo", retention_hours=hours)


def has_message(connection: Connection, of: Group, half_id: int) -> bool:
    """Whether the store has this message of the group's address."""
    with boundary():
        found = connection.scalar(select(half.c.id).where(half.c.id == half_id, half.c.address_id == of.address_id))
        connection.rollback()
    return found is not None


def oldest(connection: Connection, of: Group, kept: timedelta) -> datetime | None:
    """Return since when all messages of the group's address are kept; None: nothing was ever dropped.

    ``kept``: how long they are kept, unless the address has a time of its own.
    """
    since = retention.messages_kept_since(connection)
    connection.rollback()
    if since is None:
        return None
    hours = of.retention_hours
    return min(since, now(connection) - (kept if hours is None else timedelta(hours=hours)))


def now(connection: Connection) -> datetime:
    """Return the time by the clock of the database."""
    with boundary():
        moment: datetime = connection.execute(select(func.now())).scalar_one()
        connection.rollback()
    return moment


def waiting_before(connection: Connection, of: Group, to_id: int, most: int) -> int:
    """Count the group's entries of messages before ``to_id`` among the ``most`` that are the next to be delivered."""
    next_ones = select(entry.c.half_id).where(entry.c.group_id == of.id).order_by(entry.c.id).limit(most).subquery()
    return _counted(connection, next_ones, next_ones.c.half_id < to_id)


def posted_since(connection: Connection, of: Group, to_id: int, most: int) -> int:
    """Count the messages of the group's address among the first ``most`` of the store that are ``to_id`` or later."""
    since = select(half.c.address_id).where(half.c.id >= to_id).order_by(half.c.id).limit(most).subquery()
    return _counted(connection, since, since.c.address_id == of.address_id)


def _counted(connection: Connection, rows: Subquery, only: ColumnElement[bool]) -> int:
    with boundary():
        connection.execute(BY_INDEX)
        found = connection.scalar(select(func.count()).select_from(rows).where(only))
        connection.rollback()
    return found or 0


def first_id(moment: datetime) -> int:
    """Return the lowest id of a message posted at ``moment`` (aware) or later."""
    return max(1, id_at(moment))


# A command that counts as an instance with consumers while it runs: then no other instance holds the group whole.
#
# While an instance holds a group whole, entries below the id that it has read count as its own. A command that inserts
# entries there registers like an instance that has consumers of the group: the others lease the entries in hand row by
# row. It holds nothing itself. If its process is killed or suspended for long, the watch gives it up, and ends its
# session, which may have locks.

#: How long the holder of a group may take to share it: longer than until a dead one is given up.
_PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.02


class Presence:
    """Registers this command as an instance. ``instance_id``: the id of its row."""

    def __init__(self, connection: Connection, instance_id: int) -> None:
        self._connection = connection
        self.instance_id = instance_id

    def beat(self) -> None:
        """Write the heartbeat of this command, which is then not given up before the commit.

        The SQL transaction is the caller's.

        :raises Fenced: another instance gave it up.
        """
        alive = select(instance.c.id).where(instance.c.id == self.instance_id, instance.c.ended_at.is_(None))
        # lock order: 2
        if self._connection.scalar(alive.with_for_update(read=True, key_share=True)) is None:
            raise Fenced("this command was taken for dead, as it was stopped for long; run it again to finish")
        self._connection.execute(
            update(heartbeat).where(heartbeat.c.instance_id == self.instance_id).values(beaten_at=func.now())
        )

    def shared(self, group_id: int) -> bool:
        """Wait until no instance holds the group whole. False: the group was removed.

        The row of the group is locked then, so that no instance holds it before the commit of the caller.

        :raises StoreUnavailable: its holder does not share it in time.
        """
        until = time.monotonic() + _PATIENCE_SECONDS
        self._enter(group_id)
        # lock order: 8
        holder = select(consumer_group.c.holder).where(consumer_group.c.id == group_id).with_for_update(read=True)
        while time.monotonic() < until:
            self.beat()
            found = self._connection.scalar(holder)
            if found is None or found == 0:
                return found is not None
            self._connection.execute(select(func.pg_notify(channels.SHARE, str(group_id))))
            self._connection.commit()
            time.sleep(_LOOK_SECONDS)
        raise StoreUnavailable(f"instance {found} holds the consumer group and does not share it; try again")

    def _enter(self, group_id: int) -> None:
        """Write that this command has consumers of the group (:data:`store.questions.entries.HOLD`); commits."""
        self.beat()
        mine = {"group_id": group_id, "instance_id": self.instance_id, "read_through": 0}
        entered = postgresql.insert(group_read).values(mine).on_conflict_do_nothing()
        if self._connection.execute(entered).rowcount:
            # lock order: 8
            group = update(consumer_group).where(consumer_group.c.id == group_id)
            self._connection.execute(group.values(holder=consumer_group.c.holder))
        self._connection.commit()


@contextmanager
def present(connection: Connection, version: str) -> Iterator[Presence]:
    """Register this command as an instance during the block; commits when it begins and when it ends."""
    presence = Presence(connection, recovery.register(connection, version).instance_id)
    name = recovery.session_name("command", presence.instance_id)
    connection.execute(select(func.set_config("application_name", name, False)))
    connection.execute(select(func.pg_notify(channels.READY, channels.ARRIVED)))
    connection.commit()
    try:
        yield presence
    except DBAPIError as error:
        connection.rollback()
        if error.connection_invalidated:
            presence.beat()  # raises Fenced if another instance gave it up and has ended its session
        raise
    finally:
        connection.rollback()
        ours = (instance.c.id == presence.instance_id) & instance.c.ended_at.is_(None)
        connection.execute(update(instance).where(ours).values(ended_at=func.now()))
        connection.execute(text("reset application_name"))
        connection.commit()


#: The reason of the op ``purge`` for messages that a seek forth skips.
SKIPPED = "skipped"
#: The reasons of the op ``replay``: which end it takes back.
ACCEPTED = "accepted"
PURGED = "purged"

#: Messages of one SQL transaction, ops read in one, and octets of each message that are read for its terms.
CHUNK = 1000
OPS = 20_000
HEAD_OCTETS = 4096
#: The pauses before the passes of a seek forth: meanwhile workers that share the group return what they had read ahead.
#: The third and fourth pass follow only while entries are leased, which consumers may have, too.
_LOOKS_AFTER_SECONDS = (0.0, 0.3, 0.7, 1.0)
#: the most that the clocks of instances may differ
_CLOCKS = timedelta(minutes=10)
_POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

_LOCK: Final = 0x7365656B  # "seek"
_GONE: Final = "the consumer group was removed meanwhile"


@dataclass(frozen=True, kw_only=True)
class Head:
    """A stored message, or its beginning; ``size`` in octets."""

    half_id: int
    posted_at: datetime
    head: bytes
    size: int


@dataclass(frozen=True, kw_only=True)
class Seek:
    """A seek under way, or the last one. ``to_id``: the first half that is delivered again, or is not skipped."""

    group_id: int
    back: bool
    to_id: int
    started_at: datetime
    ended_at: datetime | None
    #: messages that are delivered again, or skipped
    moved: int
    #: halves up to this id are done
    position: int
    #: messages that are left unchanged, as they have expired
    expired: int

    def goes_on(self, to_id: int, *, back: bool) -> bool:
        """Whether a seek to this place continues this one, which was interrupted."""
        return self.ended_at is None and (self.back, self.to_id) == (back, to_id)


#: Returns the terms on which a message is delivered again. Times are in microseconds since 2000; ``available`` is
#: ignored.
TermsOf = Callable[[Head], DeliveryTerms]


def all_seeks(connection: Connection) -> dict[int, Seek]:
    """Return the seek under way, or the last one, by group."""
    with boundary():
        return {row.group_id: Seek(**row._mapping) for row in connection.execute(select(seek)).all()}


def interrupted(connection: Connection, group: Group, to_id: int) -> bool:
    """Whether a seek of the group back to this place was begun and has not ended."""
    with boundary():
        found = _last(connection, group)
        connection.rollback()
        return found is not None and found.goes_on(to_id, back=True)


def move_back(
    connection: Connection, group: Group, to_id: int, terms_of: TermsOf, *, version: str, chunk: int = CHUNK
) -> Seek:
    """Deliver again the messages from ``to_id`` on whose delivery to the group has ended; commits piece by piece.

    A seek to the same place that was interrupted is finished; one to another place is forgotten.

    :raises Contended: another seek of the group is under way.
    :raises AddressGone: the group was removed meanwhile.
    """
    with boundary(), _alone(connection, group), kept(connection), present(connection, version) as presence:
        partitions.make_ahead(connection)  # the service, which creates them, may have been stopped for weeks
        begun = _begin(connection, group, to_id, back=True)
        _read_ops(connection, group, begun, presence)
        work = _Back(connection, group, terms_of, presence)
        while (done := work.piece(begun, chunk)) is not None:
            begun = done
        return _end(connection, begun)


def move_forth(connection: Connection, group: Group, to_id: int, *, version: str, chunk: int = CHUNK) -> Seek:
    """Skip the group's waiting messages before ``to_id``; commits piece by piece.

    Messages that a consumer has stay, as do those to be delivered later and those on their way to the dead letters.

    :raises Contended: another seek of the group is under way.
    :raises Fenced: another instance took this command for dead.
    """
    with boundary(), _alone(connection, group), present(connection, version) as presence:
        begun = _begin(connection, group, to_id, back=False)
        presence.shared(group.id)
        connection.commit()
        later = entry.c.available_at.is_not(None) & (entry.c.available_at > func.now()) & (entry.c.attempts == 0)
        only = (entry.c.half_id < to_id) & ~later
        ids = UuidV7()
        moved = begun.moved

        def count(skipped: int) -> None:
            """Write the count, so that the same command continues it if this one is interrupted."""
            nonlocal moved
            moved += skipped
            connection.execute(update(seek).where(seek.c.group_id == group.id).values(moved=moved))

        leased = select(entry.c.id).where(entry.c.group_id == group.id, entry.c.lease != 0, only).limit(1)
        for wait in _LOOKS_AFTER_SECONDS:
            time.sleep(wait)
            throw_away(
                connection, group.id, ids, chunk, only=only, reason=SKIPPED, before_each=presence.beat, after_each=count
            )
            if wait and connection.scalar(leased) is None:
                break
        return _end(connection, replace(begun, moved=moved))


@contextmanager
def _alone(connection: Connection, group: Group) -> Iterator[None]:
    """Allow one seek of a group at a time."""
    key = {"space": _LOCK, "group": group.id}
    # lock order: d
    if not connection.scalar(text("select pg_try_advisory_lock(:space, :group)"), key):
        connection.rollback()
        raise Contended("another seek of this consumer group is under way")
    connection.commit()
    try:
        yield
    finally:
        connection.rollback()
        connection.execute(text("select pg_advisory_unlock(:space, :group)"), key)
        connection.commit()


def _begin(connection: Connection, group: Group, to_id: int, *, back: bool) -> Seek:
    """Write a new seek, or return the one that was interrupted; commits."""
    there = select(consumer_group.c.id).where(consumer_group.c.id == group.id)
    # lock order: 8
    if connection.scalar(there.with_for_update(read=True, key_share=True)) is None:
        raise AddressGone(_GONE)
    _note(connection, group, to_id, back=back)
    found = _last(connection, group)
    if found is not None and found.goes_on(to_id, back=back):
        connection.commit()
        return found
    new = {"back": back, "to_id": to_id, "position": to_id - 1, "moved": 0, "expired": 0, "ended_at": None}
    statement = postgresql.insert(seek).values(group_id=group.id, **new)
    row = connection.execute(
        statement.on_conflict_do_update(index_elements=["group_id"], set_={**new, "started_at": func.now()}).returning(
            seek
        )
    ).one()
    connection.commit()
    return Seek(**row._mapping)


def _note(connection: Connection, group: Group, to_id: int, *, back: bool) -> None:
    named = select(address.c.name.label("address"), consumer_group.c.name.label("group")).join(consumer_group)
    found = connection.execute(named.where(consumer_group.c.id == group.id)).one()
    detail = {"group": found.group, "direction": "back" if back else "forth", "to_id": to_id}
    audit.note(connection, Action.SEEK, found.address, detail)


def _last(connection: Connection, group: Group) -> Seek | None:
    row = connection.execute(select(seek).where(seek.c.group_id == group.id)).one_or_none()
    return None if row is None else Seek(**row._mapping)


def _end(connection: Connection, done: Seek) -> Seek:
    row = connection.execute(
        update(seek)
        .where(seek.c.group_id == done.group_id)
        .values(ended_at=func.clock_timestamp(), moved=done.moved)
        .returning(seek)
    ).one_or_none()
    connection.commit()
    return done if row is None else Seek(**row._mapping)


#: Reads the next ops by id, and writes a row for each delivery of the group that one ends or takes back: the end that
#: a replay can take back, null for one that stays.
_READ = f"""with piece as materialized (
      select id, decision, reason, half_ids, group_ids, decided_at from {SCHEMA}.op
       where id > :after order by id limit :ops),
    noted as (
      insert into pg_temp.ended (half_id, decided_at, again)
      select u.half_id, p.decided_at,
             case when p.decision = 'commit' then '{ACCEPTED}'
                  when p.decision = 'accept' and coalesce(p.reason, '{PASSED_OVER}') = '{PASSED_OVER}' then '{ACCEPTED}'
                  when p.decision = 'purge' then '{PURGED}' end
        from piece p cross join lateral unnest(p.half_ids, p.group_ids) u(half_id, group_id)
       where u.group_id = :group and u.half_id > :position and p.decided_at <= :started
         and p.decision in ('commit', 'accept', 'expire', 'dead-letter', 'purge', 'replay'))
    select id from piece order by id desc limit 1"""


def _read_ops(connection: Connection, group: Group, begun: Seek, presence: Presence) -> None:
    """Collect the ends of the group's deliveries in a temporary table ``ended``; commits each piece.

    The id of an op is generated when it is written, except for commits: their id is from the declare.
    """
    connection.execute(text("drop table if exists pg_temp.ended"))
    connection.execute(text("create temporary table ended (half_id int8, decided_at timestamptz, again text)"))
    connection.commit()
    since = moment_of(begun.position) - LONGEST_UNDECIDED - _CLOCKS
    after: UUID | None = op_id_at(since)
    while after is not None:
        presence.beat()
        after = connection.scalar(
            text(_READ),
            {
                "after": after,
                "ops": OPS,
                "group": group.id,
                "position": begun.position,
                "started": begun.started_at,
            },
        )
        connection.commit()
    connection.execute(text("create index on pg_temp.ended (half_id, decided_at desc)"))
    connection.execute(text("analyze pg_temp.ended"))
    connection.commit()


#: Selects the next halves whose delivery has ended, each with the end in its last op, and the message if it is kept.
_NEXT = f"""with next as (
      select distinct on (half_id) half_id, again from pg_temp.ended
       where half_id > :position order by half_id, decided_at desc limit :chunk)
    select n.half_id, n.again, h.posted_at, substr(h.message, 1, {HEAD_OCTETS}) as head, octet_length(h.message) as size
      from next n left join {SCHEMA}.half h on h.id = n.half_id and n.again is not null order by n.half_id"""

_ENTER = f"""insert into {SCHEMA}.entry (group_id, id, half_id, expires_at, priority, message_group, acquired)
    select :group, u.id, u.id, u.expires, u.priority, u.key, true
      from unnest(cast(:ids as int8[]), cast(:expires as timestamptz[]), cast(:priorities as int2[]),
                  cast(:keys as int8[])) u(id, expires, priority, key)"""


class _Back:
    """Runs a seek back, piece by piece."""

    def __init__(self, connection: Connection, group: Group, terms_of: TermsOf, presence: Presence) -> None:
        self._connection = connection
        self._group = group
        self._terms_of = terms_of
        self._presence = presence
        self._uuids = UuidV7()

    def piece(self, begun: Seek, chunk: int) -> Seek | None:
        """Deliver the next messages again; commits. None: there are no more."""
        connection = self._connection
        rows = connection.execute(text(_NEXT), {"position": begun.position, "chunk": chunk}).all()
        if not rows:
            connection.rollback()
            return None
        if not self._presence.shared(self._group.id):
            raise AddressGone(_GONE)
        moment = int((datetime.now(UTC) - _POSTGRES_EPOCH).total_seconds() * 1e6)
        again: dict[str, list[tuple[int, DeliveryTerms]]] = {ACCEPTED: [], PURGED: []}
        expired = 0
        for row in rows:
            if row.head is None:  # its end is not taken back, or retention has dropped the message
                continue
            terms = self._terms_of(
                Head(half_id=row.half_id, posted_at=row.posted_at, head=bytes(row.head), size=row.size)
            )
            if terms.expires <= moment:
                expired += 1
            else:
                again[row.again].append((row.half_id, terms))
        made = [each for reason, some in again.items() for each in self._enter(reason, some)]
        if made:
            lowest = min(made)
            connection.execute(select(func.pg_notify(channels.READY, f"{self._group.id}<{lowest:x}")))
        done = replace(
            begun,
            position=rows[-1].half_id,
            moved=begun.moved + len(made),
            expired=begun.expired + expired,
        )
        connection.execute(
            update(seek)
            .where(seek.c.group_id == done.group_id)
            .values(position=done.position, moved=done.moved, expired=done.expired)
        )
        connection.commit()
        return done

    def _enter(self, reason: str, some: Sequence[tuple[int, DeliveryTerms]]) -> list[int]:
        """Insert the entries, and the op that takes back the ends of their deliveries. Returns the ids."""
        if not some:
            return []
        ids = [half_id for half_id, _ in some]
        fifo = self._group.fifo
        self._connection.execute(
            text(_ENTER),
            {
                "group": self._group.id,
                "ids": ids,
                "expires": [time_of(terms.expires) for _, terms in some],
                "priorities": [terms.priority for _, terms in some],
                "keys": [key_of(terms, half_id) if fifo else None for half_id, terms in some],
            },
        )
        self._connection.execute(
            insert(op).values(
                id=UUID(bytes=self._uuids.next()),
                decision="replay",
                reason=reason,
                half_ids=ids,
                group_ids=[self._group.id] * len(ids),
            )
        )
        return ids


def time_of(micros: int) -> datetime | None:
    """Convert ``micros`` since 2000 to a time; None: never, or later than ``datetime`` can represent."""
    if micros in (INFINITY, BEFORE):
        return None
    try:
        return _POSTGRES_EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None
