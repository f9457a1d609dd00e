"""Addresses for administration: make one, list all, show one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Row, Select, case, func, insert, or_, select, update

from store import channels
from store.errors import boundary
from store.leases import held
from store.tables import address, consumer_group, entry


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Messages of a group, or of all groups of an address, by state (H18)."""

    #: can be delivered now
    ready: int
    #: held by an instance for its consumers
    inflight: int
    #: to be delivered later
    scheduled: int
    #: on their way to the dead letters
    failed: int


@dataclass(frozen=True, kw_only=True)
class AddressLine:
    """An address in a list."""

    name: str
    routing: str
    kind: str
    origin: str
    created_at: datetime
    groups: int
    counts: Counts


@dataclass(frozen=True, kw_only=True)
class Group:
    """A consumer group; ``''`` is the default one of a queue."""

    name: str
    volatile: bool
    created_at: datetime
    counts: Counts


@dataclass(frozen=True, kw_only=True)
class AddressDetail:
    """An address with its policies and groups."""

    name: str
    routing: str
    kind: str
    on_expiry: str
    max_attempts: int
    retry: str
    #: None: as long as the settings say
    retention_hours: int | None
    origin: str
    created_at: datetime
    counts: Counts
    groups: tuple[Group, ...]


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
) -> None:
    """Make an address; commits. A queue gets its default group; a topic has no group before its first subscription.

    :raises AddressExists: there is one of that name.
    """
    with boundary():
        address_id = connection.scalar(
            insert(address)
            .values(
                name=name,
                routing=routing,
                kind=kind,
                on_expiry=on_expiry,
                max_attempts=max_attempts,
                retry=retry,
                retention_hours=retention_hours,
            )
            .returning(address.c.id)
        )
        if routing == "queue":
            connection.execute(insert(consumer_group).values(address_id=address_id, name=""))
        connection.execute(select(func.pg_notify(channels.ADDRESS, name)))
        connection.commit()


def kind_of(connection: Connection, name: str) -> str | None:
    """The kind of the address, which never changes; None: there is none."""
    with boundary():
        return connection.scalar(select(address.c.kind).where(address.c.name == name))


def change(connection: Connection, name: str, changes: Mapping[str, object]) -> bool:
    """Set policies of an address, by the names of their columns; commits, and notifies all instances. False: there is
    no such address. One that was made on use counts from now on as made by administration.
    """
    with boundary():
        found = connection.execute(
            update(address)
            .where(address.c.name == name)
            .values(**changes, origin=case((address.c.origin == "use", "administration"), else_=address.c.origin))
        )
        connection.execute(select(func.pg_notify(channels.ADDRESS, name)))
        connection.commit()
    return found.rowcount == 1


def all_addresses(connection: Connection) -> list[AddressLine]:
    """All addresses by name, each with its messages counted: reads the whole of ``entry``."""
    counted = _counted().subquery()
    query = (
        select(
            address.c.name,
            address.c.routing,
            address.c.kind,
            address.c.origin,
            address.c.created_at,
            func.count(consumer_group.c.id).label("groups"),
            *(func.coalesce(func.sum(counted.c[state]), 0).label(state) for state in _STATES),
        )
        .select_from(address.outerjoin(consumer_group).outerjoin(counted, counted.c.group_id == consumer_group.c.id))
        .group_by(address.c.id)
        .order_by(address.c.name)
    )
    with boundary():
        rows = connection.execute(query).all()
    return [
        AddressLine(
            name=row.name,
            routing=row.routing,
            kind=row.kind,
            origin=row.origin,
            created_at=row.created_at,
            groups=row.groups,
            counts=_counts(row),
        )
        for row in rows
    ]


def one_address(connection: Connection, name: str) -> AddressDetail | None:
    """The address called ``name`` with its groups; None: there is none."""
    with boundary():
        found = connection.execute(select(address).where(address.c.name == name)).one_or_none()
        if found is None:
            return None
        counted = _counted().subquery()
        rows = connection.execute(
            select(
                consumer_group.c.name,
                consumer_group.c.instance_id,
                consumer_group.c.created_at,
                *(func.coalesce(counted.c[state], 0).label(state) for state in _STATES),
            )
            .select_from(consumer_group.outerjoin(counted, counted.c.group_id == consumer_group.c.id))
            .where(consumer_group.c.address_id == found.id)
            .order_by(consumer_group.c.name)
        ).all()
    groups = tuple(
        Group(name=row.name, volatile=row.instance_id is not None, created_at=row.created_at, counts=_counts(row))
        for row in rows
    )
    return AddressDetail(
        name=found.name,
        routing=found.routing,
        kind=found.kind,
        on_expiry=found.on_expiry,
        max_attempts=found.max_attempts,
        retry=found.retry,
        retention_hours=found.retention_hours,
        origin=found.origin,
        created_at=found.created_at,
        counts=_total([group.counts for group in groups]),
        groups=groups,
    )


_waiting = or_(entry.c.available_at.is_(None), entry.c.available_at <= func.now())
#: Each entry is in exactly one of these states.
_STATES: dict[str, ColumnElement[bool]] = {
    "ready": ~held & entry.c.failed.is_(None) & _waiting,
    "inflight": held & entry.c.failed.is_(None),
    "scheduled": ~held & entry.c.failed.is_(None) & (entry.c.available_at > func.now()),
    "failed": entry.c.failed.is_not(None),
}


def _counted() -> Select[tuple[int, ...]]:
    states = (func.count().filter(condition).label(state) for state, condition in _STATES.items())
    return select(entry.c.group_id, *states).group_by(entry.c.group_id)


def _counts(row: Row[tuple[object, ...]]) -> Counts:
    return Counts(**{state: int(getattr(row, state)) for state in _STATES})


def _total(counts: Sequence[Counts]) -> Counts:
    return Counts(**{state: sum(getattr(each, state) for each in counts) for state in _STATES})
