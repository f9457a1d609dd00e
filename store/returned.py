"""Entries that ended instances had leased go back to their groups, where others get them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from sqlalchemy import (
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
    func,
    literal_column,
    select,
    text,
    true,
    update,
)
from sqlalchemy.dialects import postgresql

from store import channels
from store.database import BY_INDEX
from store.keys import keys_of, listed
from store.leases import by_range
from store.tables import address, consumer_group, entry, group_read, instance, message_group

_LARGEST_COUNT: Final = 32767
_AS_BEFORE: Final = text("set local enable_seqscan to default; set local jit to default")
#: the ids of the instances that live
LIVE: Final = select(instance.c.id).where(instance.c.ended_at.is_(None))
#: where a version of an entry is
_PLACE: Final[ColumnElement[str]] = literal_column(f"{entry.fullname}.ctid")


def give_back(connection: Connection, group_id: int, entry_id: int) -> list[int]:
    """Free one entry, if an instance that has ended, or was never there, leases it; with it all that such instances
    have of its message group, and their claim to this: what comes behind it must not come before it (P18). The halves
    of all that is freed; the transaction is the caller's.
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
    """The same of some entries without message groups, by their groups and ids. The groups and halves of all that is
    freed."""
    freed = return_leased(connection, listed(keys_of(entries)))
    if freed:
        connection.execute(select(func.pg_notify(channels.READY, "")))
    return [(row.group_id, row.half_id) for row in freed]


def return_all(connection: Connection) -> int:
    """Free all entries that dead instances held for their consumers, not those that transactions hold. How many."""
    # Those that were read come first: an entry that was leased and is free then is not counted a second time.
    lost = (_read(connection), _leased())
    with _by_index(connection):
        return sum(connection.execute(_freed(each)).rowcount for each in lost)


def return_leased(connection: Connection, *only: ColumnElement[bool]) -> Sequence[Row[int, int]]:
    """Free the entries that dead instances had leased; of these ``only`` such. Returns their groups and halves."""
    with _by_index(connection):
        return connection.execute(_freed(_leased(*only)).returning(entry.c.group_id, entry.c.half_id)).all()


def _leased(*only: ColumnElement[bool]) -> Select[str]:
    leased = select(_PLACE).where(entry.c.lease > 0, entry.c.lease.not_in(LIVE), *only)
    return leased.with_for_update(of=entry).correlate(None)


def _read(connection: Connection) -> Select[str]:
    """Those in the ranges that dead holders of groups had read."""
    dead = consumer_group.c.holder.not_in(LIVE) & (consumer_group.c.holder != 0)
    its = (group_read.c.group_id == consumer_group.c.id) & (group_read.c.instance_id == consumer_group.c.holder)
    through = select(consumer_group.c.id, func.max(group_read.c.read_through)).join(group_read, its).where(dead)
    found = connection.execute(through.group_by(consumer_group.c.id)).all()
    groups = cast([each[0] for each in found], postgresql.ARRAY(Integer))
    ids = cast([each[1] for each in found], postgresql.ARRAY(BigInteger))
    ranges = func.unnest(groups, ids).table_valued("group_id", "id").render_derived()
    # The sum keeps PostgreSQL from the index of leases: nearly all that wait have none.
    lost = (entry.c.group_id == ranges.c.group_id, entry.c.id <= ranges.c.id, entry.c.lease + 0 == 0, by_range)
    # As it locks, it is one look for each range, however many entries PostgreSQL expects there.
    read = select(_PLACE.label("place")).where(*lost).with_for_update().lateral()
    return select(read.c.place).select_from(ranges.join(read, true()))


@contextmanager
def _by_index(connection: Connection) -> Iterator[None]:
    """What follows in the transaction is planned as before."""
    connection.execute(BY_INDEX)
    yield
    connection.execute(_AS_BEFORE)


def _freed(lost: Select[str]) -> Update:
    """Frees the entries in these places; where their group is gone they stay.

    ``lost`` locks what it finds, as servers from before November 2025 do not look again whether a place is among them.
    One that another has freed meanwhile, and an instance that lives may have leased by now, has another place: it is
    left alone.
    """
    lives = (
        select(consumer_group.c.id)
        .join(address, address.c.id == consumer_group.c.address_id)
        # Not of addresses and groups that are deleted anyway.
        .where(~of_the_dead(consumer_group.c.instance_id), ~of_the_dead(address.c.instance_id))
        .subquery()
    )
    # It may have been sent: one attempt more. The end of an instance fails nothing (D5). What is on its way to the dead
    # letters was not sent.
    sent = entry.c.failed.is_(None)
    attempts = func.least(cast(entry.c.attempts, Integer) + cast(sent, Integer), _LARGEST_COUNT)
    return (
        update(entry)
        .where(any_(func.array(lost.scalar_subquery())) == _PLACE, entry.c.group_id == lives.c.id)
        .values(lease=0, attempts=cast(attempts, SmallInteger), acquired=entry.c.acquired | sent)
    )


def of_the_dead(owner: ColumnElement[int | None]) -> ColumnElement[bool]:
    """Whether it is an instance that does not live."""
    # Rows without an instance do not belong to a dead one: null is "not in" an empty list.
    return owner.is_not(None) & owner.not_in(LIVE)
