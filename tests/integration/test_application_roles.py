"""What a role of an application may do with the functions that run with the rights of the store (X2, X3, X4)."""

from __future__ import annotations

import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from tests.fix_application import Application, post
from tests.fix_store import Rows
from tests.wire.messages import APPLICATION_PROPERTIES, VALUE, Header, section

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
