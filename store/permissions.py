"""Administer permissions and roles: grant, revoke, list (S3). Changes are made one at a time, and counted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, insert, select, true, update

from store import audit, channels
from store.audit import Action
from store.errors import boundary
from store.tables import permission, store_identity, user_account, user_role


class Verb(StrEnum):
    """The verbs of permissions."""

    SEND = "send"
    RECEIVE = "receive"
    BROWSE = "browse"
    #: by naming an address that does not exist, or requesting a dynamic one
    CREATE = "create"
    #: be a checker: its pattern is of names of producer groups
    CHECK = "check"
    MANAGE = "manage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grantee:
    """A user, or all users with a role: one of the two is None.

    Clients without a login have the role :data:`store.tables.ANONYMOUS`.
    """

    user: str | None = None
    role: str | None = None

    def detail(self) -> dict[str, object]:
        return {"role": self.role} if self.user is None else {"user": self.user}


@dataclass(frozen=True, kw_only=True)
class PermissionLine:
    """A permission in a list."""

    user: str | None
    role: str | None
    verb: str
    pattern: str
    granted_at: datetime


def counted(connection: Connection) -> None:
    """Begin a change of users or permissions: others wait until its commit, after which all instances query anew."""
    # lock order: 9
    connection.execute(update(store_identity).values(permission_changes=store_identity.c.permission_changes + 1))
    connection.execute(select(func.pg_notify(channels.PERMISSION, "")))


def is_user(connection: Connection, name: str) -> bool:
    return connection.scalar(select(user_account.c.name).where(user_account.c.name == name)) is not None


def _of(grantee: Grantee) -> ColumnElement[bool]:
    return permission.c.role == grantee.role if grantee.user is None else permission.c.user_name == grantee.user


def grant(connection: Connection, grantee: Grantee, verbs: Collection[Verb], pattern: str) -> bool:
    """Grant a permission, if it does not exist yet; commits. False: there is no such user."""
    with boundary():
        counted(connection)
        if grantee.user is not None and not is_user(connection, grantee.user):
            return False
        for verb in verbs:
            same = _of(grantee), permission.c.verb == verb, permission.c.pattern == pattern
            if not connection.scalar(select(exists().where(*same))):
                row = {"user_name": grantee.user, "role": grantee.role, "verb": verb, "pattern": pattern}
                connection.execute(insert(permission).values(row))
        audit.note(connection, Action.GRANT, pattern, {**grantee.detail(), "verbs": list(verbs)})
        connection.commit()
    return True


def revoke(connection: Connection, grantee: Grantee, verbs: Collection[Verb], pattern: str) -> int:
    """Revoke permissions with exactly this pattern; commits. Returns how many there were."""
    with boundary():
        counted(connection)
        found = connection.execute(
            delete(permission).where(_of(grantee), permission.c.verb.in_(verbs), permission.c.pattern == pattern)
        )
        if found.rowcount:
            audit.note(connection, Action.REVOKE, pattern, {**grantee.detail(), "verbs": list(verbs)})
        connection.commit()
    return found.rowcount


def give_role(connection: Connection, user: str, role: str) -> bool:
    """Give a role to a user; commits. False: there is no such user."""
    with boundary():
        counted(connection)
        if not is_user(connection, user):
            return False
        same = user_role.c.user_name == user, user_role.c.role == role
        if not connection.scalar(select(exists().where(*same))):
            connection.execute(insert(user_role).values(user_name=user, role=role))
            audit.note(connection, Action.ROLE_GIVE, user, {"role": role})
        connection.commit()
    return True


def take_role(connection: Connection, user: str, role: str) -> bool:
    """Take a role from a user; commits. False: the user does not have it."""
    with boundary():
        counted(connection)
        found = connection.execute(delete(user_role).where(user_role.c.user_name == user, user_role.c.role == role))
        if found.rowcount:
            audit.note(connection, Action.ROLE_TAKE, user, {"role": role})
        connection.commit()
    return found.rowcount == 1


def list_all(connection: Connection) -> list[PermissionLine]:
    """Return all permissions, those of users first, each in the order of names."""
    with boundary():
        rows = connection.execute(
            select(
                permission.c.user_name.label("user"), *permission.c["role", "verb", "pattern", "granted_at"]
            ).order_by(permission.c.user_name, permission.c.role, permission.c.pattern, permission.c.verb)
        ).all()
    return [PermissionLine(**row._mapping) for row in rows]


def users_of(connection: Connection, role: str) -> list[str]:
    """Return the users that have the role, by name."""
    with boundary():
        found = select(user_role.c.user_name).where(user_role.c.role == role).order_by(user_role.c.user_name)
        return list(connection.scalars(found))


def count(connection: Connection, grantee: Grantee, verbs: Collection[Verb], pattern: str) -> int:
    """Return how many permissions :func:`revoke` would revoke."""
    with boundary():
        found = select(func.count()).where(_of(grantee), permission.c.verb.in_(verbs), permission.c.pattern == pattern)
        return connection.scalar(found) or 0


class There(NamedTuple):
    """Whether the store has any users, and any permissions."""

    users: bool
    permissions: bool

    @property
    def none_counts(self) -> bool:
        """Whether clients without a login may do everything, as there are none of both."""
        return not self.users and not self.permissions


def there(
    connection: Connection, *, but_user: str | None = None, but: tuple[Grantee, Collection[Verb], str] | None = None
) -> There:
    """Say whether there are users and permissions, except a user with its permissions, and what :func:`revoke` would
    revoke.
    """
    of_users, of_permissions = select(user_account), select(permission)
    if but_user is not None:
        of_users = of_users.where(user_account.c.name != but_user)
        of_permissions = of_permissions.where(permission.c.user_name.is_distinct_from(but_user))
    if but is not None:
        grantee, verbs, pattern = but
        its = and_(_of(grantee), permission.c.verb.in_(verbs), permission.c.pattern == pattern)
        of_permissions = of_permissions.where(its.is_not(true()))
    with boundary():
        found = connection.execute(select(exists(of_users), exists(of_permissions))).one()
    return There(*found)


def none_counts(connection: Connection) -> bool:
    """Return :attr:`There.none_counts`."""
    return there(connection).none_counts
