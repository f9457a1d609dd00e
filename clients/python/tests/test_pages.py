"""The programs in Python that pages of docs/how-to have run as they stand, at the test's own service and addresses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import Leave, Running
from proton.utils import BlockingConnection

from coordinator_client import sql

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 120.0

Application = psycopg.Connection[Any]


def programs(page: str, running: Running, orders: str = "orders") -> list[str]:
    """``orders``: the address that stands for the queues of the page, with what it begins with."""
    text = (ROOT / "docs/how-to" / page).read_text("utf-8")
    here = {
        "amqp://127.0.0.1:5672": running.url,
        "postgresql://shop@db.example/coordinator": running.database,
        '"orders"': f'"{orders}"',
        '"bills"': f'"{orders}-bills"',
        "postgresql+psycopg://shop@db.example/coordinator": running.database.replace(":", "+psycopg:", 1),
    }
    return [
        re.sub("|".join(map(re.escape, here)), lambda found: here[found[0]], block)
        for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


@contextmanager
def at_work(program: str, folder: Path) -> Iterator[Callable[[Callable[[], bool]], None]]:
    """A program that does not end by itself; inside the block, what waits for something that it does."""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=folder)

    def wait_until(seen: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not seen():
            assert process.poll() is None, "the program has ended"
            assert time.monotonic() < deadline
            time.sleep(0.05)

    try:
        yield wait_until
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def orders(address: str, application: Application) -> Iterator[str]:
    """An address; the tables of the pages are not there."""
    application.execute("drop table if exists sale, invoice")
    application.commit()
    yield address
    application.rollback()
    application.execute("drop table if exists sale, invoice")
    application.commit()


def rows(application: Application, table: str) -> list[Any]:
    """Of a table; none while it is not there."""
    try:
        return application.execute(f"select * from {table} order by order_id".encode()).fetchall()
    except psycopg.errors.UndefinedTable:
        return []
    finally:
        application.rollback()


def take(running: Running, address: str, count: int) -> list[Any]:
    connection = BlockingConnection(running.url, timeout=PATIENCE)
    receiver = connection.create_receiver(address, credit=count)
    found = []
    for _ in range(count):
        message = receiver.receive()  # it has to live for as long as its body is looked at
        found.append(json.loads(bytes_of(message.body)))
        receiver.accept()
    connection.close()
    return found


def bytes_of(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body)


@pytest.mark.rule("X2", "X5")
def test_post_from_sql(running: Running, application: Application, orders: str, tmp_path: Path) -> None:
    for program in programs("post-from-sql.md", running, orders):
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert rows(application, "sale") == [(4711, 9900), (4712, 9900)]
    assert take(running, orders, 2) == [{"order": 4711}, {"order": 4712}]


@pytest.mark.rule("X4", "X5")
def test_do_work_once(running: Running, application: Application, orders: str, tmp_path: Path) -> None:
    (program,) = programs("do-work-once.md", running, orders)
    with at_work(program, tmp_path) as wait_until:
        for number in (1, 1, 2):
            body, name = {"order": number, "cents": 9900}, {"message-id": f"once-{number}"}
            sql.post(application, orders, body, properties=name)
        application.commit()
        wait_until(lambda: len(rows(application, "invoice")) == 2)
    assert rows(application, "invoice") == [(1, 9900), (2, 9900)]


@pytest.mark.rule("X3", "X5")
def test_discharge_from_sql(running: Running, application: Application, orders: str, tmp_path: Path) -> None:
    (program,) = programs("discharge-from-sql.md", running, orders)
    with at_work(program, tmp_path) as wait_until:
        for number in (1, 2):
            sql.post(application, orders, {"order": number, "cents": 9900})
        application.commit()
        wait_until(lambda: len(rows(application, "invoice")) == 2)
    assert [each["order"] for each in take(running, f"{orders}-bills", 2)] == [1, 2]


@pytest.mark.rule("H8", "H13")
def test_answer_checks(running: Running, application: Application, address: str, leave: Leave, tmp_path: Path) -> None:
    """Without an outcome in its book a transaction is rolled back."""
    (program,) = programs("answer-checks.md", running)
    txn = leave(address, "order-service")

    def decided() -> bool:
        application.rollback()
        return sql.outcome(application, txn) == "rollback"

    with at_work(program, tmp_path) as wait_until:
        wait_until(decided)
