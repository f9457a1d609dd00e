"""What a role of an application may do with the functions that run with the rights of the store (X2, X3, X4), and what
it needs for them: ``coordinator role grant``.
"""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import psycopg
import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from store import migrations
from store.roles import VIEWS
from tests.fix_application import Application, post
from tests.fix_command import Command
from tests.fix_postgres import log_in
from tests.fix_store import Rows
from tests.fix_store_driver import ME
from tests.wire.messages import APPLICATION_PROPERTIES, VALUE, Header, data, section

pytestmark = pytest.mark.rule("X2", "X3", "X4")


@pytest.mark.parametrize("function", ["send_outbox", "decide_enlisted"])
def test_a_trigger_function_cannot_be_had_for_a_table_of_ones_own(application: Application, function: str) -> None:
    """It would compare values of the table, whose types, and their casts, are the role's own: these would run with the
    rights of the store.
    """
    application.execute("create role application_of_triggers")
    application.execute("grant usage on schema coordinator to application_of_triggers")
    application.execute("set local role application_of_triggers")
    application.execute("create temporary table bait (put_off int, xid xid8, number int8, txn_id uuid)")
    with pytest.raises(errors.InsufficientPrivilege, match=f"permission denied for function.*{function}"):
        application.execute(
            f"create trigger own after insert on bait for each row execute function coordinator.{function}()".encode()
        )


def test_what_runs_with_the_rights_of_the_store_is_for_those_that_may(application: Application) -> None:
    found = application.execute(
        "select p.proname, 'search_path=pg_catalog, pg_temp' = any(p.proconfig), "
        "not exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a where a.grantee = 0) "
        "from pg_proc p where p.pronamespace = 'coordinator'::regnamespace and p.prosecdef order by p.oid"
    ).fetchall()
    assert {name for name, _, _ in found} > {"post", "post_octets", "discharge", "first_time"}
    assert [row for row in found if not row[1]] == []
    assert [row for row in found if not row[2]] == []


@pytest.mark.parametrize("setting", ["session_replication_role = replica", "standard_conforming_strings = off"])
def test_no_setting_of_the_session_changes_what_is_sent(application: Application, rows: Rows, setting: str) -> None:
    """Triggers of a session that replicates, as a bulk load does, do not fire unless they are told to."""
    rows.queue("orders")
    application.execute(f"set {setting}".encode())
    post(application, "orders", "tea", priority=7, headers=Jsonb({"item": "tea"}))
    application.commit()
    found = application.execute("select message from coordinator.half").fetchone()
    header, properties = Header(durable=True, priority=7).described().value, {"item": "tea"}
    sections = [(Header.CODE, header), (APPLICATION_PROPERTIES, properties), (VALUE, "tea")]
    assert found == (b"".join(section(*each) for each in sections),)
    assert application.execute("select count(*) from coordinator.outbox").fetchone() == (0,)


def _granted(command: Command, url: str, role: str, status: int = 0) -> str:
    done = command("role", "grant", f"--application={role}", "--database-url", url)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def test_a_role_that_is_granted_may_do_all_that_and_touches_no_table(
    command: Command, database_url: str, rows: Rows, application: Application
) -> None:
    """Before it may nothing; the command may be run again."""
    role = 'shop "1%s"'
    rows.queue("orders")
    txn: UUID = rows.checkable(ME, rows.address_of(rows.queue("bills")))
    application.execute(f'create role "{role.replace(chr(34), 2 * chr(34))}"'.encode())
    application.commit()
    try:
        application.execute("select set_config('role', %s, false)", [role])
        with pytest.raises(errors.InsufficientPrivilege):
            post(application, "orders", "1")
        application.rollback()
        for _ in range(2):
            assert _granted(command, database_url, role) == f"role {role} may use the store as an application\n"
        application.execute("select set_config('role', %s, false)", [role])
        application.execute("create temporary table outbox (xid xid8, number int8) on commit drop")
        post(application, "orders", "1")
        application.execute("select coordinator.post_octets('orders', %s)", [data(b"2")])
        for call, arguments in (("discharge(%s)", [txn]), ("first_time('billing', %s)", ["1"])):
            row = application.execute(f"select coordinator.{call}".encode(), arguments).fetchone()
            assert row == (True,)
        application.commit()
        for view in VIEWS:
            application.execute(f"select * from coordinator.{view}")
        with pytest.raises(errors.InsufficientPrivilege):
            application.execute("select from coordinator.findings")
        application.rollback()
        tables = application.execute(
            "select relname, relkind from pg_class where relnamespace = 'coordinator'::regnamespace "
            "and relkind in ('r', 'p', 'S')"
        ).fetchall()
        for table, kind in tables:
            for right in ("usage",) if kind == "S" else ("select", "insert", "update", "delete", "truncate"):
                of = "sequence" if kind == "S" else "table"
                query = f"select has_{of}_privilege(%s, 'coordinator.{table}', %s)"
                assert application.execute(query.encode(), [role, right]).fetchone() == (False,), (table, right)
        with pytest.raises(errors.InsufficientPrivilege):
            application.execute("select coordinator.decide(%s, 'rollback', 'x')", [txn])
        application.rollback()
    finally:
        application.rollback()
        application.execute("select set_config('role', 'none', false)")
        application.execute(f'drop role "{role.replace(chr(34), 2 * chr(34))}"'.encode())
        application.commit()
    assert [op.decision for op in rows.ops()] == ["commit"]


def test_a_role_that_is_not_there_is_named(command: Command, database_url: str) -> None:
    assert _granted(command, database_url, "nowhere", 1) == "error: there is no role nowhere\n"
    assert "expected 1 to 63 octets" in _granted(command, database_url, "x" * 64, 2)


def test_an_owner_of_the_store_who_may_make_no_roles_is_told_what_an_administrator_runs(
    command: Command, empty_database_url: str
) -> None:
    url = urlsplit(empty_database_url)
    owned = urlunsplit(url._replace(netloc="keeper@"))
    with psycopg.connect(empty_database_url, autocommit=True) as administrator:
        log_in(administrator, "keeper", "trust")
        administrator.execute("create role keeper login")
        administrator.execute(f"grant create on database {url.path[1:]} to keeper".encode())
        try:
            migrations.upgrade(owned)
            refused = _granted(command, owned, "keeper", 1)
            assert "lacks a permission; have an administrator run: " in refused
            if "create role" in refused:
                administrator.execute(refused.partition("run: ")[2].encode())
                refused = _granted(command, owned, "keeper", 1)
            assert refused.endswith("run: grant coordinator_application to keeper\n")
            administrator.execute(refused.partition("run: ")[2].encode())
            assert _granted(command, owned, "keeper") == "role keeper may use the store as an application\n"
        finally:
            administrator.execute("drop owned by keeper cascade")
            administrator.execute("drop role keeper")
