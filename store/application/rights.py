"""The role whose members may call what an application calls, read the views, and touch no table."""

from __future__ import annotations

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from store.application import enlistment, outbox
from store.errors import Conflict, StoreUnavailable, boundary
from store.tables import SCHEMA

ROLE = "coordinator_application"
#: What its members may read.
VIEWS = ("addresses", "entries", "groups", "messages", "outcome", "undecided")

_FUNCTIONS = (*outbox.signatures(SCHEMA), *enlistment.signatures(SCHEMA), f"{SCHEMA}.first_time(text, text)")
_DUPLICATE = "42710"


class NoSuchRole(Conflict):
    """The database has no role of that name."""


def grant(connection: Connection, role: str) -> None:
    """Make ``role`` a member of :data:`ROLE`, which is made where it is missing, with rights to what there is now;
    commits. Roles are those of the whole server: two stores in one server share it, each with rights of its own.

    :raises NoSuchRole: the server has no such role.
    :raises StoreUnavailable: the role of this connection may make no roles, or give none.
    """
    quoted = connection.dialect.identifier_preparer.quote_identifier(role)
    exists = text("select exists (select from pg_roles where rolname = :name)")
    with boundary():
        if not connection.scalar(exists, {"name": role}):
            connection.rollback()
            raise NoSuchRole(f"there is no role {role}")
        if not connection.scalar(exists, {"name": ROLE}):
            _make(connection)
        connection.execute(text(f"grant usage on schema {SCHEMA} to {ROLE}"))
        connection.execute(text(f"grant execute on function {', '.join(_FUNCTIONS)} to {ROLE}"))
        connection.execute(text(f"grant select on {', '.join(f'{SCHEMA}.{view}' for view in VIEWS)} to {ROLE}"))
        member = text("select pg_has_role(:name, :role, 'member')")
        if not connection.scalar(member, {"name": role, "role": ROLE}):
            try:
                connection.exec_driver_sql(f"grant {ROLE} to {quoted}")
            except DBAPIError as error:
                _refuse(error, f"grant {ROLE} to {role}")
        connection.commit()


def _make(connection: Connection) -> None:
    try:
        with connection.begin_nested():
            connection.execute(text(f"create role {ROLE} nologin"))
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != _DUPLICATE:  # else another has just made it
            _refuse(error, f"create role {ROLE} nologin")


def _refuse(error: DBAPIError, statement: str) -> None:
    if getattr(error.orig, "sqlstate", None) != "42501":
        raise error
    text = f"the database's role lacks a permission; have an administrator run: {statement}"
    raise StoreUnavailable(text, sqlstate="42501") from None
