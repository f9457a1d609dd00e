"""``coordinator.discharge`` in SQL (X3): what it decides, what it refuses, and what it holds up."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors
from sqlalchemy import Connection, insert, select, text

from store.channels import DUE
from store.locks import ROW_OF
from store.tables import HELD, entry, op, pending_retirement
from tests.fix_application import Application
from tests.fix_loop import PATIENCE
from tests.fix_store import Rows
from tests.fix_store_driver import ME

pytestmark = pytest.mark.rule("X3")

#: Times of notices are counted from here.
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def discharge(application: Application, txn_id: UUID | None, *fail: bool | None) -> bool:
    named = "".join(", fail => %s" for _ in fail)
    row = application.execute(f"select coordinator.discharge(%s{named})", [txn_id, *fail]).fetchone()
    assert row is not None
    return bool(row[0])


def refused(application: Application, txn_id: UUID | None, *fail: bool | None) -> tuple[str | None, str]:
    """SQLSTATE and text; the transaction is rolled back."""
    with pytest.raises(psycopg.Error) as error:
        discharge(application, txn_id, *fail)
    application.rollback()
    return error.value.sqlstate, str(error.value).splitlines()[0]


def commit_fails(application: Application) -> str | None:
    with pytest.raises(psycopg.Error) as error:
        application.commit()
    return error.value.sqlstate


def decide(database: Connection, txn_id: UUID, decision: str) -> None:
    database.execute(text("select coordinator.decide(:txn, :decision, 'rival')"), {"txn": txn_id, "decision": decision})
    database.commit()


@pytest.fixture
def orders(rows: Rows) -> int:
    """The group of a queue."""
    return rows.queue("orders")


@pytest.fixture
def txn_id(rows: Rows, orders: int) -> UUID:
    """An undecided checkable transaction with a half at the queue."""
    return rows.checkable(ME, rows.address_of(orders))


@pytest.mark.parametrize("fail", [False, True])
def test_the_commit_decides(application: Application, rows: Rows, orders: int, txn_id: UUID, fail: bool) -> None:
    assert discharge(application, txn_id, fail)
    assert discharge(application, txn_id, fail)
    assert (rows.ops(), len(rows.pending(txn_id))) == ([], 1)
    application.commit()
    (op,) = rows.ops()
    assert (op.decision, op.reason, op.posted, op.instance_id) == (
        "rollback" if fail else "commit",
        "application",
        1,
        None,
    )
    assert (len(rows.entries(orders)), rows.pending(txn_id)) == (0 if fail else 1, [])
    assert not discharge(application, txn_id, fail), "it is decided so already"
    assert refused(application, txn_id, not fail)[0] == "CO009"
    assert application.execute("select count(*) from coordinator.enlistment").fetchone() == (0,)


@pytest.mark.rule("T8")
@pytest.mark.parametrize(("asked", "got"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")])
def test_its_commit_is_durable_before_it_is_seen(application: Application, txn_id: UUID, asked: str, got: str) -> None:
    """Else a client would be told a decision that a crash of the database takes back. A trigger that has set off itself
    some times in the commit, and so comes after the decision, says how the commit is to be.
    """
    application.execute("create temporary table work (n int); create temporary table seen (how text)")
    application.execute(
        "create function pg_temp.look() returns trigger language plpgsql as "
        "$$begin if new.n < 5 then insert into work values (new.n + 1); "
        "else insert into seen select current_setting('synchronous_commit'); end if; return null; end$$"
    )
    application.execute(
        "create constraint trigger look after insert on work deferrable initially deferred for each row "
        "execute function pg_temp.look()"
    )
    application.execute(f"set synchronous_commit = {asked}")
    discharge(application, txn_id)
    application.execute("insert into work values (1)")
    application.commit()
    assert application.execute("select how from seen").fetchone() == (got,)
    assert application.execute("show synchronous_commit").fetchone() == (asked,)


def test_a_rollback_leaves_it_as_it_was(application: Application, rows: Rows, txn_id: UUID) -> None:
    assert discharge(application, txn_id)
    application.rollback()
    assert (rows.ops(), len(rows.pending(txn_id))) == ([], 1)
    application.execute("savepoint piece")
    assert discharge(application, txn_id)
    application.execute("rollback to piece")
    assert discharge(application, txn_id, True)
    application.commit()
    assert [op.decision for op in rows.ops()] == ["rollback"]


@pytest.mark.parametrize("first", ["commit", "rollback"])
def test_a_rival_that_is_first_decides_at_once(
    application: Application, rows: Rows, database: Connection, txn_id: UUID, first: str
) -> None:
    """The application's commit agrees with it, or fails with all its rows."""
    application.execute("create table sale (item text)")
    application.commit()
    application.execute("insert into sale values ('tea')")
    assert discharge(application, txn_id)
    decide(database, txn_id, first)
    if first == "commit":
        application.commit()
    else:
        assert commit_fails(application) == "CO009"
    assert [(op.decision, op.reason) for op in rows.ops()] == [(first, "rival")]
    assert application.execute("select count(*) from sale").fetchone() == (int(first == "commit"),)


def test_two_that_discharge_it_at_once_agree(database_url: str, rows: Rows, orders: int) -> None:
    """Each decides half of the transactions first, in another order: none waits for ever, and each is decided once."""
    txns = [rows.checkable(ME, rows.address_of(orders)) for _ in range(20)]
    outcomes: list[str] = []

    def work(order: list[UUID], fail: bool) -> None:
        with psycopg.connect(database_url) as own:
            for pair in zip(order[::2], order[1::2], strict=True):
                for txn in pair:
                    try:
                        discharge(own, txn, fail)
                    except errors.Error as error:
                        outcomes.append(str(error.sqlstate))
                        own.rollback()
                        break
                else:
                    try:
                        own.commit()
                        outcomes.append("done")
                    except errors.Error as error:
                        outcomes.append(str(error.sqlstate))

    workers = [threading.Thread(target=work, args=each) for each in ((txns, False), (txns[::-1], True))]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert set(outcomes) == {"done", "CO009"} or set(outcomes) == {"done"}
    assert outcomes.count("done") == len(rows.ops()) / 2
    assert len(rows.ops()) == len(txns)


def test_what_it_cannot_decide_is_refused_by_name(application: Application, rows: Rows, txn_id: UUID) -> None:
    plain = rows.txn(ME)
    stranger = uuid4()
    for given, sqlstate, says in (
        ([None], "22004", "expected a txn-id, and whether it fails, not null"),
        ([txn_id, None], "22004", "expected a txn-id, and whether it fails, not null"),
        ([stranger], "CO008", f"the store has nothing of the transaction {stranger}"),
        ([plain], "CO008", f"the transaction {plain} is not checkable: its client has its messages"),
    ):
        arguments: Any = given
        assert refused(application, *arguments) == (sqlstate, f"coordinator.discharge: {says}")
    assert discharge(application, txn_id)
    assert refused(application, txn_id, True) == (
        "CO009",
        f"coordinator.discharge: the transaction {txn_id} is decided: commit",
    )


def test_an_open_transaction_holds_up_nothing(
    application: Application, database_url: str, rows: Rows, orders: int, txn_id: UUID
) -> None:
    """Its row is free: for posts of the transaction, and for every decision."""
    assert discharge(application, txn_id)
    application.execute(
        "create function pg_temp.look() returns void language plpgsql as $$begin set constraints all immediate; end$$"
    )
    for _ in range(2):
        application.execute("set constraints all immediate")
        application.execute("select pg_temp.look()")
    with psycopg.connect(database_url) as other:
        other.execute("select from coordinator.txn where id = %s for update nowait", [txn_id])
        other.execute("select from coordinator.pending where txn_id = %s for update nowait", [txn_id])
        for lock in ("address", "consumer_group"):
            other.execute(f"select from coordinator.{lock} for update nowait")
    application.commit()
    assert [op.decision for op in rows.ops()] == ["commit"]


def test_a_snapshot_from_before_the_decision_of_another_fails(
    application: Application, database: Connection, rows: Rows, txn_id: UUID
) -> None:
    """With isolation ``repeatable read`` the commit cannot see it, and PostgreSQL has it begin anew."""
    application.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    assert discharge(application, txn_id)
    decide(database, txn_id, "rollback")
    assert commit_fails(application) == "40001"
    assert refused(application, txn_id)[0] == "CO009"


def test_a_cursor_that_the_commit_would_read_is_refused(application: Application, rows: Rows, txn_id: UUID) -> None:
    """Meanwhile it would hold the transaction, and clients that discharge it would wait. One that is read is let be."""
    application.execute("declare read cursor with hold for select 1")
    application.commit()
    assert discharge(application, txn_id)
    application.execute("declare slow cursor with hold for select 1")
    assert commit_fails(application) == "24000"
    assert application.execute("fetch all from read").fetchall() == [(1,)]
    assert discharge(application, txn_id)
    application.commit()
    assert [op.decision for op in rows.ops()] == ["commit"]


def test_a_procedure_that_commits_in_a_loop_decides(application: Application, rows: Rows, orders: int) -> None:
    """The cursor of its loop is kept over the commit, and is no cursor with hold."""
    txns = [rows.checkable(ME, rows.address_of(orders)) for _ in range(3)]
    application.autocommit = True
    application.execute(
        "create procedure pg_temp.work() language plpgsql as $$declare t record; begin for t in select id from "
        "coordinator.txn order by id loop perform coordinator.discharge(t.id); commit; end loop; end$$"
    )
    application.execute("call pg_temp.work()")
    assert [(op.id, op.decision) for op in rows.ops()] == [(txn, "commit") for txn in txns]


def test_an_address_that_is_gone_fails_the_commit(application: Application, rows: Rows, txn_id: UUID) -> None:
    assert discharge(application, txn_id)
    rows.connection.execute(text("delete from coordinator.address"))
    rows.connection.commit()
    assert commit_fails(application) == "CO003"
    assert (rows.ops(), len(rows.pending(txn_id))) == ([], 1)


def test_all_its_times_are_those_of_the_commit(
    application: Application, rows: Rows, orders: int, database_url: str
) -> None:
    """However long the SQL transaction was open: services look for what is due from the commit on."""
    txn_id = rows.checkable(ME, rows.address_of(orders))
    retried = rows.entry(orders, lease=HELD)
    held = {"txn_id": txn_id, "group_id": orders, "entry_id": retried, "half_id": retried, "decision": "modify"}
    rows.connection.execute(insert(pending_retirement).values(**held, attempts=1, wait_ms=60_000))
    rows.connection.commit()
    with psycopg.connect(database_url, autocommit=True) as service:
        service.execute(f"listen {DUE}".encode())
        application.execute("select now()")
        discharge(application, txn_id)
        before = rows.connection.scalar(text("select clock_timestamp()"))
        application.commit()
        (notice,) = service.notifies(timeout=PATIENCE, stop_after=1)
    found = rows.connection.execute(select(entry.c.id, entry.c.available_at).where(entry.c.group_id == orders)).all()
    due = {row.id: row.available_at for row in found}
    retry = due.pop(retried)
    assert retry > before + timedelta(minutes=1)
    (available,) = due.values()
    assert before < EPOCH + timedelta(microseconds=int(notice.payload)) <= available
    decided = rows.connection.scalars(select(op.c.decided_at)).all()
    assert len(decided) == 2
    assert min(decided) > before


def test_of_several_that_commit_at_once_one_gives_the_notice(
    application: Application, rows: Rows, txn_id: UUID, database_url: str
) -> None:
    """PostgreSQL commits one transaction with a notice at a time."""
    with psycopg.connect(database_url, autocommit=True) as service, psycopg.connect(database_url) as other:
        service.execute(f"listen {DUE}".encode())
        other.execute(f"select {ROW_OF['notice']} for update".encode())
        discharge(application, txn_id)
        application.commit()
        application.execute(f"notify {DUE}, 'the last'".encode())
        application.commit()
        assert [each.payload for each in service.notifies(timeout=PATIENCE, stop_after=1)] == ["the last"]
    assert [each.decision for each in rows.ops()] == ["commit"]


def test_outside_a_transaction_block_it_decides_at_once(application: Application, rows: Rows, txn_id: UUID) -> None:
    application.autocommit = True
    assert discharge(application, txn_id)
    assert [each.decision for each in rows.ops()] == ["commit"]
