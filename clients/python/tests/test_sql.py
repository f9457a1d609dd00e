"""The functions of :mod:`coordinator_client.sql` over psycopg and SQLAlchemy, synchronous and not (X5)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import Leave, Running
from proton import Message, symbol, ulong
from sqlalchemy import NullPool, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from coordinator_client import sql

Application = psycopg.Connection[Any]
Stored = Callable[[str], list[Message]]

#: Of a database: what a transaction of an application runs on, committed at the end.
Begin = Callable[[str], AbstractContextManager[Any]]
BeginAsync = Callable[[str], AbstractAsyncContextManager[Any]]


@contextmanager
def alchemy(url: str) -> Iterator[Any]:
    with create_engine(_over_psycopg(url), poolclass=NullPool).begin() as connection:
        yield connection


@contextmanager
def session(url: str) -> Iterator[Any]:
    with Session(create_engine(_over_psycopg(url), poolclass=NullPool)) as own, own.begin():
        yield own


@asynccontextmanager
async def async_psycopg(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@asynccontextmanager
async def async_alchemy(url: str) -> AsyncIterator[Any]:
    async with create_async_engine(_over_psycopg(url), poolclass=NullPool).begin() as connection:
        yield connection


@asynccontextmanager
async def async_session(url: str) -> AsyncIterator[Any]:
    async with AsyncSession(create_async_engine(_over_psycopg(url), poolclass=NullPool)) as own, own.begin():
        yield own


def _over_psycopg(url: str) -> str:
    return url.replace("postgresql:", "postgresql+psycopg:", 1)


each_kind = pytest.mark.parametrize("begin", [psycopg.connect, alchemy, session], ids=["psycopg", "alchemy", "session"])
each_asynchronous = pytest.mark.parametrize(
    "begin", [async_psycopg, async_alchemy, async_session], ids=["psycopg", "alchemy", "session"]
)


@pytest.mark.rule("X5", "X2")
@each_kind
def test_messages_of_every_kind(
    running: Running, address: str, application: Application, stored: Stored, begin: Begin
) -> None:
    later = datetime(2040, 1, 1, tzinfo=UTC)
    with begin(running.database) as own:
        sql.post(own, address, "100 %s")
        sql.post(own, address, b"\x00%")
        sql.post(own, address, {"item": "ä", "n": None}, headers={"colour": "100 %"}, properties={"subject": "s"})
        sql.post(own, address, [1], deliver_at=later, delay=timedelta(1), ttl=timedelta(40), priority=7, group_id="g")
    text, octets, mapping, last = stored(address)
    assert (text.body, bytes(octets.body)) == ("100 %s", b"\x00%")  # type: ignore[arg-type]
    assert json.loads(bytes(mapping.body)) == {"item": "ä", "n": None}  # type: ignore[arg-type]
    headers: object = mapping.properties
    assert (headers, mapping.subject) == ({"colour": "100 %"}, "s")
    assert (last.priority, last.group_id, last.ttl) == (7, "g", 40 * 86400)
    found = _entries(application, address)
    assert found[-1][:2] == (7, later)
    assert timedelta(39) < found[-1][2] - datetime.now(UTC) < timedelta(40)


@pytest.mark.rule("X5", "X2")
@each_kind
def test_many_messages_in_one_statement(running: Running, address: str, stored: Stored, begin: Begin) -> None:
    with begin(running.database) as own:
        sql.post_many(own, address, ["100 %s", "ä"], headers={"n": 1})
        sql.post_many(own, address, [b"\x00%", bytearray(b"x")])
        sql.post_many(own, address, [{"n": None}, [1]], priority=7)
        sql.post_many(own, address, [])
        for wrong, says in ((["x", b"x"], r"several types \(bytea, text\)"), ([1], "the body is of type int")):
            with pytest.raises(ValueError, match=says):
                sql.post_many(own, address, wrong)
    found = stored(address)
    bodies: list[object] = [each.body if isinstance(each.body, str) else bytes(each.body) for each in found]  # type: ignore[arg-type]
    assert bodies == ["100 %s", "ä", b"\x00%", b"x", b'{"n": null}', b"[1]"]
    assert [each.properties for each in found[:2]] == [{"n": 1}] * 2
    assert [each.priority for each in found[-2:]] == [7, 7]


@pytest.mark.rule("X5")
@pytest.mark.parametrize("one", ["tea", b"tea", bytearray(b"tea"), {"item": "tea"}], ids=lambda one: type(one).__name__)
def test_one_body_is_not_taken_for_many(application: Application, one: Any) -> None:
    """Each of its letters, octets or keys would be a message."""
    says = f"bodies is of type {type(one).__name__}; expected a list of bodies"
    with pytest.raises(ValueError, match=says):
        sql.post_many(application, "orders", one)
    with pytest.raises(ValueError, match=says):
        asyncio.run(sql.post_many_async(application, "orders", one))  # type: ignore[arg-type]


def _entries(application: Application, address: str) -> list[Any]:
    """Of each message: its priority, when it is due, and when it expires."""
    found = application.execute(
        "select e.priority, e.available_at, e.expires_at from coordinator.entry e "
        "join coordinator.half h on h.id = e.half_id join coordinator.address a on a.id = h.address_id "
        "where a.name = %s order by h.id",
        [address],
    ).fetchall()
    application.rollback()
    return found


@pytest.mark.rule("X5", "X3", "X4", "H15")
@each_kind
def test_discharges_first_times_and_outcomes(running: Running, address: str, leave: Leave, begin: Begin) -> None:
    one, other = (leave(address, "shop-in-sql") for _ in range(2))
    consumer = f"billing-{address}"
    with begin(running.database) as own:
        assert sql.outcome(own, one) == "undecided"
        assert sql.first_time(own, consumer, "1")
        assert sql.discharge(own, one)
        assert sql.discharge(own, uuid.UUID(bytes=other), fail=True)
    with begin(running.database) as own:
        assert not sql.first_time(own, consumer, "1")
        assert not sql.discharge(own, uuid.UUID(bytes=one))
        assert (sql.outcome(own, one), sql.outcome(own, uuid.UUID(bytes=other))) == ("commit", "rollback")
        assert sql.outcome(own, bytes(16)) is None


@pytest.mark.rule("X5", "X2")
def test_a_message_that_is_encoded_already_says_itself_when_it_is_delivered(
    running: Running, address: str, application: Application, stored: Stored
) -> None:
    due = datetime(2040, 1, 1, tzinfo=UTC)
    message: Any = Message(body="tea", priority=9, group_id="g", expiry_time=due.timestamp() + 1)
    message.annotations = {
        symbol("x-opt-delivery-time"): ulong(int(due.timestamp() * 1000)),
        symbol("x-opt-delivery-delay"): ulong(5),
    }
    with psycopg.connect(running.database) as own:
        sql.post_message(own, address, message.encode())
        sql.post_message(own, address, Message(body="milk").encode())
    assert [each.body for each in stored(address)] == ["tea", "milk"]
    first, second = _entries(application, address)
    assert tuple(first) == (9, due, due + timedelta(seconds=1))
    assert (second[0], second[2]) == (4, None)


@pytest.mark.rule("X5", "P10")
def test_octets_that_are_no_message_are_refused(application: Application, address: str) -> None:
    for octets in (b"tea", Message(body="tea").encode()[:-1]):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="expected a section"):
            sql.post_message(application, address, octets)
        application.rollback()


@pytest.mark.rule("X5", "P12", "D7")
def test_times_that_the_database_does_not_have_are_the_latest(
    running: Running, address: str, application: Application
) -> None:
    for due in (0, (1 << 64) - 1):
        message: Any = Message(body="tea", expiry_time=(1 << 62) / 1000)
        message.annotations = {symbol("x-opt-delivery-time"): ulong(due)}
        with psycopg.connect(running.database) as own:
            sql.post_message(own, address, message.encode())
    late = datetime(9999, 1, 1, tzinfo=UTC)
    found = [(expires, due is not None and due > late) for _, due, expires in _entries(application, address)]
    assert found == [(None, False), (None, True)]


@pytest.mark.rule("X2", "X3", "X4", "X5")
@each_asynchronous
def test_over_what_is_asynchronous(
    running: Running, address: str, leave: Leave, application: Application, stored: Stored, begin: BeginAsync
) -> None:
    txn = leave(address, "shop-in-sql")
    consumer = f"billing-{address}"

    async def work(fails: bool) -> None:
        async with begin(running.database) as own:
            await sql.post_async(own, address, "100 %s", headers={"colour": "100 %"})
            await sql.post_message_async(own, address, Message(body="2").encode())
            assert await sql.discharge_async(own, txn)
            await sql.post_many_async(own, address, ["many", "many"])
            assert await sql.first_time_async(own, consumer, "1")
            assert not await sql.first_time_async(own, consumer, "1")
            assert await sql.outcome_async(own, txn) == "undecided"
            if fails:
                raise InterruptedError

    with pytest.raises(InterruptedError):
        asyncio.run(work(fails=True))
    assert len(stored(address)) == 1
    asyncio.run(work(fails=False))
    assert [message.body for message in stored(address)] == ["tea", "100 %s", "2", "many", "many"]
    assert sql.outcome(application, txn) == "commit"


@pytest.mark.rule("X5")
@each_asynchronous
def test_what_is_refused_is_an_error_of_the_driver(running: Running, begin: BeginAsync) -> None:
    async def work() -> None:
        async with begin(running.database) as own:
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
    for ask in (sql.discharge, sql.outcome):
        with pytest.raises(ValueError, match="16"):
            ask(application, b"short")


def test_it_needs_no_other_package() -> None:
    """In a Python without the packages of the site: neither the service nor a driver is there."""
    home = Path(sql.__file__).parent.parent
    program = f"import sys; sys.path.insert(0, {str(home)!r}); from coordinator_client import sql; sql.post"
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True)
