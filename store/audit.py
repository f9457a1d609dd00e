"""Record who has decided what, when, from where and why (S10): a row in the SQL transaction of the change itself.

A command of many SQL transactions, such as a purge, has its row in the first. Rows cannot be changed, nor deleted
for :data:`store.tables.AUDIT_DAYS` days: a trigger refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Connection, delete, func, insert, or_, select, tuple_

from store.errors import boundary
from store.tables import AUDIT_DAYS, audit

#: The most characters of a reason.
LONGEST_REASON = 1000
#: The least time that rows are kept.
SHORTEST_KEPT = timedelta(days=AUDIT_DAYS)
#: Rows deleted in one SQL transaction.
CHUNK = 10_000

_ACTOR: Final = "actor"


class Action(StrEnum):
    """The recorded actions."""

    LOGIN_FAILED = "login-failed"
    RESOLVE = "resolve"
    RESUME = "resume"
    #: of dead letters
    REPLAY = "replay"
    #: of a reconciliation's findings
    REPAIR = "repair"
    SEEK = "seek"
    #: of one message
    RETIRE = "retire"
    PURGE = "purge"
    ADDRESS_ADD = "address-add"
    ADDRESS_SET = "address-set"
    ADDRESS_REMOVE = "address-remove"
    GROUP_SET = "group-set"
    GROUP_PAUSE = "group-pause"
    GROUP_RESUME = "group-resume"
    USER_ADD = "user-add"
    USER_PASSWORD = "user-password"  # noqa: S105 - a name
    USER_DISABLE = "user-disable"
    USER_ENABLE = "user-enable"
    USER_REMOVE = "user-remove"
    ROLE_GIVE = "role-give"
    ROLE_TAKE = "role-take"
    CONNECTION_CLOSE = "connection-close"
    GRANT = "grant"
    REVOKE = "revoke"
    GRANT_SQL = "grant-sql"
    GRANT_ROLES = "grant-roles"


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """The person behind a connection: their user of the operating system, the host, and the reason they give. By HTTP
    the name of the operator, and ``api`` or ``console`` with the remote address.
    """

    os_user: str
    host: str
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class AuditLine:
    """A row of the audit. At most one of ``os_user`` and ``client_user`` is set: neither, if a program did it."""

    id: int
    at: datetime
    action: str
    subject: str | None
    detail: dict[str, Any]
    reason: str | None
    database_role: str
    os_user: str | None
    client_user: str | None
    place: str | None
    times: int


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Selects rows of the audit; None: all. ``who``: a user of any of the three kinds; ``before``: the id of a row,
    which they precede.
    """

    since: datetime | None = None
    until: datetime | None = None
    who: str | None = None
    action: Action | None = None
    before: int | None = None


def act_as(connection: Connection, actor: Actor) -> None:
    """Record ``actor`` in all rows that are added on this connection from now on."""
    connection.info[_ACTOR] = actor


def person(connection: Connection) -> tuple[str | None, str | None]:
    """Return the name of the person who acts on this connection, and the reason; None: it is not known."""
    actor: Actor | None = connection.info.get(_ACTOR)
    return (None, None) if actor is None else (actor.os_user, actor.reason)


def note(
    connection: Connection, action: Action, subject: str | None, detail: Mapping[str, object] | None = None
) -> None:
    """Add a row to the SQL transaction under way, which is the caller's. ``detail``: values of JSON."""
    note_each(connection, action, [(subject, detail or {})])


def note_each(connection: Connection, action: Action, told: Sequence[tuple[str | None, Mapping[str, object]]]) -> None:
    """Add rows for several changes, at least one: the subject and the detail of each."""
    actor: Actor | None = connection.info.get(_ACTOR)
    by = {} if actor is None else {"os_user": actor.os_user, "place": actor.host, "reason": actor.reason}
    rows = [{"action": action, "subject": subject, "detail": dict(detail), **by} for subject, detail in told]
    connection.execute(insert(audit).values(rows))


def read(connection: Connection, wanted: Wanted, most: int) -> list[AuditLine]:
    """Return the last ``most`` of the wanted rows, the oldest first."""
    query = select(audit)
    if wanted.since is not None:
        query = query.where(audit.c.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(audit.c.at < wanted.until)
    if wanted.who is not None:
        users = audit.c.os_user, audit.c.client_user, audit.c.database_role
        query = query.where(or_(*(column == wanted.who for column in users)))
    if wanted.action is not None:
        query = query.where(audit.c.action == wanted.action)
    if wanted.before is not None:
        its = audit.alias()
        key = select(its.c.at, its.c.id).where(its.c.id == wanted.before).scalar_subquery()
        query = query.where(tuple_(audit.c.at, audit.c.id) < key)
    with boundary():
        rows = connection.execute(query.order_by(audit.c.at.desc(), audit.c.id.desc()).limit(most)).all()
        connection.rollback()
    return [AuditLine(**row._mapping) for row in reversed(rows)]


def forget(connection: Connection, kept: timedelta, *, chunk: int = CHUNK) -> int:
    """Delete rows that are older than ``kept``, which is no less than :data:`SHORTEST_KEPT`; commits piece by piece.
    Returns how many.
    """
    old = select(audit.c.id).where(audit.c.at < func.now() - kept).order_by(audit.c.at).limit(chunk)
    forgotten = 0
    with boundary():
        while gone := connection.execute(delete(audit).where(audit.c.id.in_(old))).rowcount:
            connection.commit()
            forgotten += gone
        connection.rollback()
    return forgotten
