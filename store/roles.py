"""Grant database roles to a service that owns nothing, and to one that only reads, such as Spark (S9).

The service's role can add halves, ops and rows of the audit, and neither change nor delete one; it can alter, drop and
truncate nothing. Retention, which empties and drops days, runs as the owner: by ``coordinator maintain``, or with the
embedded server by the service's own maintenance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from psycopg import sql
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from store import audit
from store.embedded.running import SERVES
from store.errors import Conflict, StoreUnavailable, boundary
from store.tables import SCHEMA, inbox_owner, metadata

#: Roles that cannot log in, to which the privileges of their members are granted.
SERVICE = "coordinator_service"
READER = "coordinator_reader"
#: Members may call the functions for applications and read some views, but have no privilege on a table.
APPLICATION = "coordinator_application"
#: The views that an application may read.
VIEWS = ("addresses", "entries", "groups", "messages", "outcome", "undecided")
#: The functions that it may call: ``store/sql/application.sql``.
_CALLED = (
    *(
        f"{name}(text, {body}, jsonb, jsonb, text, interval, timestamptz, interval, int4)"
        for name, of in (("post", ""), ("post_many", "[]"))
        for body in (f"text{of}", f"bytea{of}", f"jsonb{of}")
    ),
    "post_octets(text, bytea, timestamptz, timestamptz, int4, text)",
    "discharge(uuid, bool)",
    "first_time(text, text)",
)

#: Tables to which the service only adds rows.
_APPENDED = ("half", "op")
#: Tables written by migrations, retention and the archive, as the owner; in the identity the service counts changes.
_READ = ("alembic_version", "retention", "archive", "archived_day", "store_identity")
#: The columns that the service writes in a row of the audit: the server fills in role and time.
_TOLD = ("action", "subject", "detail", "reason", "os_user", "client_user", "place", "times")
#: Tables that a reader does not see: they have the verifiers of passwords, the store's secret, and the audit.
_SECRET = ("user_verifier", "store_identity", "audit")
_IDENTITY = ("singleton", "id", "created_at", "permission_changes")

_EXISTS = text("select exists (select from pg_roles where rolname = :name)")
_DUPLICATE = "42710"


class NoSuchRole(Conflict):
    """The database has no role of that name."""


class NotApart(Conflict):
    """The role owns the store, or is a superuser: its privileges cannot be restricted."""


def _qualified(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"{SCHEMA}.{name}" for name in names)


def _each_day(what: str, role: str) -> str:
    """Return SQL that grants ``what`` on the existing days; a new day has the privileges of its table."""
    return f"""do $$
declare
  day regclass;
begin
  for day in select inhrelid::regclass from pg_inherits
              where inhparent in ('{SCHEMA}.half'::regclass, '{SCHEMA}.op'::regclass) loop
    execute 'grant {what} on ' || day || ' to {role}';
  end loop;
end $$"""


def statements(role: str) -> list[str]:
    """Return the SQL that grants the privileges of one of the three roles, for the store's owner to run.

    For :data:`SERVICE` and :data:`READER` the first statement revokes earlier grants.
    """
    if role == APPLICATION:
        return [
            f"grant usage on schema {SCHEMA} to {role}",
            f"grant execute on function {_qualified(_CALLED)} to {role}",
            f"grant select on {_qualified(VIEWS)} to {role}",
        ]
    begin = [
        f"revoke all on all tables in schema {SCHEMA} from {role}",
        f"grant usage on schema {SCHEMA} to {role}",
        f"grant select on all tables in schema {SCHEMA} to {role}",
    ]
    if role == READER:
        return [
            *begin,
            f"revoke select on {_qualified(list(_SECRET))} from {role}",
            f"grant select ({', '.join(_IDENTITY)}) on {SCHEMA}.store_identity to {role}",
        ]
    changed = sorted({table.name for table in metadata.sorted_tables} - {*_APPENDED, *_READ, "audit"})
    return [
        *begin,
        f"grant insert on {_qualified(_APPENDED)} to {role}",
        _each_day("insert", role),
        f"grant insert ({', '.join(_TOLD)}) on {SCHEMA}.audit to {role}",
        f"grant insert, update, delete on {_qualified(changed)} to {role}",
        f"grant update (permission_changes) on {SCHEMA}.store_identity to {role}",
        f"revoke update on all sequences in schema {SCHEMA} from {role}",
        f"grant usage, select on all sequences in schema {SCHEMA} to {role}",
        f"grant update on {SCHEMA}.promoted to {role}",
        f"grant execute on all functions in schema {SCHEMA} to {role}",
    ]


def script(given: Iterable[tuple[str, str]], consumers: Collection[str] = ()) -> str:
    """Return what :func:`grant` and :func:`grant_application` do with these groups and roles, for an administrator to
    look at and run, also again beside a service: one SQL transaction, so that it lacks no right meanwhile.
    """
    lines = ["begin"]
    for group, role in given:
        lines += [_made(group), *statements(group), f"grant {group} to {_quoted(role)}"]
        lines += [_owned(name, role) for name in consumers if group == APPLICATION]
    return "".join(f"{line};\n" for line in [*lines, "commit"])


def _made(group: str) -> str:
    return f"""do $$
begin
  if not exists (select from pg_roles where rolname = '{group}') then
    create role {group} nologin;
  end if;
end $$"""


def _owned(consumer: str, role: str) -> str:
    """Return the SQL by which the consumer's name in the inbox belongs to the role."""
    owned = sql.SQL(
        "insert into {} (consumer, owner) values ({}, {}) on conflict (consumer) do update set owner = excluded.owner"
    )
    return owned.format(sql.Identifier(SCHEMA, inbox_owner.name), consumer, role).as_string(None)


def _quoted(role: str) -> str:
    return sql.Identifier(role).as_string(None)


def grant(connection: Connection, group: str, role: str) -> None:
    """Make ``role`` a member of ``group``, :data:`SERVICE` or :data:`READER`, which is made where it is missing, with
    rights to what there is now; commits. Roles are those of the whole server: two stores in one server share both.

    :raises NoSuchRole: the server has no such role.
    :raises NotApart: the role can do everything anyway.
    :raises StoreUnavailable: the role of this connection may not do this.
    """
    with boundary():
        make(connection, group, for_=role)
        if owns(connection, role):
            connection.rollback()
            raise NotApart(f"the role {role} owns the store, or is a superuser: make another one for this")
        _grant(connection, group, role)
        audit.note(connection, audit.Action.GRANT_ROLES, role, {"group": group})
        connection.commit()


def _grant(connection: Connection, group: str, role: str) -> None:
    for statement in statements(group):
        connection.exec_driver_sql(statement)
    join(connection, group, role)


def grant_application(connection: Connection, role: str, consumers: Collection[str] = ()) -> None:
    """Make ``role`` a member of :data:`APPLICATION`, which is made where it is missing, with rights to what there is;
    commits. Roles are those of the whole server: two stores in one server share it, each with rights of its own. From
    now on the names of ``consumers`` in the inbox belong to it (X4), also those that another role had.

    :raises NoSuchRole: the server has no such role.
    :raises StoreUnavailable: the role of this connection may make no roles, or give none.
    """
    with boundary():
        make(connection, APPLICATION, for_=role)
        _grant(connection, APPLICATION, role)
        for name in consumers:
            connection.exec_driver_sql(_owned(name, role).replace("%", "%%"))
        audit.note(connection, audit.Action.GRANT_SQL, role, {"inbox": sorted(consumers)} if consumers else {})
        connection.commit()


def put_apart(connection: Connection, role: str) -> None:
    """Make ``role`` where it is missing, which runs the service and owns nothing, in a server that the store has to
    itself; commits.
    """
    with boundary():
        if not connection.scalar(_EXISTS, {"name": role}):
            connection.exec_driver_sql(f"create role {_quoted(role)} login")
        make(connection, SERVICE, for_=role)
        _grant(connection, SERVICE, role)
        connection.commit()


def closed(connection: Connection) -> bool:
    """Whether the server of this connection is an embedded one that applications cannot reach: it has a role of its
    own for the service, and listens at no port.
    """
    found = text(
        "select current_setting('listen_addresses') = '' and exists (select from pg_roles where rolname = :serves)"
    )
    return bool(connection.scalar(found, {"serves": SERVES}))


def owns(connection: Connection, role: str | None = None) -> bool:
    """Whether ``role``, or that of this connection, may do what the owner of the store may."""
    found = text(
        "select pg_has_role(coalesce(:role, current_user), relowner, 'usage') from pg_class "
        f"where oid = '{SCHEMA}.half'::regclass"
    )
    return bool(connection.scalar(found, {"role": role}))


def make(connection: Connection, group: str, *, for_: str) -> None:
    """Make the role ``group`` where it is missing. The SQL transaction is the caller's.

    :raises NoSuchRole: there is no role ``for_``, that is to be its member.
    """
    if not connection.scalar(_EXISTS, {"name": for_}):
        connection.rollback()
        raise NoSuchRole(f"there is no role {for_}")
    if connection.scalar(_EXISTS, {"name": group}):
        return
    try:
        with connection.begin_nested():
            connection.execute(text(f"create role {group} nologin"))
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != _DUPLICATE:  # else another has just made it
            _refuse(error, f"create role {group} nologin")


def join(connection: Connection, group: str, role: str) -> None:
    """Make ``role`` a member of ``group``. The SQL transaction is the caller's."""
    member = text("select pg_has_role(:name, :role, 'member')")
    if not connection.scalar(member, {"name": role, "role": group}):
        try:
            # the driver takes what comes after a % for a parameter
            connection.exec_driver_sql(f"grant {group} to {_quoted(role)}".replace("%", "%%"))
        except DBAPIError as error:
            _refuse(error, f"grant {group} to {role}")


def _refuse(error: DBAPIError, statement: str) -> None:
    if getattr(error.orig, "sqlstate", None) != "42501":
        raise error
    text = f"the database's role lacks a permission; have an administrator run: {statement}"
    raise StoreUnavailable(text, sqlstate="42501") from None
