"""The examples do what their README says; the demonstration runs in a small size."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from spark.books.description import describe
from store.embedded.running import ROLE, running_url
from tests.fix_night import by_night
from tests.fix_proxy import Proxy
from tests.fix_service import PATIENCE, REPOSITORY, Service
from tests.fix_wire import BeginAt
from tests.reconciling import run as reconcile
from tests.wire.messages import data

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = REPOSITORY / "examples"
ORDERS_CHECKED = [sys.executable, str(EXAMPLES / "orders_checked" / "orders.py")]
ORDERS_PYTHON = [sys.executable, str(EXAMPLES / "orders_python" / "orders.py")]


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=10 * PATIENCE, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def consumer(project: Path, service: Service, address: str, inbox: Path) -> Iterator[None]:
    """The consumer in JavaScript; it ends by itself when it is asked to."""
    process = subprocess.Popen(["node", "inbox.js", service.url, address, str(inbox)], cwd=project)
    try:
        yield
        process.terminate()
        assert process.wait(timeout=PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


def orders_in(inbox: Path, count: int) -> list[int]:
    """The orders in the inbox, once there are ``count`` lines."""
    deadline = time.monotonic() + PATIENCE
    while len(lines := inbox.read_text().split("\n")[:-1]) < count:
        assert time.monotonic() < deadline, f"{len(lines)} of {count} orders came"
        time.sleep(0.05)
    return sorted(json.loads(line)["order"] for line in lines)


@pytest.mark.rule("X1", "R24")
def test_orders_in_python_into_an_inbox_over_a_kill(
    service: Service, consumer_project: Path, spark: SparkSession, tmp_path: Path
) -> None:
    said = run(*ORDERS_PYTHON, "place", "--url", service.url, "--orders", "40", cwd=tmp_path)
    assert said == "placed 40 orders\n"
    inbox = tmp_path / "inbox.ndjson"
    # as a consumer leaves it that crashed in the middle of its second line
    inbox.write_text('{"order":1,"id":"order-1","processed_at":"2026-03-01T12:00:00.000Z"}\n{"order":2,"id":"ord')
    with consumer(consumer_project, service, "orders", inbox):
        assert orders_in(inbox, 40) == list(range(1, 41))
        service.kill()
        service.restart()
        said = run(*ORDERS_PYTHON, "place", "--url", service.url, "--orders", "60", cwd=tmp_path)
        assert said == "placed 20 orders\n"
        assert orders_in(inbox, 60) == list(range(1, 61))
    run(*ORDERS_PYTHON, "export", "orders.csv", cwd=tmp_path)
    with (tmp_path / "orders.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["id"]) for row in rows] == list(range(1, 61))
    assert service.cli("transaction", "show", rows[0]["txn_id"])
    # its book, without the last of what it has done
    inbox.write_text("".join(inbox.read_text().splitlines(keepends=True)[:-1]))
    book = (EXAMPLES / "consumer_javascript" / "inbox_book.toml").read_text()
    (tmp_path / "book.toml").write_text(book.replace('grace = "1m"', 'grace = "0s"'))
    books = [describe(tmp_path / "book.toml")]
    reconcile(spark, running_url(service.data_dir), tmp_path / "report", books=books)
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert summary["findings"]["by_kind"] == {"consumed-not-processed": 1}
    assert summary["books"][0] == {"name": "inbox-javascript", "rows": 59, "messages": 60, "grace_seconds": 0.0}


def test_orders_in_python_tell_that_the_service_is_away(tmp_path: Path) -> None:
    done = subprocess.run(
        [*ORDERS_PYTHON, "place", "--url", "amqp://127.0.0.1:1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert "no connection to amqp://127.0.0.1:1" in done.stderr


def test_examples_in_python_end_when_the_service_is_stopped(
    service: Service, begin_at: BeginAt, address: str, tmp_path: Path
) -> None:
    shipping = [sys.executable, str(EXAMPLES / "orders_one_commit" / "shipping.py"), "--address", address]
    url = running_url(service.data_dir)
    begin_at(service).sender(address).outcome(data(b'{"order": 1}'))
    programs = [
        subprocess.Popen([*command, "--url", service.url], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        for command in (
            [*ORDERS_PYTHON, "place", "--address", "left", "--orders", "1000000"],
            [*shipping, "--database", url],
        )
    ]
    at_work = """select exists (select from coordinator.outcome)
        and not exists (select from coordinator.entries where address = %s)"""
    with psycopg.connect(url, autocommit=True) as store:
        deadline = time.monotonic() + PATIENCE
        while store.execute(at_work, (address,)).fetchone() != (True,):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    service.stop()
    said = [program.communicate(timeout=PATIENCE)[1] for program in programs]
    service.restart()
    assert [program.returncode for program in programs] == [1, 1]
    unanswered = r"error: order \d+ was not accepted: its transaction was rolled back\n"
    for each in said:
        assert re.fullmatch(rf"error: no connection to {re.escape(service.url)}: .*\n|{unanswered}", each), said


@pytest.mark.rule("H7", "H8", "H13", "X1")
def test_checked_orders_are_repaired_after_a_kill(service: Service, consumer_project: Path, tmp_path: Path) -> None:
    """Killed -9 after its own commit, and before it: the row tells which."""
    program = [*ORDERS_CHECKED, "--url", service.url]
    assert run(*program, "place", "1", cwd=tmp_path) == "placed order 1\n"
    for order in (2, 3):
        place_until_killed([*program, "place", str(order), "--hold"], tmp_path)
    with sqlite3.connect(tmp_path / "orders.sqlite") as book:  # as if it had been killed a moment earlier
        book.execute("delete from outcomes where txn_id = (select txn_id from orders where id = 3)")
        book.execute("delete from orders where id = 3")
    said = run(*program, "answer", "--checks", "2", cwd=tmp_path)
    assert sorted(said.splitlines()) == ["order-2: commit", "order-3: rollback"]
    inbox = tmp_path / "inbox.ndjson"
    inbox.touch()
    with consumer(consumer_project, service, "orders", inbox):
        deadline = time.monotonic() + PATIENCE
        while len(lines := inbox.read_text().splitlines()) < 2:
            assert time.monotonic() < deadline, lines
            time.sleep(0.05)
    assert sorted(json.loads(line)["id"] for line in lines) == ["order-1", "order-2"]


@pytest.mark.night
@pytest.mark.rule("X1", "R20", "R21")
def test_orders_in_java(
    service: Service, orders_java_classpath: str, consumer_project: Path, spark: SparkSession, tmp_path: Path
) -> None:
    program = ["java", "-XX:TieredStopAtLevel=1", "-cp", orders_java_classpath, "orders.OrderService"]
    book = "jdbc:h2:./orders"
    assert "placed 30 orders" in run(*program, "place", service.url, book, "30", cwd=tmp_path)
    assert "placed 20 orders" in run(*program, "place", service.url, book, "50", cwd=tmp_path)
    run(*program, "export", book, "orders.csv", cwd=tmp_path)
    with (tmp_path / "orders.csv").open(newline="") as file:
        amounts = {int(row["id"]): row["amount"] for row in csv.DictReader(file)}
    assert sorted(amounts) == list(range(1, 51))
    inbox = tmp_path / "inbox.ndjson"
    inbox.touch()
    with consumer(consumer_project, service, "orders-java", inbox):
        assert orders_in(inbox, 50) == list(range(1, 51))
    received = [json.loads(line) for line in inbox.read_text().splitlines()]
    assert {order["order"]: order["amount"] for order in received} == amounts
    # its book, without the last of its rows, and with one that was never sent
    lines = (tmp_path / "orders.csv").read_text().splitlines(keepends=True)
    (tmp_path / "orders.csv").write_text("".join([*lines[:-1], lines[1].replace("1,", "99,", 1)]))
    (tmp_path / "book.toml").write_text((EXAMPLES / "orders_java" / "orders_book.toml").read_text())
    books = [describe(tmp_path / "book.toml")]
    reconcile(spark, running_url(service.data_dir), tmp_path / "report", books=books)
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert summary["findings"]["by_kind"] == {"lost-message": 1, "phantom-message": 1}


@pytest.mark.rule("H2", "H7", "H8", "H13", "X1")
def test_checked_orders_in_java_are_repaired_after_a_kill(
    service: Service, orders_java_classpath: str, consumer_project: Path, tmp_path: Path
) -> None:
    """Killed -9 before its own commit and after it: another process answers. What it has refused cannot be placed."""
    program = ["java", "-XX:TieredStopAtLevel=1", "-cp", orders_java_classpath, "orders.CheckedOrders"]
    book = "jdbc:h2:./orders;AUTO_SERVER=TRUE;WRITE_DELAY=0"
    assert run(*program, "place", service.url, book, "1", cwd=tmp_path) == "placed order 1\n"
    for order, point in (("2", "before-commit"), ("3", "after-commit")):
        place_until_killed([*program, "place", service.url, book, order, point], tmp_path)
    said = run(*program, "answer", service.url, book, "2", cwd=tmp_path)
    assert sorted(said.splitlines()) == ["order 2: rollback", "order 3: commit"]
    said = run(*program, "place", service.url, book, "2", cwd=tmp_path)
    assert said == "order 2 is in the book already: refused\n"
    inbox = tmp_path / "inbox.ndjson"
    inbox.touch()
    with consumer(consumer_project, service, "orders-checked-java", inbox):
        assert orders_in(inbox, 2) == [1, 3]


@pytest.mark.rule("X2", "X4")
@pytest.mark.parametrize("program", ["OneCommit", by_night("SpringOneCommit")])
def test_one_commit_in_java_over_kills(
    own_service: Service, begin_at: BeginAt, orders_java_classpath: str, tmp_path: Path, program: str
) -> None:
    """With plain JDBC and with Spring's: the producer is killed -9 before its commit, the consumer after its own."""
    store = running_url(own_service.data_dir)
    with closing(Proxy(store)) as proxy:  # the driver of Java knows no unix sockets
        book = f"jdbc:postgresql://{proxy.url.rpartition('@')[2]}&user={ROLE}"
        command = ["java", "-XX:TieredStopAtLevel=1", "-cp", orders_java_classpath, f"orders.{program}"]
        for address in ("orders-one-commit-java", "parcels-java"):
            own_service.cli("address", "add", address)
        place_until_killed([*command, "place", book, "8", "6"], tmp_path)
        with psycopg.connect(store, autocommit=True) as looks:
            assert looks.execute("select max(id) from shop_java.orders").fetchone() == (5,)
            assert run(*command, "place", book, "8", cwd=tmp_path) == "placed up to order 8\n"
            place_until_killed([*command, "ship", own_service.url, book, "8", "4"], tmp_path)
            said = run(*command, "ship", own_service.url, book, "5", cwd=tmp_path)
            assert said == "again order 4\ntook 5 messages\n"
            shipped = looks.execute("select order_id from shop_java.shipments order by order_id").fetchall()
        assert shipped == [(number,) for number in range(1, 9)]
    parcels = begin_at(own_service).receiver("parcels-java", credit=20).bodies()
    assert [json.loads(each)["order"] for each in parcels] == list(range(1, 9))


def place_until_killed(command: list[str], folder: Path) -> None:
    """Start an order service that stops at a point, and kill it -9 there."""
    held = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE)
    assert held.stdout is not None
    assert held.stdout.readline() == b"holding\n"
    held.kill()
    held.communicate(timeout=PATIENCE)


@pytest.mark.night
@pytest.mark.rule("H8", "R20", "X1", "X2", "X4", "X5")
def test_the_report_finds_exactly_the_planted_crashes(consumer_project: Path, tmp_path: Path) -> None:
    """Of best effort; with check-back, and with one commit for row and message, the same crashes lose nothing. The
    consumer of the third is killed, too, and does no work twice.
    """
    demo = [sys.executable, str(EXAMPLES / "demo.py"), "--orders", "200", "--crashes", "3"]
    said = run(*demo, "--folder", str(tmp_path / "demo"), cwd=tmp_path)
    table = {line[:50].strip(): line[50:].split() for line in said.splitlines()}
    assert table["orders in the service's own book"] == ["200", "200", "200"]
    assert table["of them repaired by a checker's answer"] == ["0", "3", "0"]
    assert table["kills of the consumer between commit and accept"] == ["0", "0", "3"]
    assert int(table["messages that came again after their work"][2]) >= 3
    assert table["orders that reached the consumer"] == ["197", "200", "200"]
    assert table["orders whose work was done twice"] == ["0", "0", "0"]
    assert table["lost messages that the report finds"] == ["3", "0", "0"]
