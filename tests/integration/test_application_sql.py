"""``coordinator.sql`` (X5) over psycopg and SQLAlchemy, and what a role needs for it: ``coordinator role grant``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import psycopg
import pytest
from proton import Message
from sqlalchemy import NullPool, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from coordinator import sql
from store import migrations
from store.codec.encoding import DecodeError
from store.database import engine
from store.roles import VIEWS
from tests.fix_application import Application, post
from tests.fix_command import Command
from tests.fix_postgres import log_in
from tests.fix_store import Rows
from tests.fix_store_driver import ME
from tests.wire.messages import MESSAGE_ANNOTATIONS, VALUE, Header, Properties, data, section
from tests.wire.types import Symbol, Timestamp, ULong

#: Of a database of PostgreSQL: what a transaction of an application runs on, committed at the end.
Begin = Callable[[str], AbstractContextManager[Any]]
BeginAsync = Callable[[str], AbstractAsyncContextManager[Any]]


@contextmanager
def alchemy(url: str) -> Iterator[Any]:
    with engine(url, application_name="application").begin() as connection:
        yield connection


@contextmanager
def session(url: str) -> Iterator[Any]:
    with Session(engine(url, application_name="application")) as own, own.begin():
        yield own


each_kind = pytest.mark.parametrize("begin", [psycopg.connect, alchemy, session], ids=["psycopg", "alchemy", "session"])


def messages(rows: Rows) -> list[Message]:
    found = []
    for octets in rows.connection.scalars(text("select message from coordinator.half order by id")):
        found.append(Message())
        found[-1].decode(octets)
    rows.connection.rollback()
    return found


@pytest.mark.rule("X5", "X2")
@each_kind
def test_messages_of_every_kind(database_url: str, rows: Rows, begin: Begin) -> None:
    group = rows.queue("orders")
    later = datetime(2040, 1, 1, tzinfo=UTC)
    with begin(database_url) as own:
        sql.post(own, "orders", "100 %s")
        sql.post(own, "orders", b"\x00%")
        sql.post(own, "orders", {"item": "ä", "n": None}, headers={"colour": "100 %"}, properties={"subject": "s"})
        sql.post(own, "orders", [1], deliver_at=later, delay=timedelta(1), ttl=timedelta(40), priority=7, group_id="g")
    text_, octets, mapping, last = messages(rows)
    assert (text_.body, bytes(octets.body)) == ("100 %s", b"\x00%")  # type: ignore[arg-type]
    assert json.loads(bytes(mapping.body)) == {"item": "ä", "n": None}  # type: ignore[arg-type]
    headers: object = mapping.properties
    assert (headers, mapping.subject) == ({"colour": "100 %"}, "s")
    assert (last.priority, last.group_id, last.ttl) == (7, "g", 40 * 86400)
    found = rows.connection.execute(
        text("select priority, available_at, expires_at - now() from coordinator.entry order by id desc limit 1")
    ).one()
    assert (found[0], found[1]) == (7, later)
    assert timedelta(39) < found[2] < timedelta(40)
    rows.connection.rollback()
    assert len(rows.entries(group)) == 4


@pytest.mark.rule("X5", "X3", "X4")
@each_kind
def test_discharges_and_first_times(database_url: str, rows: Rows, begin: Begin) -> None:
    txns = [rows.checkable(ME, rows.address_of(rows.queue(name))) for name in ("orders", "bills")]
    with begin(database_url) as own:
        assert sql.first_time(own, "billing", "1")
        assert sql.discharge(own, txns[0].bytes)
        assert sql.discharge(own, txns[1], fail=True)
    with begin(database_url) as own:
        assert not sql.first_time(own, "billing", "1")
        assert not sql.discharge(own, txns[0])
    assert {op.id: op.decision for op in rows.ops()} == {txns[0]: "commit", txns[1]: "rollback"}


@pytest.mark.rule("X5", "X2")
def test_a_message_that_is_encoded_already_says_itself_when_it_is_delivered(database_url: str, rows: Rows) -> None:
    rows.queue("orders")
    due = int(datetime(2040, 1, 1, tzinfo=UTC).timestamp() * 1000)
    annotations = {Symbol("x-opt-delivery-time"): Timestamp(due), Symbol("x-opt-delivery-delay"): ULong(5)}
    properties = Properties(absolute_expiry_time=due + 1000, group_id="g").described().value
    message = b"".join(
        (
            section(Header.CODE, Header(priority=9).described().value),
            section(MESSAGE_ANNOTATIONS, annotations),
            section(Properties.CODE, properties),
            section(VALUE, "tea", large=True),
        )
    )
    with psycopg.connect(database_url) as own:
        sql.post_message(own, "orders", message)
        sql.post_message(own, "orders", data(b"tea"))
        with pytest.raises(DecodeError):
            sql.post_message(own, "orders", message[:-1])
    found = rows.connection.execute(
        text(
            "select m.message, e.priority, extract(epoch from e.expires_at - e.available_at), e.available_at > now() "
            "from coordinator.half m join coordinator.entry e on e.half_id = m.id order by m.id"
        )
    ).all()
    rows.connection.rollback()
    assert [tuple(row) for row in found] == [(message, 9, 1, True), (data(b"tea"), 4, None, False)]


@pytest.mark.rule("X5", "P12", "D7")
def test_times_that_the_database_does_not_have_are_the_latest(database_url: str, rows: Rows) -> None:
    rows.queue("orders")
    for due in (0, (1 << 64) - 1):
        annotations = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-delivery-time"): ULong(due)})
        never = Properties(absolute_expiry_time=Timestamp((1 << 63) - 1)).encoded()
        with psycopg.connect(database_url) as own:
            sql.post_message(own, "orders", annotations + never + data(b"tea"))
    kept = text("select expires_at, available_at > '9999-01-01Z' from coordinator.entry order by id")
    found = rows.connection.execute(kept).all()
    rows.connection.rollback()
    assert [tuple(row) for row in found] == [(None, False), (None, True)]


@asynccontextmanager
async def async_psycopg(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@asynccontextmanager
async def async_alchemy(url: str) -> AsyncIterator[Any]:
    own = create_async_engine(url, poolclass=NullPool)
    async with own.begin() as connection:
        yield connection


@asynccontextmanager
async def async_session(url: str) -> AsyncIterator[Any]:
    async with AsyncSession(create_async_engine(url, poolclass=NullPool)) as own, own.begin():
        yield own


each_asynchronous = pytest.mark.parametrize(
    "begin", [async_psycopg, async_alchemy, async_session], ids=["psycopg", "alchemy", "session"]
)


@pytest.mark.rule("X2", "X3", "X4", "X5")
@each_asynchronous
def test_over_what_is_asynchronous(database_url: str, rows: Rows, begin: BeginAsync) -> None:
    txn = rows.checkable(ME, rows.address_of(rows.queue("orders")))

    async def work(fails: bool) -> None:
        async with begin(database_url) as own:
            await sql.post_async(own, "orders", "100 %s", headers={"colour": "100 %"})
            await sql.post_message_async(own, "orders", data(b"2"))
            assert await sql.discharge_async(own, txn)
            assert await sql.first_time_async(own, "billing", "1")
            assert not await sql.first_time_async(own, "billing", "1")
            if fails:
                raise InterruptedError

    with pytest.raises(InterruptedError):
        asyncio.run(work(fails=True))
    assert (len(messages(rows)), rows.ops()) == (1, [])
    asyncio.run(work(fails=False))
    _, first, second = messages(rows)
    assert (first.body, bytes(second.body)) == ("100 %s", b"2")  # type: ignore[arg-type]
    assert [op.id for op in rows.ops()] == [txn]


@pytest.mark.rule("X5")
@each_asynchronous
def test_what_is_refused_is_an_error_of_the_driver(database_url: str, begin: BeginAsync) -> None:
    async def work() -> None:
        async with begin(database_url) as own:
            await sql.post_async(own, "nowhere", "1")

    with pytest.raises((psycopg.Error, DBAPIError), match="there is no address") as refused:
        asyncio.run(work())
    error: Any = refused.value
    assert getattr(error, "orig", error).sqlstate == "CO006"


@pytest.mark.rule("X5")
def test_what_is_wrong_before_the_store_is_asked(application: Application) -> None:
    with pytest.raises(ValueError, match="the body is of type int; expected str, bytes, dict or list"):
        sql.post(application, "orders", 1)
    with pytest.raises(ValueError, match="without a time zone"):
        sql.post(application, "orders", "1", deliver_at=datetime(2040, 1, 1))  # noqa: DTZ001 - that is the fault
    with pytest.raises(ValueError, match="16"):
        sql.discharge(application, b"short")


def _granted(command: Command, url: str, role: str, status: int = 0) -> str:
    done = command("role", "grant", f"--application={role}", "--database-url", url)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


@pytest.mark.rule("X2", "X3", "X4")
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
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            post(application, "orders", "1")
        application.rollback()
        for _ in range(2):
            assert _granted(command, database_url, role) == f"role {role} may use the store as an application\n"
        application.execute("select set_config('role', %s, false)", [role])
        application.execute("create temporary table outbox (xid xid8, number int8) on commit drop")
        post(application, "orders", "1")
        application.execute("select coordinator.post_octets('orders', %s)", [data(b"2")])
        assert sql.discharge(application, txn)
        assert sql.first_time(application, "billing", "1")
        application.commit()
        for view in VIEWS:
            application.execute(f"select * from coordinator.{view}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
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
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
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
