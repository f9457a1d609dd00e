"""Show the connections of clients to operators, and have one closed.

Each instance writes its own (:mod:`store.questions.connections`), and closes what this module asks it to close.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select, text, tuple_, update

from store import audit, channels
from store.audit import Action
from store.errors import Conflict, boundary
from store.questions.connections import LinkLine
from store.recovery import LIVE
from store.tables import SCHEMA, instance
from store.tables import connection as client_connection

#: Seconds in which an instance closes a connection, unless its database or its machine is slow.
CLOSE_SECONDS = 10.0
_POLL_SECONDS = 0.05


class NoSuchConnection(Conflict):
    """The store knows no open connection of that id."""


class ClosedAlready(Conflict):
    """The connection has ended."""


class NotClosed(Conflict):
    """The instance of the connection has not closed it in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionId:
    """The id of a connection over all instances, as text ``INSTANCE-NUMBER``."""

    instance: int
    number: int

    def __str__(self) -> str:
        return f"{self.instance}-{self.number}"


@dataclass(frozen=True, kw_only=True)
class ConnectionLine:
    """A connection of a client, as its instance has last written it."""

    #: the text of its :class:`ConnectionId`
    connection: str
    #: None: without a login
    user: str | None
    host: str
    #: None: a client of the same machine without one
    port: int | None
    container_id: str
    product: str | None
    version: str | None
    #: the version of TLS; None: without
    tls: str | None
    #: None: it has ended before it was open
    opened_at: datetime | None
    sessions: int
    links: int
    unsettled: int
    #: messages that the client has posted, and that it was sent
    posted: int
    delivered: int
    posted_per_second: float
    delivered_per_second: float
    last_error: str | None
    #: None: it is open
    closed_at: datetime | None
    #: as :class:`links.close_reason.CloseReason` has it
    close_reason: str | None
    written_at: datetime
    instance_id: int


@dataclass(frozen=True, kw_only=True)
class ConnectionDetail(ConnectionLine):
    """A connection with the first hundred of its links."""

    link_list: list[LinkLine]


_HIDDEN = ("number", "user_name", "link_list", "close_asked")


def _lines() -> Select[Any]:
    return select(client_connection).where(client_connection.c.instance_id.in_(LIVE))


def _line(row: Row[Any]) -> ConnectionLine:
    values = {name: value for name, value in row._mapping.items() if name not in _HIDDEN}
    return ConnectionLine(connection=f"{row.instance_id}-{row.number}", user=row.user_name, **values)


def all_connections(
    connection: Connection,
    most: int | None,
    *,
    user: str | None = None,
    closed: bool = False,
    after: tuple[datetime, ConnectionId] | None = None,
) -> list[ConnectionLine]:
    """Return the open connections of all living instances, the oldest first, at most ``most``: those behind ``after``.

    ``user``: those of this one. ``closed``: in place of them the last that have ended, the latest first.
    """
    columns = client_connection.c
    query = _lines()
    if user is not None:
        query = query.where(columns.user_name == user)
    if closed:
        query = query.where(columns.closed_at.is_not(None))
        query = query.order_by(columns.closed_at.desc())
    else:
        query = query.where(columns.closed_at.is_(None)).order_by(columns.opened_at)
    if after is not None:
        key = after[0], after[1].instance, after[1].number
        query = query.where(tuple_(columns.opened_at, columns.instance_id, columns.number) > key)
    query = query.order_by(columns.instance_id, columns.number)
    with boundary():
        rows = connection.execute(query.limit(most)).all()
        connection.rollback()
    return [_line(row) for row in rows]


def one(connection: Connection, wanted: ConnectionId) -> ConnectionDetail:
    """Return a connection, open or among the last that have ended.

    :raises NoSuchConnection: there is none.
    :raises ClosedAlready: its instance has ended.
    """
    with boundary():
        row = connection.execute(_lines().where(_is(wanted))).one_or_none()
        if row is None:
            raise _why_none(connection, wanted)
        connection.rollback()
    return ConnectionDetail(**vars(_line(row)), link_list=[LinkLine(**each) for each in row.link_list])


def links_of(connection: Connection, address: str, most: int) -> list[tuple[str, LinkLine]]:
    """Return the links of open connections to an address, or to a group of it, at most ``most``: the text of each one's
    connection, and the link. Of a connection the first hundred links are known. Reads the whole list of connections.
    """
    links = text(
        f"select connection, name, role, address, credit, unsettled, deliveries from {SCHEMA}.links"
        " where address = :address or starts_with(address, :groups) order by role, connection, name limit :most"
    )
    with boundary():
        rows = connection.execute(links, {"address": address, "groups": f"{address}::", "most": most}).all()
        connection.rollback()
    return [(row[0], LinkLine(*row[1:])) for row in rows]


def ask_to_close(connection: Connection, wanted: ConnectionId, reason: str | None) -> None:
    """Have the instance close the connection, with ``reason`` as a part of what its client is told; commits.

    :raises NoSuchConnection: there is none.
    :raises ClosedAlready: it has ended, or its instance has.
    """
    here = (_is(wanted), client_connection.c.closed_at.is_(None), client_connection.c.instance_id.in_(LIVE))
    ask = update(client_connection).where(*here).values(close_asked=reason or "").returning(client_connection)
    with boundary():
        row = connection.execute(ask).one_or_none()
        if row is None:
            connection.rollback()
            raise _why_none(connection, wanted)
        its = {"user": row.user_name, "host": row.host, "port": row.port, "container": row.container_id}
        audit.note(connection, Action.CONNECTION_CLOSE, str(wanted), its)
        connection.execute(select(func.pg_notify(channels.CONNECTION, str(wanted.instance))))
        connection.commit()


def wait_until_closed(connection: Connection, wanted: ConnectionId) -> None:
    """Wait until the instance has closed the connection, or has ended itself.

    :raises NotClosed: it has not, for :data:`CLOSE_SECONDS`; the request stays.
    """
    still = (_is(wanted), client_connection.c.closed_at.is_(None), client_connection.c.instance_id.in_(LIVE))
    deadline = time.monotonic() + CLOSE_SECONDS
    while True:
        with boundary():
            row = connection.execute(select(client_connection.c.number).where(*still)).one_or_none()
            connection.rollback()
        if row is None:
            return
        if time.monotonic() >= deadline:
            raise NotClosed(
                f"the instance {wanted.instance} has not closed the connection {wanted} for {CLOSE_SECONDS:g} s; "
                "it does once it reads the request in the store: coordinator check says whether it is at work"
            )
        time.sleep(_POLL_SECONDS)


def _is(wanted: ConnectionId) -> Any:
    return (client_connection.c.instance_id == wanted.instance) & (client_connection.c.number == wanted.number)


def _why_none(connection: Connection, wanted: ConnectionId) -> NoSuchConnection | ClosedAlready:
    ended = connection.execute(
        select(instance.c.ended_at).where(instance.c.id == wanted.instance, instance.c.ended_at.is_not(None))
    ).scalar()
    row = connection.execute(select(client_connection).where(_is(wanted))).one_or_none()
    connection.rollback()
    if ended is not None:
        at = ended.isoformat(sep=" ", timespec="seconds")
        return ClosedAlready(f"the instance {wanted.instance} has ended at {at}, and its connections with it")
    if row is not None and row.closed_at is not None:
        at = row.closed_at.isoformat(sep=" ", timespec="seconds")
        return ClosedAlready(f"the connection {wanted} was closed at {at} already: {row.close_reason}")
    said = "(coordinator connection list has them; a new one after some seconds)"
    return NoSuchConnection(f"there is no connection {wanted} {said}")
