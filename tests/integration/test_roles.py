"""A service that owns nothing, and a reader that only reads (rule S9): what their roles of the database cannot do."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors, sql
from sqlalchemy import Connection
from typer.testing import CliRunner, Result

from coordinator.__main__ import app
from store import audit, connections, partitions, purge, roles, undecided, users
from store.database import connected
from store.errors import StoreUnavailable
from store.ids import HalfIds, UuidV7, begin_of, id_at
from tests.fix_night import by_night
from tests.fix_store import Rows
from tests.fix_store_driver import ME

pytestmark = pytest.mark.rule("S9")

Session = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True)
class Granted:
    """A store, and its roles."""

    url: str
    service: str
    reader: str

    def as_role(self, role: str) -> Session:
        """A session with the rights of ``role``, as if it had logged in."""
        session: Session = psycopg.connect(self.url, autocommit=True)
        session.execute(sql.SQL("set session authorization {}").format(sql.Identifier(role)))
        return session


@pytest.fixture(scope="module")
def granted(module_database_url: str) -> Iterator[Granted]:
    names = [f"test {name} {secrets.token_hex(4)}" for name in ("service", "reader")]
    with psycopg.connect(module_database_url, autocommit=True) as owner:
        for name in names:
            owner.execute(sql.SQL("create role {} login").format(sql.Identifier(name)))
        with connected(module_database_url) as connection:
            for group, name in zip((roles.SERVICE, roles.READER), names, strict=True):
                roles.grant(connection, group, name)
                roles.grant(connection, group, name)  # again, as after an upgrade
        yield Granted(module_database_url, *names)
        for name in names:
            owner.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@pytest.fixture
def service(granted: Granted) -> Iterator[Session]:
    with granted.as_role(granted.service) as session:
        yield session


@pytest.fixture
def reader(granted: Granted) -> Iterator[Session]:
    with granted.as_role(granted.reader) as session:
        yield session


TODAY = f"{datetime.now(UTC):%Y%m%d}"
_TABLES = "select relname from pg_class where relnamespace = 'coordinator'::regnamespace and relkind in ('r', 'p')"


def _tables(session: Session) -> list[str]:
    return [name for (name,) in session.execute(_TABLES)]


def test_the_service_owns_nothing(service: Session) -> None:
    owned = "select relname from pg_class where pg_get_userbyid(relowner) = session_user"
    assert service.execute(owned).fetchall() == []
    assert len(_tables(service)) > 30, "else the tests beside this one look at nothing"


@pytest.mark.parametrize("day", [by_night(""), f"_{TODAY}"])
@pytest.mark.parametrize("table", ["half", "op"])
@pytest.mark.parametrize("statement", ["update {} set id = id", "delete from {}"])
def test_the_service_cannot_change_halves_and_ops(service: Session, statement: str, table: str, day: str) -> None:
    with pytest.raises(errors.InsufficientPrivilege):
        service.execute(statement.format(f"coordinator.{table}{day}"))


@pytest.mark.parametrize(
    "statement",
    [
        "alter table {} add column x int",
        "alter table {} disable trigger all",
        "drop table {}",
        "truncate {}",
        "create trigger x before insert on {} for each row execute function coordinator.append_only()",
        "create index on {} ((1))",
        "alter table {} owner to session_user",
    ],
)
def test_the_service_cannot_alter_drop_or_truncate_any_table(service: Session, statement: str) -> None:
    for table in _tables(service):
        with pytest.raises(errors.InsufficientPrivilege):
            service.execute(statement.format(f"coordinator.{table}"))


@pytest.mark.parametrize(
    "statement",
    [
        "create table coordinator.mine (id int)",
        "drop schema coordinator cascade",
        "create or replace function coordinator.make_day(day date) returns text[] language sql as 'select null'",
        "alter function coordinator.make_day(date) security invoker",
        "update coordinator.alembic_version set version_num = '0001'",
        "delete from coordinator.retention",
        "delete from coordinator.audit",
        "update coordinator.audit set reason = ''",
        "insert into coordinator.audit (action, database_role) values ('purge', 'another')",
        "insert into coordinator.audit (action, at) values ('purge', now() - interval '40 days')",
        "set role postgres",
        "grant coordinator_service to public",
        "update coordinator.store_identity set secret = 'known'",
        "delete from coordinator.store_identity",
        "select setval('coordinator.audit_id_seq', 1)",
    ],
)
def test_what_else_the_service_cannot_do(service: Session, statement: str) -> None:
    with pytest.raises((errors.InsufficientPrivilege, errors.UndefinedObject, errors.InvalidParameterValue)):
        service.execute(statement)


def test_the_reader_writes_nothing(reader: Session) -> None:
    for table in _tables(reader):
        name = f"coordinator.{table}"
        for statement in (f"insert into {name} default values", f"delete from {name}", f"truncate {name}"):
            with pytest.raises((errors.InsufficientPrivilege, errors.GeneratedAlways)):
                reader.execute(statement)


def test_the_reader_reads_all_but_secrets(reader: Session) -> None:
    for table in _tables(reader):
        if table in ("user_verifier", "audit", "store_identity"):
            with pytest.raises(errors.InsufficientPrivilege):
                reader.execute(f"select * from coordinator.{table}")
        else:
            reader.execute(f"select * from coordinator.{table} limit 1")
    assert reader.execute("select id from coordinator.store_identity").fetchone()
    with pytest.raises(errors.InsufficientPrivilege):
        reader.execute("select secret from coordinator.store_identity")
    with pytest.raises(errors.InsufficientPrivilege):
        reader.execute("select coordinator.decide(gen_random_uuid(), 'commit', 'mine')")


def test_what_functions_do_as_their_owner_the_reader_cannot(reader: Session) -> None:
    """Nor anybody else who may use the schema: each is granted to those whom it is for."""
    definers = (
        "select oid::regprocedure::text from pg_proc where prosecdef and pronamespace = 'coordinator'::regnamespace"
    )
    functions = [name for (name,) in reader.execute(definers)]
    assert len(functions) > 5
    for function in functions:
        may = "select has_function_privilege(%s, 'execute'), has_function_privilege('public', %s, 'execute')"
        assert reader.execute(may, [function, function]).fetchone() == (False, False), function
    with pytest.raises(errors.InsufficientPrivilege):
        reader.execute("select coordinator.first_time('billing', 'order-4711')")


def test_a_day_that_the_service_makes_is_the_owners_and_both_can_use_it(
    granted: Granted, service: Session, reader: Session
) -> None:
    day = date(2033, 3, 3)
    made = service.execute("select coordinator.make_day(%s)", [day]).fetchone()
    assert made == (["half_20330303", "op_20330303"],)
    values = [id_at(begin_of(day)), b"x"]
    service.execute("insert into coordinator.half_20330303 (id, address_id, message) values (%s, 1, %s)", values)
    assert reader.execute("select count(*) from coordinator.half_20330303").fetchone() == (1,)
    for statement in ("delete from coordinator.half_20330303", "truncate coordinator.op_20330303"):
        with pytest.raises(errors.InsufficientPrivilege):
            service.execute(statement)
    owner = "select pg_get_userbyid(relowner) from pg_class where relname = 'half_20330303'"
    assert service.execute(owner).fetchone() != (granted.service,)


def test_make_day_looks_in_no_schema_of_its_caller(granted: Granted, service: Session) -> None:
    """What it runs as the owner, no caller can put something in the place of."""
    service.execute("create temporary table retention (table_name text, kept_from date)")
    service.execute("create function pg_temp.format(text, variadic text[]) returns text language sql as 'select ''x'''")
    service.execute("set search_path = pg_temp, coordinator, public")
    assert service.execute("select coordinator.make_day('2034-04-04')").fetchone() == (
        ["half_20340404", "op_20340404"],
    )


def _run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COORDINATOR_DATABASE_URL": url})


@pytest.mark.rule("H15")
def test_what_a_reader_does_not_know_may_be_of_another_store(database: Connection, database_url: str) -> None:
    role = f"test_{secrets.token_hex(4)}"
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
        roles.grant(database, roles.READER, role)
        as_reader = f"{database_url}{'&' if '?' in database_url else '?'}options=-c%20role%3D{role}"
        done = _run(as_reader, "transaction", "show", str(uuid4()))
        assert done.exit_code == 1
        assert "may not look whether its id was made by this store" in done.stderr
        owner.execute("insert into coordinator.retention (table_name, kept_from) values ('op', now())")
        old = partitions.op_id_at(datetime.now(UTC) - timedelta(days=40))
        assert (
            "is not known any more, if it ever was: it was declared"
            in _run(as_reader, "transaction", "show", str(old)).stderr
        )
        owner.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


def test_the_command_shows_the_sql_and_does_it(database: Connection, database_url: str) -> None:
    role = f"test {secrets.token_hex(4)}"
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
        shown = _run(database_url, "role", "grant", "--reader", role, "--sql")
        assert f'grant coordinator_reader to "{role}";\n' in shown.stdout
        assert "insert" not in shown.stdout
        done = _run(database_url, "role", "grant", "--reader", role, "--reason", "for Spark")
        assert (done.exit_code, done.stdout) == (0, f"role {role} may read the store\n")
        assert owner.execute("select pg_has_role(%s, 'coordinator_reader', 'member')", [role]).fetchone() == (True,)
        owner.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))
    (line,) = audit.read(database, audit.Wanted(), 9)
    assert (line.action, line.subject, line.reason) == ("grant-roles", role, "for Spark")


def test_the_sql_for_an_application(database_url: str) -> None:
    """As the owner runs it: its role posts, and has its names of the inbox."""
    role, consumer = f"test {secrets.token_hex(4)}", "o'clock 100%"
    script = _run(database_url, "role", "grant", "--application", role, "--inbox", consumer, "--sql").stdout
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
        for _ in range(2):
            owner.execute(script.encode())
        found = "select owner from coordinator.inbox_owner where consumer = %s"
        assert owner.execute(found, [consumer]).fetchone() == (role,)
        owner.execute(sql.SQL("set session authorization {}").format(sql.Identifier(role)))
        assert owner.execute("select coordinator.first_time(%s, 'once')", [consumer]).fetchone() == (True,)
        owner.execute("reset session authorization")
        owner.execute("delete from coordinator.inbox_owner where consumer = %s", [consumer])
        owner.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


def test_the_sql_is_run_again_beside_a_service(database_url: str) -> None:
    """As after each upgrade. It takes back what an earlier version has granted; none sees that before the end."""
    role = f"test {secrets.token_hex(4)}"
    script = _run(database_url, "role", "grant", "--service", role, "--reader", role, "--sql").stdout
    may = "select has_table_privilege(%s, 'coordinator.op', 'insert')"
    with (
        psycopg.connect(database_url, autocommit=True) as owner,
        psycopg.connect(database_url, autocommit=True) as other,
    ):
        owner.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
        for _ in range(2):
            owner.execute(script.encode())
            assert other.execute(may, [role]).fetchone() == (True,)
        owner.execute(script.partition("grant usage on schema")[0].encode())  # the rights are taken back
        assert other.execute(may, [role]).fetchone() == (True,)
        owner.execute("rollback")
        owner.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 2, "give --application, --service or --reader"),
        (("--reader", "x", "--inbox", "y"), 2, "--inbox: give --application, too"),
        (("--application", "x", "--inbox", ""), 2, "--inbox: expected 1 to 1000 octets"),
        (("--service", ""), 2, "--service: expected 1 to 63 octets of printable text"),
        (("--reader", "no such\u00e9"), 1, "there is no role no such\u00e9"),
        (("--service", "OWNER"), 1, "owns the store, or is a superuser: make another one for this"),
    ],
)
def test_roles_that_are_refused(
    database: Connection, database_url: str, arguments: tuple[str, ...], status: int, said: str
) -> None:
    owner = urlsplit(database_url).username or ""
    given = [owner if each == "OWNER" else each for each in arguments]
    done = _run(database_url, "role", "grant", *given)
    assert done.exit_code == status
    assert said in done.stderr


def test_who_may_look_may_close_no_connection(granted: Granted) -> None:
    with connected(granted.url) as owner:
        rows = Rows(owner, HalfIds(0), UuidV7())
        there = rows.listed(rows.instance())
    for role, may in ((granted.reader, False), (granted.service, True)):
        with connected(granted.url) as connection:
            connection.exec_driver_sql(f'set session authorization "{role}"')
            connection.commit()
            assert connections.one(connection, there).host == "10.0.0.9"
            with nullcontext() if may else pytest.raises(StoreUnavailable, match="lacks a permission"):
                connections.ask_to_close(connection, there, "why")


# -- what the service does


def test_operators_decide_by_the_role_of_the_service(granted: Granted) -> None:
    with connected(granted.url) as owner:
        rows = Rows(owner, HalfIds(0), UuidV7())
        group = rows.queue("of operators")
        txn_id = rows.checkable(ME, rows.address_of(group))
        rows.entry(group)
    with connected(granted.url) as connection:
        connection.exec_driver_sql(f'set session authorization "{granted.service}"')
        connection.commit()
        undecided.commit(connection, txn_id, "why")
        assert (done := purge.purge(connection, "of operators")) is not None
        assert done.purged == 2
        users.add(connection, "alice", {})
        assert users.disable(connection, "alice")
        partitions.make_ahead(connection, days=20)
        told = audit.read(connection, audit.Wanted(), 9)
        assert {line.database_role for line in told[-4:]} == {granted.service}
        assert not roles.owns(connection)
        with pytest.raises(StoreUnavailable, match="lacks a permission"):
            audit.forget(connection, timedelta(days=365))
