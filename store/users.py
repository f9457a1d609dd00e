"""Administer users (S1): commands add, list, change and remove them; instances query their verifiers.

No password is passed to this module: see :class:`Verifier`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Connection, delete, func, insert, select, true, update

from store import arrays, audit, channels, permissions
from store.asking import Query, nothing
from store.audit import Action
from store.errors import boundary
from store.tables import SCHEMA, user_account, user_role, user_verifier

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from store.asking import Queries, Row
    from store.errors import StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """Verifies a password without containing it (RFC 5802, section 3).

    ``salt``: 16 octets; the keys have the length of the mechanism's hash.
    """

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes
    #: the id of its user, once it is stored
    user_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class UserLine:
    """A user in a list."""

    name: str
    #: never reused, not even for a user of the same name
    id: str
    #: None: the user may log in
    disabled_at: datetime | None
    created_at: datetime
    #: None: the user has no password
    password_set_at: datetime | None
    roles: list[str]


def add(connection: Connection, name: str, verifiers: Mapping[str, Verifier]) -> None:
    """Add a user; commits. ``verifiers``: by mechanism.

    :raises UserExists: a user of that name exists.
    """
    with boundary():
        permissions.counted(connection)
        user_id = connection.scalar(insert(user_account).values(name=name).returning(user_account.c.id))
        _put(connection, name, verifiers)
        audit.note(connection, Action.USER_ADD, name, {"id": user_id, "mechanisms": sorted(verifiers)})
        connection.commit()


def set_verifiers(connection: Connection, name: str, verifiers: Mapping[str, Verifier]) -> bool:
    """Set a new password, replacing all earlier verifiers; commits. False: there is no such user."""
    with boundary():
        # lock order: 9
        there = select(user_account.c.name).where(user_account.c.name == name).with_for_update()
        if connection.scalar(there) is None:
            return False
        connection.execute(delete(user_verifier).where(user_verifier.c.user_name == name))
        _put(connection, name, verifiers)
        audit.note(connection, Action.USER_PASSWORD, name)
        connection.commit()
    return True


def _put(connection: Connection, name: str, verifiers: Mapping[str, Verifier]) -> None:
    for mechanism, each in verifiers.items():
        connection.execute(
            insert(user_verifier).values(
                user_name=name,
                mechanism=mechanism,
                salt=each.salt,
                iterations=each.iterations,
                stored_key=each.stored_key,
                server_key=each.server_key,
            )
        )


def disable(connection: Connection, name: str) -> bool:
    """Forbid a user to log in, and have all instances end its connections; commits. False: there is no such user."""
    with boundary():
        found = connection.execute(
            update(user_account)
            .where(user_account.c.name == name)
            .values(disabled_at=func.coalesce(user_account.c.disabled_at, func.now()))
        )
        _tell(connection, name, Action.USER_DISABLE, found.rowcount)
    return found.rowcount == 1


def enable(connection: Connection, name: str) -> bool:
    """Allow a user to log in again; commits. False: there is no such user."""
    with boundary():
        found = connection.execute(update(user_account).where(user_account.c.name == name).values(disabled_at=None))
        if found.rowcount:
            audit.note(connection, Action.USER_ENABLE, name)
        connection.commit()
    return found.rowcount == 1


def remove(connection: Connection, name: str) -> bool:
    """Remove a user with its password, roles and permissions, and have all instances end its connections; commits.

    False: there is no such user.
    """
    with boundary():
        permissions.counted(connection)
        found = connection.execute(delete(user_account).where(user_account.c.name == name))
        _tell(connection, name, Action.USER_REMOVE, found.rowcount)
    return found.rowcount == 1


def _tell(connection: Connection, name: str, action: Action, changed: int) -> None:
    if changed:
        audit.note(connection, action, name)
    connection.execute(select(func.pg_notify(channels.USER, name)))
    connection.commit()


def list_all(connection: Connection, *, after: str | None = None, most: int | None = None) -> list[UserLine]:
    """Return the users by name: those behind ``after``, and ``most`` at most."""
    behind = true() if after is None else user_account.c.name > after
    of_user = user_role.c.user_name == user_account.c.name
    roles = func.array(select(user_role.c.role).where(of_user).order_by(user_role.c.role).scalar_subquery())
    with boundary():
        rows = connection.execute(
            select(
                user_account,
                func.max(user_verifier.c.changed_at).label("password_set_at"),
                roles.label("roles"),
            )
            .outerjoin(user_verifier, user_verifier.c.user_name == user_account.c.name)
            .where(behind)
            .group_by(user_account.c.name)
            .order_by(user_account.c.name)
            .limit(most)
        ).all()
    return [UserLine(**row._mapping) for row in rows]


def any_enabled(connection: Connection) -> bool:
    """Whether any user may log in."""
    with boundary():
        there = select(user_account.c.name).where(user_account.c.disabled_at.is_(None)).limit(1)
        return connection.scalar(there) is not None


# Queries of users: the verifier of a password, and which of the connected users may stay connected (S1).


def _verifier(rows: list[Row]) -> Verifier | None:
    if not rows:
        return None
    salt, iterations, stored_key, server_key, user_id = rows[0]
    return Verifier(salt=salt, iterations=iterations, stored_key=stored_key, server_key=server_key, user_id=user_id)


#: name, mechanism: selects the verifier of a user that may log in
VERIFIER = Query(
    b"verifier",
    f"""select v.salt, v.iterations, v.stored_key, v.server_key, u.id
          from {SCHEMA}.user_account u join {SCHEMA}.user_verifier v on v.user_name = u.name
         where u.name = $1::text and v.mechanism = $2::text and u.disabled_at is null""",
    _verifier,
)


class Account(NamedTuple):
    """A user of the store. ``enabled``: it may log in."""

    id: str
    enabled: bool


def _accounts(rows: list[Row]) -> dict[str, Account]:
    return {name: Account(user_id, enabled) for name, user_id, enabled in rows}


#: names: selects those that are users
ACCOUNTS = Query(
    b"accounts",
    f"select name, id, disabled_at is null from {SCHEMA}.user_account where name = any($1::text[])",
    _accounts,
)


#: selects whether any user exists
ANY = Query(b"any user", f"select from {SCHEMA}.user_account limit 1", bool)


def are_there(asked: Queries, answered: Callable[[bool | StoreError], None]) -> None:
    """Query whether any user exists."""
    asked.ask(ANY, [], answered)


def verifier(
    asked: Queries, name: str, mechanism: str, answered: Callable[[Verifier | StoreError | None], None]
) -> None:
    """Query a user's verifier; None: there is no such user, it is disabled, or it has no password."""
    asked.ask(VERIFIER, [arrays.octets_of(name), mechanism.encode()], answered)


def accounts(
    asked: Queries, names: Collection[str], answered: Callable[[dict[str, Account] | StoreError], None]
) -> None:
    """Query which of ``names`` are users, and may log in: a user that is added again has another id."""
    asked.ask(ACCOUNTS, [arrays.text([name.encode() for name in names])], answered)


# Failed logins, for the audit (S10).

#: users ('': no user), hosts ('': several), why ('': not recorded), how often: adds them to the audit
_FAILED = Query(
    b"failed_logins",
    f"""insert into {SCHEMA}.audit (action, client_user, place, detail, times)
        select '{Action.LOGIN_FAILED}', nullif(f.name, ''), nullif(f.host, ''),
               jsonb_strip_nulls(jsonb_build_object('why', nullif(f.why, ''))), f.times
          from unnest($1::text[], $2::text[], $3::text[], $4::int4[]) f(name, host, why, times)""",
    nothing,
)


def failed_logins(
    asked: Queries, rows: Sequence[tuple[str, str, str, int]], answered: Callable[[StoreError | None], None]
) -> None:
    """Add failed logins to the audit: user, host, reason, and how often each failed."""
    *told, times = zip(*rows, strict=True)
    parameters = [arrays.text([arrays.octets_of(each) for each in column]) for column in told]
    parameters.append(arrays.int4(times))
    asked.ask(_FAILED, parameters, answered)
