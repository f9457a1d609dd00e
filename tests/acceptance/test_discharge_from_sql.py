"""Transactions of clients that are decided by the commit of an application's own SQL transaction (X3)."""

from __future__ import annotations

import uuid

import psycopg
import pytest

from tests.fix_application import Application, post
from tests.fix_service import Service, running_service
from tests.fix_wire import Ask, Begin, BeginAt, decided
from tests.wire.checkable import accept, in_group, pending
from tests.wire.frames import Accepted, Rejected
from tests.wire.queues import post as post_over_the_wire
from tests.wire.types import UInt

pytestmark = pytest.mark.rule("X3")


def discharge(application: Application, txn: bytes, *, fail: bool = False) -> None:
    row = application.execute("select coordinator.discharge(%s, %s)", [uuid.UUID(bytes=txn), fail]).fetchone()
    assert row == (True,)


@pytest.mark.parametrize("fail", [False, True])
def test_it_decides_posts_and_retirements_with_the_rows_of_the_application(
    begin: Begin, address: str, ask: Ask, beside: Application, fail: bool
) -> None:
    """The connection that declared it, and one that discharges it once more, are told the same."""
    session = begin()
    orders, bills = f"{address}-orders", f"{address}-bills"
    post_over_the_wire(session, orders, b"order")
    beside.execute("create table if not exists ledger (cents int)")
    beside.commit()
    control = in_group(session)
    txn = control.declare()
    order = session.receiver(orders, credit=1).take()
    order.retire(txn, Accepted(), settled=False)
    accept(session.sender(bills), b"bill", txn)
    session.sync()
    consumer = begin().receiver(bills, credit=10)
    beside.execute("insert into ledger values (9900)")
    discharge(beside, txn, fail=fail)
    session.sync()
    assert not consumer.arrived
    beside.commit()
    assert decided(ask, txn) == ("rollback" if fail else "commit", "application")
    assert control.discharge(txn, fail=fail) == Accepted()
    assert "by an application, in SQL" in control.discharge(txn, fail=not fail).error.description
    if fail:
        order.disposition(Accepted())
        assert begin().receiver(bills).bodies() == []
    else:
        assert consumer.take().body == b"bill"
        assert begin().receiver(orders).bodies() == []


def test_a_rollback_leaves_it_to_its_client(begin: Begin, address: str, ask: Ask, beside: Application) -> None:
    session = begin()
    control, sender = in_group(session), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    discharge(beside, txn)
    beside.rollback()
    accept(sender, b"2", txn)
    control.commit(txn)
    assert session.receiver(address).bodies() == [b"1", b"2"]
    assert decided(ask, txn) == ("commit", None)


@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("by", ["owner", "group", "checker", "command"])
def test_while_it_is_open_others_go_on_and_decide(
    service: Service, begin: Begin, address: str, ask: Ask, beside: Application, by: str, fail: bool
) -> None:
    """Each gets its answer while the application's transaction is open, whose commit then agrees, or fails."""
    session, other = begin(), begin()
    control, sender = in_group(session, address, check_immunity_ms=UInt(0)), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    beside.execute("create table if not exists ledger (cents int)")
    beside.commit()
    beside.execute("insert into ledger values (1)")
    discharge(beside, txn)
    post(beside, address, "from sql")
    beside.execute("select coordinator.first_time('billing', %s)", [address])
    beside.execute("set constraints all immediate")
    accept(sender, b"2", txn)
    post_over_the_wire(other, f"{address}-neighbour", b"neighbour")
    assert other.receiver(f"{address}-neighbour").bodies() == [b"neighbour"]
    before = ask("select count(*) from ledger")
    if by == "owner":
        assert control.discharge(txn, fail=fail) == Accepted()
    elif by == "group":
        assert in_group(other, address).discharge(txn, fail=fail) == Accepted()
    elif by == "checker":
        checker = other.receiver(f"$check/{address}", credit=1)
        session.peer.close_socket()
        checker.take().disposition(Rejected() if fail else Accepted(), settled=False)
    else:
        service.cli(
            "transaction", "resolve", str(uuid.UUID(bytes=txn)), "--rollback" if fail else "--commit", "--reason", "x"
        )
    assert decided(ask, txn)[0] == ("rollback" if fail else "commit")
    if fail:
        with pytest.raises(psycopg.Error, match="was decided meanwhile, and not by commit") as refused:
            beside.commit()
        assert refused.value.sqlstate == "CO009"
        assert (ask("select count(*) from ledger"), other.receiver(address).bodies()) == (before, [])
    else:
        beside.commit()
        assert ask("select count(*) from ledger") != before
        consumer = begin().receiver(address)
        assert [each.body for each in consumer.take_many(3)] == [b"1", b"2", "from sql"]


def test_one_of_another_store_or_without_a_stored_message_is_refused(
    begin: Begin, address: str, beside: Application
) -> None:
    session = begin()
    control, plain = in_group(session), session.control()
    empty, unchecked = control.declare(), plain.declare()
    accept(session.sender(address), b"1", unchecked)
    for txn in (empty, unchecked, uuid.uuid4().bytes):
        with pytest.raises(psycopg.Error) as refused:
            discharge(beside, txn)
        assert refused.value.sqlstate == "CO008"
        beside.rollback()
    control.commit(empty)
    plain.commit(unchecked)


def test_while_no_service_runs_it_is_decided_and_delivered_afterwards(
    database_url: str, begin_at: BeginAt, address: str, application: Application
) -> None:
    """With what the application posts in the same transaction, and without what it rolls back."""
    with running_service({"database_url": database_url}) as service:
        session = begin_at(service)
        control, sender = in_group(session), session.sender(address)
        txns = [control.declare() for _ in range(3)]
        for number, txn in enumerate(txns):
            accept(sender, b"%d" % number, txn)
        service.kill()
        discharge(application, txns[0])
        post(application, address, "sql")
        application.commit()
        discharge(application, txns[1])
        application.rollback()
        discharge(application, txns[2], fail=True)
        application.commit()
        service.restart()
        consumer = begin_at(service).receiver(address, credit=10)
        assert {each.body for each in consumer.take_many(2)} == {b"0", "sql"}

        def ask(statement: str, *parameters: object) -> list[tuple[object, ...]]:
            return application.execute(statement.encode(), parameters or None).fetchall()

        assert [pending(ask, txn) for txn in txns] == [0, 1, 0]
