"""Administer addresses and consumer groups: make one, list all, show one, change policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Integer,
    Row,
    any_,
    bindparam,
    case,
    func,
    insert,
    select,
    true,
    tuple_,
    update,
)

from store import audit, channels, counts
from store.audit import Action
from store.counts import Counts
from store.errors import boundary
from store.ids import moment_of
from store.seeks import Seek, all_seeks
from store.tables import address, consumer_group
from store.views import pending_half


@dataclass(frozen=True, kw_only=True)
class AddressLine(Counts):
    """An address in a list, with the messages of its groups counted."""

    name: str
    routing: str
    kind: str
    origin: str
    created_at: datetime
    groups: int
    #: messages of undecided checkable transactions
    pending: int


@dataclass(frozen=True, kw_only=True)
class Group(Counts):
    """A consumer group with its messages counted. ``group``: its name; ``''``: it is the default one of a queue."""

    address: str
    group: str
    volatile: bool
    created_at: datetime
    #: when the first message in its line was posted; None: it has none
    oldest_at: datetime | None
    #: its policies, its own or those of the address
    on_expiry: str
    max_attempts: int
    retry: str
    #: names of the policies that are its own
    own_policies: tuple[str, ...]
    #: the last seek, or one under way (H17)
    seek: Seek | None
    #: since when it is paused, by whom, and for which reason; None: it is not
    paused_at: datetime | None
    paused_by: str | None
    paused_for: str | None


@dataclass(frozen=True, kw_only=True)
class AddressDetail(Counts):
    """An address with its policies and groups, and the messages of these counted."""

    name: str
    routing: str
    kind: str
    on_expiry: str
    max_attempts: int
    retry: str
    #: None: the settings decide
    retention_hours: int | None
    #: for transactions whose first message was posted to it; None: the settings decide
    check_immunity_ms: int | None
    check_interval_ms: int | None
    check_most: int | None
    origin: str
    created_at: datetime
    #: messages of undecided checkable transactions
    pending: int
    #: the first by name
    groups: tuple[Group, ...]
    more_groups: int


#: groups that an address shows
_MOST_GROUPS = 100


def add(
    connection: Connection,
    *,
    name: str,
    routing: str,
    kind: str,
    on_expiry: str,
    max_attempts: int,
    retry: str = "immediate",
    retention_hours: int | None = None,
    origin: str = "administration",
) -> None:
    """Make an address; commits. A queue gets its default group; a topic has no group before its first subscription.

    :raises AddressExists: there is one of that name.
    """
    terms = {
        "routing": routing,
        "kind": kind,
        "on_expiry": on_expiry,
        "max_attempts": max_attempts,
        "retry": retry,
        "retention_hours": retention_hours,
    }
    with boundary():
        address_id = connection.scalar(
            insert(address).values(name=name, origin=origin, **terms).returning(address.c.id)
        )
        if routing == "queue":
            connection.execute(insert(consumer_group).values(address_id=address_id, name=""))
        audit.note(connection, Action.ADDRESS_ADD, name, terms)
        connection.execute(select(func.pg_notify(channels.ADDRESS, name)))
        connection.commit()


def kind_of(connection: Connection, name: str) -> str | None:
    """Return the kind of the address; None: there is no such address. Whether it is fifo never changes."""
    with boundary():
        return connection.scalar(select(address.c.kind).where(address.c.name == name))


def change(connection: Connection, name: str, changes: Mapping[str, object]) -> bool:
    """Set policies of an address, by the names of their columns; commits, and notifies all instances.

    False: there is no such address. One that was made on use counts from now on as made by administration.
    """
    with boundary():
        found = connection.execute(
            update(address)
            .where(address.c.name == name)
            .values(**changes, origin=case((address.c.origin == "use", "administration"), else_=address.c.origin))
        )
        if found.rowcount:
            audit.note(connection, Action.ADDRESS_SET, name, changes)
        connection.execute(select(func.pg_notify(channels.ADDRESS, name)))
        connection.commit()
    return found.rowcount == 1


def all_addresses(connection: Connection, *, after: str | None = None, most: int | None = None) -> list[AddressLine]:
    """Return the addresses by name, those behind ``after`` and ``most`` at most, each with its messages counted. Reads
    the undecided transactions, too.
    """
    query = select(address).order_by(address.c.name).limit(most)
    if after is not None:
        query = query.where(address.c.name > after)
    with boundary():
        rows = connection.execute(query).all()
        ids = [row.id for row in rows]
        pending: dict[int, int] = dict(connection.execute(_PENDING, {"ids": ids}).all())
        counted = counts.of_addresses(connection, ids)
    return [
        AddressLine(
            name=row.name,
            routing=row.routing,
            kind=row.kind,
            origin=row.origin,
            created_at=row.created_at,
            groups=counted[row.id][1],
            pending=pending.get(row.id, 0),
            **vars(counted[row.id][0]),
        )
        for row in rows
        if row.id in counted
    ]


_IDS = bindparam("ids", type_=ARRAY(Integer))
_PENDING = (
    select(pending_half.c.address_id, func.count())
    .where(pending_half.c.address_id == any_(_IDS))
    .group_by(pending_half.c.address_id)
)


def one_address(connection: Connection, name: str) -> AddressDetail | None:
    """Return the address ``name`` with its first groups; None: there is no such address."""
    with boundary():
        found = connection.execute(select(address).where(address.c.name == name)).one_or_none()
        if found is None:
            return None
        counted = counts.of_addresses(connection, [found.id])
        if found.id not in counted:
            return None
        groups = _groups(connection, address.c.id == found.id, _MOST_GROUPS)
        undecided = connection.scalar(select(func.count()).where(pending_half.c.address_id == found.id))
    return AddressDetail(
        name=found.name,
        routing=found.routing,
        kind=found.kind,
        on_expiry=found.on_expiry,
        max_attempts=found.max_attempts,
        retry=found.retry,
        retention_hours=found.retention_hours,
        check_immunity_ms=found.check_immunity_ms,
        check_interval_ms=found.check_interval_ms,
        check_most=found.check_most,
        origin=found.origin,
        created_at=found.created_at,
        pending=undecided or 0,
        groups=groups,
        more_groups=max(0, counted[found.id][1] - len(groups)),
        **vars(counted[found.id][0]),
    )


def all_groups(
    connection: Connection,
    name: str | None = None,
    *,
    after: tuple[str, str] | None = None,
    most: int | None = None,
) -> tuple[Group, ...]:
    """Return all consumer groups by address and name, or those of the address ``name``, with their messages counted:
    those behind ``after``, an address and a name, and ``most`` at most.
    """
    wanted = true() if name is None else address.c.name == name
    if after is not None:
        wanted &= tuple_(address.c.name, consumer_group.c.name) > after
    with boundary():
        return _groups(connection, wanted, most)


def _groups(connection: Connection, wanted: ColumnElement[bool], most: int | None = None) -> tuple[Group, ...]:
    of = select(address.c.name.label("address"), *[address.c[each].label(f"of_{each}") for each in _POLICIES])
    query = of.add_columns(consumer_group).join_from(consumer_group, address).where(wanted)
    rows = connection.execute(query.order_by(address.c.name, consumer_group.c.name).limit(most)).all()
    counted = counts.of_groups(connection, [row.id for row in rows])
    moved = all_seeks(connection)
    return tuple(_group(row, *counted[row.id], moved.get(row.id)) for row in rows if row.id in counted)


#: policies of an address that a group can have of its own
_POLICIES = ("on_expiry", "max_attempts", "retry")


def _group(row: Row[Any], counted: Counts, first: int | None, seek: Seek | None) -> Group:
    own = {each: value for each in _POLICIES if (value := getattr(row, each)) is not None}
    return Group(
        address=row.address,
        group=row.name,
        volatile=row.instance_id is not None,
        created_at=row.created_at,
        oldest_at=None if first is None else moment_of(first),
        own_policies=tuple(own),
        seek=seek,
        paused_at=row.paused_at,
        paused_by=row.paused_by,
        paused_for=row.paused_for,
        **{each: getattr(row, f"of_{each}") for each in _POLICIES} | own | vars(counted),
    )


# Administration of consumer groups: find one, change its policies.


@dataclass(frozen=True, kw_only=True)
class Place:
    """The result of :func:`find_group`. ``group``: its id; None: the address has no such group."""

    topic: bool
    group: int | None


def find_group(connection: Connection, of: str, name: str) -> Place | None:
    """Find the group ``name`` of the address ``of``, ``''`` for the default one of a queue; None: no such address."""
    with boundary():
        found = connection.execute(
            select(address.c.routing, consumer_group.c.id)
            .outerjoin(consumer_group, (consumer_group.c.address_id == address.c.id) & (consumer_group.c.name == name))
            .where(address.c.name == of)
        ).one_or_none()
    return None if found is None else Place(topic=found.routing == "topic", group=found.id)


def change_group(connection: Connection, of: str, group: int, changes: Mapping[str, object]) -> bool:
    """Set a group's own policies, by the names of their columns; commits, and notifies all instances.

    ``of``: its address. A value of None: the policy of the address applies. False: the group was removed meanwhile.
    """
    with boundary():
        changed = update(consumer_group).where(consumer_group.c.id == group).values(**changes)
        name = connection.scalar(changed.returning(consumer_group.c.name))
        if name is not None:
            audit.note(connection, Action.GROUP_SET, of, {"group": name, **changes})
        connection.execute(select(func.pg_notify(channels.ADDRESS, of)))
        connection.commit()
    return name is not None


_PAUSE = consumer_group.c.paused_at, consumer_group.c.paused_by, consumer_group.c.paused_for


@dataclass(frozen=True, kw_only=True)
class Pause:
    """The pause of a group: since when, by whom, and for which reason. ``done``: it has begun, or ended, just now."""

    paused_at: datetime | None
    paused_by: str | None
    paused_for: str | None
    done: bool


def pause_of(connection: Connection, group: int) -> Pause | None:
    """Return the pause of a group, its ``paused_at`` None where it is not paused; None: there is no such group."""
    with boundary():
        row = connection.execute(select(*_PAUSE).where(consumer_group.c.id == group)).one_or_none()
        connection.rollback()
    return None if row is None else Pause(**row._mapping, done=False)


def pause_group(connection: Connection, of: str, group: int) -> Pause | None:
    """Pause a group of the address ``of``; commits, and notifies all instances. None: it was removed meanwhile."""
    return _pause(connection, of, group, Action.GROUP_PAUSE)


def resume_group(connection: Connection, of: str, group: int) -> Pause | None:
    """End the pause of a group, as :func:`pause_group`; returns the pause that has ended."""
    return _pause(connection, of, group, Action.GROUP_RESUME)


def _pause(connection: Connection, of: str, group: int, action: Action) -> Pause | None:
    pauses = action is Action.GROUP_PAUSE
    with boundary():
        # lock order: 8
        query = (
            select(consumer_group.c.name, *_PAUSE).where(consumer_group.c.id == group).with_for_update(key_share=True)
        )
        before = connection.execute(query).one_or_none()
        if before is None:
            connection.rollback()
            return None
        after, done = before, pauses is (before.paused_at is None)
        if done:
            who, why = audit.person(connection)
            by = func.coalesce(who, func.current_user())
            told = {"paused_at": func.now(), "paused_by": by, "paused_for": why}
            changed = update(consumer_group).where(consumer_group.c.id == group)
            values = told if pauses else dict.fromkeys(told)
            made = connection.execute(changed.values(**values).returning(*_PAUSE)).one()
            after = made if pauses else before
            audit.note(connection, action, of, {"group": before.name})
            connection.execute(select(func.pg_notify(channels.ADDRESS, of)))
        connection.commit()
    return Pause(paused_at=after.paused_at, paused_by=after.paused_by, paused_for=after.paused_for, done=done)
