"""Register instances when they start, and give them up when they are dead.

All SQL here blocks: a worker calls it before it listens, and later :class:`DeadInstances` does.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg
from sqlalchemy import (
    UUID,
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Row,
    Select,
    SmallInteger,
    Update,
    any_,
    cast,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    text,
    true,
    update,
)
from sqlalchemy.dialects import postgresql

from store import channels, locks, removal
from store.clock import CLOCK, reading
from store.commit import terms
from store.database import BY_INDEX, READS_ALONE, Patience, connected
from store.errors import StoreError, StoreUnavailable, boundary
from store.ids import OUTBOX, UuidV7
from store.keys import keys_of, listed
from store.libpq import SESSION_NAME
from store.processes import gone, machine, start_ticks
from store.reasons import INSTANCE_LOST
from store.tables import (
    address,
    consumer_group,
    entry,
    group_read,
    half,
    heartbeat,
    instance,
    message_group,
    op,
    pending_retirement,
    sole_connection,
    store_identity,
    txn,
)
from store.tables import connection as client_connection

# An instance holds an entry by the entry's own lease, or by the range that it has read as the holder of the group.

#: Entries that the holder of a group reads by range: of normal priority, not delayed, and not failed.
by_range = (entry.c.priority == terms.DEFAULT) & entry.c.available_at.is_(None) & entry.c.failed.is_(None)

#: True of an entry that an instance holds: in a window, or on its way to a consumer.
held = (entry.c.lease != 0) | (
    by_range
    & select(consumer_group.c.id)
    .where(
        consumer_group.c.id == entry.c.group_id,
        group_read.c.group_id == consumer_group.c.id,
        group_read.c.instance_id == consumer_group.c.holder,
        entry.c.id <= group_read.c.read_through,
    )
    .exists()
)


# Entries that ended instances had leased return to their groups, and other instances lease them.

_LARGEST_COUNT: Final = 32767
_AS_BEFORE: Final = text("set local enable_seqscan to default; set local jit to default")
#: selects the ids of the instances that live
LIVE: Final = select(instance.c.id).where(instance.c.ended_at.is_(None))
#: the place of a row version of an entry
_PLACE: Final[ColumnElement[str]] = literal_column(f"{entry.fullname}.ctid")


def give_back(connection: Connection, group_id: int, entry_id: int) -> list[int]:
    """Free one entry, if an instance that has ended, or never existed, leases it.

    With it all entries of its message group that such instances lease are freed, and their claim to the group: no later
    entry of the group may overtake it (P18). Returns the halves of all freed entries; the transaction is the caller's.
    """
    its = (entry.c.group_id == group_id, entry.c.id == entry_id)
    key = connection.scalar(select(entry.c.message_group).where(*its))
    with_it = its if key is None else (entry.c.group_id == group_id, entry.c.message_group == key)
    freed = [row.half_id for row in return_leased(connection, *with_it)]
    if freed:
        claim = (message_group.c.group_id == group_id, message_group.c.key == key)
        connection.execute(delete(message_group).where(*claim, message_group.c.instance_id.not_in(LIVE)))
        connection.execute(select(func.pg_notify(channels.READY, "")))
    return freed


def give_back_each(connection: Connection, entries: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Free some entries without message groups, as :func:`give_back` does.

    ``entries``: their groups and ids. Returns the groups and halves of the freed entries."""
    freed = return_leased(connection, listed(keys_of(entries)))
    if freed:
        connection.execute(select(func.pg_notify(channels.READY, "")))
    return [(row.group_id, row.half_id) for row in freed]


def return_all(connection: Connection) -> int:
    """Free all entries that dead instances held, except those that transactions hold. Returns how many."""
    # Entries in ranges are freed first: one whose lease is ended afterwards is not counted twice.
    lost = (_read(connection), _leased())
    with _by_index(connection):
        return sum(connection.execute(_freed(each)).rowcount for each in lost)


def return_leased(connection: Connection, *only: ColumnElement[bool]) -> Sequence[Row[int, int]]:
    """Free the entries that dead instances had leased, restricted by ``only``. Returns their groups and halves."""
    with _by_index(connection):
        return connection.execute(_freed(_leased(*only)).returning(entry.c.group_id, entry.c.half_id)).all()


def _leased(*only: ColumnElement[bool]) -> Select[str]:
    leased = select(_PLACE).where(entry.c.lease > 0, entry.c.lease.not_in(LIVE), *only)
    # lock order: 5
    return leased.with_for_update(of=entry).correlate(None)


def _read(connection: Connection) -> Select[str]:
    """Return a query of the entries in the ranges that dead holders of groups had read."""
    dead = consumer_group.c.holder.not_in(LIVE) & (consumer_group.c.holder != 0)
    its = (group_read.c.group_id == consumer_group.c.id) & (group_read.c.instance_id == consumer_group.c.holder)
    through = select(consumer_group.c.id, func.max(group_read.c.read_through)).join(group_read, its).where(dead)
    found = connection.execute(through.group_by(consumer_group.c.id)).all()
    groups = cast([each[0] for each in found], postgresql.ARRAY(Integer))
    ids = cast([each[1] for each in found], postgresql.ARRAY(BigInteger))
    ranges = func.unnest(groups, ids).table_valued("group_id", "id").render_derived()
    # The sum keeps PostgreSQL from using the index of leases: nearly all waiting entries have no lease.
    lost = (entry.c.group_id == ranges.c.group_id, entry.c.id <= ranges.c.id, entry.c.lease + 0 == 0, by_range)
    # As it locks rows, it is run once for each range, however many entries PostgreSQL expects there.
    read = select(_PLACE.label("place")).where(*lost).with_for_update().lateral()
    return select(read.c.place).select_from(ranges.join(read, true()))


@contextmanager
def _by_index(connection: Connection) -> Iterator[None]:
    """Plan the statements of the block to use indexes, and later ones of the transaction as before."""
    connection.execute(BY_INDEX)
    yield
    connection.execute(_AS_BEFORE)


def _freed(lost: Select[str]) -> Update:
    """Return an update that frees the entries in these places; where their group is removed they stay.

    ``lost`` locks the rows it selects, as servers from before November 2025 do not check again whether a place is among
    them. An entry that another process has freed meanwhile, and a living instance may have leased by now, has another
    place: it is left unchanged.
    """
    lives = (
        select(consumer_group.c.id)
        .join(address, address.c.id == consumer_group.c.address_id)
        # Excludes addresses and groups that are deleted anyway.
        .where(~of_the_dead(consumer_group.c.instance_id), ~of_the_dead(address.c.instance_id))
        .subquery()
    )
    # The entry may have been sent: its attempts are incremented. The end of an instance is no failure (D5). An entry on
    # its way to the dead letters was not sent.
    sent = entry.c.failed.is_(None)
    attempts = func.least(cast(entry.c.attempts, Integer) + cast(sent, Integer), _LARGEST_COUNT)
    return (
        update(entry)
        .where(any_(func.array(lost.scalar_subquery())) == _PLACE, entry.c.group_id == lives.c.id)
        .values(lease=0, attempts=cast(attempts, SmallInteger), acquired=entry.c.acquired | sent)
    )


def of_the_dead(owner: ColumnElement[int | None]) -> ColumnElement[bool]:
    """Return the condition that ``owner`` is an instance that does not live."""
    # Rows without an instance do not belong to a dead one: null is "not in" an empty list.
    return owner.is_not(None) & owner.not_in(LIVE)


#: An instance whose heartbeat does not change for longer, while the database answers, is dead, on whatever machine.
STALE_SECONDS = 10.0
#: The same for an instance that has not beaten yet: its machine may first look for a database host that answers.
START_SECONDS = 30.0

_TERMINATE_MS = 5000


#: selects the instances that live, and the values of their heartbeats
LIVING = (
    select(instance, heartbeat.c.beaten_at, heartbeat.c.commit_waits_seconds.is_not(None).label("has_beaten"))
    .outerjoin(heartbeat, heartbeat.c.instance_id == instance.c.id)
    .where(instance.c.ended_at.is_(None))
)


#: whether an instance has beaten recently, and how many of those that have not ended have
BEATING = heartbeat.c.beaten_at >= func.now() - timedelta(seconds=STALE_SECONDS)
ALIVE = select(func.count()).select_from(instance.join(heartbeat)).where(instance.c.ended_at.is_(None), BEATING)
#: whether the database refuses changes: a standby, or a database or role set to read only
_BY_ITSELF = func.nullif(func.current_setting(READS_ALONE, True), "")
READ_ONLY = (func.coalesce(_BY_ITSELF, func.current_setting("transaction_read_only")) == "on").label("only_reads")


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A newly registered instance. ``highest_id``: of all halves and entries; new ids must be above it."""

    instance_id: int
    #: the part of its ids that no other instance has (:class:`store.ids.HalfIds`)
    slot: int
    store_id: str
    #: the key by which the store recognizes its own txn-ids
    secret: bytes
    highest_id: int


@dataclass(frozen=True, kw_only=True)
class GivenUp:
    """What recovery has returned or undone."""

    #: instances found dead now
    instances: tuple[int, ...] = ()
    #: entries that are no longer leased
    leases: int = 0
    #: undecided transactions that got the op ``rollback``
    transactions: int = 0
    #: dynamic addresses and volatile groups that were removed
    addresses: int = 0
    groups: int = 0
    #: True if others lock some of the rows now, such as the long commit of an application: the next call continues
    owed: bool = False


def register(connection: Connection, version: str, place: str | None = None) -> Registration:
    """Insert a row for this process, with a slot that no other living instance has; commits. ``place``: where clients
    reach its service, if consumers of groups that it holds are to be sent there.

    :raises StoreUnavailable: also when all slots are taken.
    """
    with boundary():
        # One process at a time, briefly: two would choose the same slot.
        # lock order: 1
        locks.take(connection, "slots")
        taken = set(connection.scalars(select(instance.c.slot).where(instance.c.ended_at.is_(None))))
        slot = next((each for each in range(OUTBOX) if each not in taken), None)
        if slot is None:
            raise StoreUnavailable(f"{OUTBOX} instances live in this store; there is no slot for the ids of another")
        ticks = start_ticks(os.getpid())
        instance_id = connection.scalar(
            insert(instance)
            .values(slot=slot, host=machine(), pid=os.getpid(), process_start=ticks, version=version, place=place)
            .returning(instance.c.id)
        )
        connection.execute(insert(heartbeat).values(instance_id=instance_id))
        identity = connection.execute(select(store_identity)).one()
        # before the first id is made
        before = reading()
        by_database = connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one()
        CLOCK.compare(before, float(by_database), reading())
        # Group by group, by the primary key: entries have no index by id alone.
        latest = (
            select(func.max(entry.c.id).label("id")).where(entry.c.group_id == consumer_group.c.id).lateral("latest")
        )
        entries = select(func.max(latest.c.id)).select_from(consumer_group.join(latest, text("true")))
        highest = [connection.scalar(select(func.max(half.c.id))), connection.scalar(entries)]
        connection.commit()
    return Registration(
        instance_id=int(instance_id or 0),
        slot=slot,
        store_id=identity.id,
        secret=identity.secret,
        highest_id=max((each for each in highest if each is not None), default=0),
    )


def end(connection: Connection, instance_id: int) -> GivenUp:
    """Mark the row of this instance as ended, and give up what it has left as if it were dead; commits."""
    with boundary():
        locks.take(connection, "giving up")  # lock order: 1
        _end_instances(connection, (instance_id,))
        # Its consumers have returned their entries: no entry left in its ranges was sent without being counted.
        held = update(consumer_group).where(consumer_group.c.holder == instance_id).values(holder=0)
        freed = connection.execute(held.returning(consumer_group.c.id)).all()
        return _clear(connection, (instance_id,), freed=bool(freed))


def recover(connection: Connection) -> GivenUp:
    """Give up the instances of this machine whose process has ended, and what earlier ones left; commits.

    Waits while another process does the same: an instance that served before that would deliver newer messages before
    the entries that are returned.

    :raises Contended: the other takes longer than the connection waits for a lock.
    """
    with boundary():
        locks.take(connection, "giving up")  # lock order: 1
        return _clear(connection, _end_dead(connection, {}))


def give_up_dead(connection: Connection, still: Mapping[int, datetime | None]) -> GivenUp:
    """Give up the instances of this machine whose process has ended, and those in ``still``; commits.

    It also gives up what earlier calls have left because others had locked it. ``still``: instances that are dead if
    their heartbeats still have these values; an instance with another value lives.
    """
    with boundary():
        # One process at a time: entries that one returns may be leased by an instance that the other cannot see yet.
        locks.take(connection, "giving up")  # lock order: 1
        dead = _end_dead(connection, still)
        if dead:
            return _clear(connection, dead)
        _orphan(connection)
        connection.commit()
        return _delete_owned(connection)


def _end_dead(connection: Connection, still: Mapping[int, datetime | None]) -> tuple[int, ...]:
    """Mark dead instances as ended. The transaction is the caller's, and holds the lock."""
    here = machine()
    living = connection.execute(LIVING).all()
    dead = tuple(
        row.id
        for row in living
        if (row.id in still and still[row.id] == row.beaten_at)
        or (row.host == here and gone(row.pid, row.process_start))
    )
    if dead:
        # A statement of a dead instance may still be under way, and would lease entries after they were returned; a
        # suspended command keeps its locks.
        names = [session_name(what, number) for number in dead for what in ("batch", "queries", "command")]
        connection.execute(
            text(
                "select pg_terminate_backend(pid, :patience) from pg_stat_activity where datname = current_database() "
                f"and pid <> pg_backend_pid() and {SESSION_NAME} = any(:names)"
            ),
            {"names": names, "patience": _TERMINATE_MS},
        )
        _end_instances(connection, dead)
    return dead


def session_name(what: str, instance_id: int) -> str:
    """Return the application name of a session of the instance: ``what`` is ``batch``, ``queries`` or ``command``."""
    return f"coordinator {what} {instance_id}"


def _end_instances(connection: Connection, ids: tuple[int, ...]) -> None:
    """Mark these instances as ended, so that they write nothing from now on.

    Every batch checks, under a lock on this row that excludes ours, that its instance has not ended. This waits for a
    batch whose commit is under way, so that later steps see its rows.
    """
    ours = instance.c.id.in_(ids)
    # lock order: 2
    connection.execute(select(instance.c.id).where(ours).order_by(instance.c.id).with_for_update()).all()
    connection.execute(update(instance).where(ours, instance.c.ended_at.is_(None)).values(ended_at=func.now()))


def _clear(connection: Connection, dead: tuple[int, ...], *, freed: bool = False) -> GivenUp:
    """Give up everything that dead instances hold; commits. ``freed``: some of their groups were released already.

    No batch of a living instance needs the rows that are locked meanwhile. Rows that batches lock as they post, those
    of dynamic addresses, are deleted in SQL transactions of their own. It does not wait for rows that the commit of an
    application may lock for long (its transaction, and where that has posted): others would wait behind it.
    """
    # Rows of txn first, then ops: the order in which a query takes its locks (T11).
    plain = (
        delete(txn)
        .where(txn.c.instance_id.not_in(LIVE), txn.c.producer_group.is_(None))
        .returning(txn.c.id, txn.c.posted)
        .cte("plain")
    )
    rolled_back = select(plain.c.id, literal("rollback"), plain.c.id, literal(INSTANCE_LOST), plain.c.posted)
    transactions = connection.execute(
        postgresql.insert(op)
        .from_select(["id", "decision", "txn_id", "reason", "posted"], rolled_back)
        .on_conflict_do_nothing()
        .returning(op.c.id)
    ).all()
    _orphan(connection)
    leases = return_all(connection)
    claimed = delete(message_group).where(message_group.c.instance_id.not_in(LIVE))
    held_whole = consumer_group.c.holder.not_in(LIVE) & (consumer_group.c.holder != 0)
    held = update(consumer_group).where(held_whole).values(holder=0)
    claims = connection.execute(claimed.returning(message_group.c.group_id)).all()
    groups_held = connection.execute(held.returning(consumer_group.c.id)).all()
    for of_clients in (sole_connection, client_connection):
        connection.execute(delete(of_clients).where(of_clients.c.instance_id.not_in(LIVE)))
    # Sent even if no entry was returned: an instance that queried a group while another held it has found nothing.
    if leases or claims or groups_held or freed:
        connection.execute(select(func.pg_notify(channels.READY, "")))
    connection.commit()
    owned = _delete_owned(connection)
    return replace(owned, instances=dead, leases=leases, transactions=len(transactions))


def _orphan(connection: Connection) -> None:
    """Let checkers decide the checkable transactions of dead instances, which stay undecided.

    They are checked once their immunity ends (H7, H13). They keep what they have retired, until they are rolled back.
    Transactions that others are deciding now are skipped.
    """
    lost = select(pending_retirement.c.txn_id).where(pending_retirement.c.holder.not_in(LIVE))
    open_there = txn.c.instance_id.not_in(LIVE) & txn.c.connection.is_not(None)
    # lock order: 3, skipping those that are locked
    free = (
        select(txn.c.id)
        .where(txn.c.producer_group.is_not(None), open_there | txn.c.id.in_(lost))
        .order_by(txn.c.id)
        .with_for_update(skip_locked=True)
    )
    ids = cast(connection.scalars(free).all(), postgresql.ARRAY(UUID))
    immune_until = txn.c.declared_at + txn.c.check_immunity_ms * text("interval '1 ms'")
    connection.execute(
        update(txn)
        .where(txn.c.id == func.any(ids), open_there)
        .values(connection=None, next_check_at=func.greatest(immune_until, func.now()))
    )
    # transactions that are decided have no row any more
    gone = select(pending_retirement.c.txn_id, pending_retirement.c.holder).where(
        pending_retirement.c.holder.not_in(LIVE),
        (pending_retirement.c.txn_id == func.any(ids)) | ~exists().where(txn.c.id == pending_retirement.c.txn_id),
    )
    rows = connection.execute(gone.distinct()).all()
    if rows:
        holders = cast(list({row.holder for row in rows}), postgresql.ARRAY(Integer))
        txns = cast(list({row.txn_id for row in rows}), postgresql.ARRAY(UUID))
        connection.execute(select(func.coordinator.let_go(holders, txns)))


def _delete_owned(connection: Connection) -> GivenUp:
    """Remove dynamic addresses of dead instances with all entries, and subscriptions that end with their link; commits.

    It does not wait for transactions that post there now: others may wait for the rows that are locked already.
    """
    dead_addresses = of_the_dead(address.c.instance_id)
    dead_groups = of_the_dead(consumer_group.c.instance_id)
    # lock order: 7, 8, skipping those that are locked
    owned = select(address.c.id).where(dead_addresses).order_by(address.c.id).with_for_update(skip_locked=True)
    free = cast(connection.scalars(owned).all(), postgresql.ARRAY(Integer))
    groups = select(consumer_group.c.id).where((consumer_group.c.address_id == func.any(free)) | dead_groups)
    locked = connection.scalars(groups.order_by(consumer_group.c.id).with_for_update(skip_locked=True)).all()
    free_groups = cast(locked, postgresql.ARRAY(Integer))
    other = consumer_group.alias()
    held = exists().where(other.c.address_id == address.c.id, other.c.id != func.all(free_groups)).correlate(address)
    whole = select(address.c.id).where(address.c.id == func.any(free), ~held)
    goes = (consumer_group.c.id == func.any(free_groups)) & (dead_groups | consumer_group.c.address_id.in_(whole))
    gone = connection.scalars(delete(consumer_group).where(goes).returning(consumer_group.c.id)).all()
    names = connection.scalars(delete(address).where(address.c.id.in_(whole)).returning(address.c.name)).all()
    for name in names:
        connection.execute(select(func.pg_notify(channels.ADDRESS, name)))
    orphans = txn.c.instance_id.not_in(LIVE) & txn.c.connection.is_not(None)
    left = (dead_addresses, dead_groups, orphans, of_the_dead(pending_retirement.c.holder))
    owed = connection.scalar(select(or_(*(exists().where(each) for each in left))))
    connection.commit()
    # Only now all their entries are visible. If this process ends before, the maintenance deletes them.
    ids = UuidV7()
    for group in sorted(gone):
        removal.drop(connection, group, ids)
    return GivenUp(addresses=len(names), groups=len(gone), owed=bool(owed))


# Finds dead instances: those whose heartbeat does not change while the database answers.
#
# It uses only the clock of this process, and only whether the *value* of a heartbeat changes, not its age: so neither a
# step of a clock nor an outage of the database makes an instance dead.

#: The time between two checks.
LOOK_SECONDS = 1.0

# Checks that are further apart, or take as long, do not prove that a heartbeat did not change in between.
_LONGEST_GAP_SECONDS = 3.0
_LOOK_PATIENCE = Patience(connect_seconds=2, statement_seconds=2.0, lock_seconds=2.0)
# Giving an instance up may require reading all entries.
_GIVE_UP_PATIENCE = Patience(connect_seconds=2, statement_seconds=600.0, lock_seconds=2.0)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The result of a check. ``ended``: processes of this machine, as (pid, start), that outlive their instance."""

    given_up: GivenUp
    ended: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class _Beat:
    value: datetime | None
    #: when this process first saw the value, by its own clock
    since: float
    #: the process of the instance, if it is on this machine
    process: tuple[int, int] | None
    #: how long the value may stand still
    patience: float


class DeadInstances:
    """Finds and gives up dead instances. Call ``check()`` every :data:`LOOK_SECONDS`; ``close()`` at the end."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._clock = clock
        self._machine = machine()
        self._looked_at: float | None = None
        self._beats: dict[int, _Beat] = {}
        #: running processes whose instance was alive at an earlier check and has ended
        self._ended: set[tuple[int, int]] = set()
        #: True if instances have ended, perhaps before the first check, and may not be given up completely yet
        self._owed = True
        #: kept between checks: a new connection costs ten times as much as the check
        self._connection: Connection | None = None
        self._kept = ExitStack()

    def close(self) -> None:
        self._connection = None
        self._kept.close()

    def check(self) -> Checked:
        """Check all heartbeats, and give up dead instances.

        :raises StoreError: the database is away; the next check treats all heartbeats as new.
        """
        before, self._looked_at = self._looked_at, None
        begun = self._clock()
        living = self._living()
        now = self._clock()
        # A process has the time between two checks to end by itself.
        ended = tuple(process for process in sorted(self._ended) if not gone(*process))
        self._compare(living, now, throughout=before is not None and now - before <= _LONGEST_GAP_SECONDS)
        self._looked_at = now
        still = {number: beat.value for number, beat in self._beats.items() if begun - beat.since >= beat.patience}
        given_up = GivenUp()
        if still or any(beat.process is not None and gone(*beat.process) for beat in self._beats.values()):
            self._owed = True
        if self._owed:
            with connected(self._url, application_name="coordinator watch", patience=_GIVE_UP_PATIENCE) as connection:
                given_up = give_up_dead(connection, still)
            self._owed = given_up.owed
        return Checked(given_up=given_up, ended=ended)

    def _living(self) -> Sequence[Row[Any]]:
        try:
            if self._connection is None:
                kept = connected(self._url, application_name="coordinator watch", patience=_LOOK_PATIENCE)
                self._connection = self._kept.enter_context(kept)
            with boundary(), _cut_after(_LONGEST_GAP_SECONDS, self._connection):
                living = self._connection.execute(LIVING).all()
                self._connection.rollback()
        except StoreError:
            self.close()
            raise
        return living

    def _compare(self, living: Sequence[Row[Any]], now: float, *, throughout: bool) -> None:
        """Compare the heartbeats with the last ones. ``throughout``: the database has answered since the last check."""
        before, self._beats = self._beats, {}
        for row in living:
            known = before.get(row.id) if throughout else None
            process = (row.pid, row.process_start) if row.host == self._machine else None
            if known is None or known.value != row.beaten_at:
                patience = STALE_SECONDS if row.has_beaten else START_SECONDS
                known = _Beat(value=row.beaten_at, since=now, process=process, patience=patience)
            self._beats[row.id] = known
        was_there = {beat.process for number, beat in before.items() if number not in self._beats}
        if was_there:  # rows that others had locked when it was given up remain
            self._owed = True
        # A process that registered twice, because the answer to the first time was lost, still lives.
        lives = {beat.process for beat in self._beats.values()}
        self._ended = {each for each in (self._ended | was_there) - lives if each is not None and not gone(*each)}


@contextmanager
def _cut_after(seconds: float, connection: Connection) -> Iterator[None]:
    """Close the connection's socket if the block has not ended after ``seconds``.

    A database that is stopped, or no longer exists, applies no time limit, though its machine may still receive data.
    """
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)

    def cut() -> None:
        with suppress(OSError):  # it is closed already
            wire.shutdown(socket.SHUT_RDWR)

    with socket.socket(fileno=os.dup(driver.fileno())) as wire:
        timer = threading.Timer(seconds, cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
