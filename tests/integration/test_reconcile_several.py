"""``coordinator reconcile`` over several stores as one report: each finding and each total says of which it is."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner

from coordinator.__main__ import app
from spark.books.description import describe
from spark.snapshot import StoreUnreadable
from store.tables import SCHEMA
from tests import prepared
from tests.fix_command import Command, environment
from tests.fix_postgres import clone
from tests.fix_store_rows import NOW, StoreRows, encode_message
from tests.reconciling import Told, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.report import Run

pytestmark = pytest.mark.rule("R37")

AT = NOW - timedelta(hours=3)
BOOK = """
name = "shop"
format = "csv"
columns = "id string, at timestamp, status string"
addresses = ["orders"]
key = "id"
message_key = "property:order"
time = "at"
committed_when = "status = 'paid'"
rolled_back_when = "status = 'cancelled'"
options.path = "shop.csv"
"""


@pytest.fixture
def other_url(server_url: str, _template: str) -> Iterator[str]:
    """A second store, on the same server."""
    with clone(server_url, _template) as url:
        with psycopg.connect(url) as connection:
            connection.execute(f"update {SCHEMA}.store_identity set id = 'theother'".encode())
        yield url


def _name(url: str) -> str:
    given = conninfo_to_dict(url)
    return f"{given['host']}/{given['dbname']}"


def _order(rows: StoreRows, orders: int, key: str, *, decision: str = "commit") -> str:
    """A message of that key, committed and waiting, or its transaction rolled back or undecided."""
    message = encode_message(properties={"order": key}, body={})
    if decision == "commit":
        txn_id, (half,) = rows.committed([orders], AT, messages=[message])
        rows.entry(orders, half)
        return txn_id
    txn_id = rows.uuid_v7(AT)
    rows.half(orders, AT, txn_id, message)
    if decision == "rollback":
        rows.decide(txn_id, "rollback", AT, 1)
    else:
        rows.undecided(txn_id, AT, next_check_at=NOW + timedelta(hours=1))
    return txn_id


def _written(folder: Path, *rows: tuple[str, str], book: str = BOOK) -> Any:
    lines = [f"{key},{AT.isoformat()},{status}" for key, status in rows]
    (folder / "shop.csv").write_text("\n".join(["id,at,status", *lines]) + "\n", "utf-8")
    (folder / "book.toml").write_text(book, "utf-8")
    return describe(folder / "book.toml")


def _told(found: Run) -> list[tuple[str, str | None, str | None]]:
    every = [each for shown in found.findings.shown.values() for each in shown]
    return sorted(((each.kind, each.store, each.key) for each in every), key=str)


@pytest.mark.rule("R20", "R21", "R22", "R25")
def test_one_book_has_the_orders_of_all_stores(
    spark: SparkSession, database_url: str, other_url: str, tmp_path: Path
) -> None:
    """The stores give the same numbers to other things: ids of addresses, groups and halves are each store's own."""
    here, there = StoreRows(seed=31), StoreRows(seed=31)
    there.address("never in the book")
    one, other = here.address("orders"), there.address("orders")
    for key in ("only here", "in both", "rolled back here and sent on"):
        _order(here, one, key, decision="rollback" if "sent on" in key else "commit")
    for key in ("only there", "in both", "rolled back here and sent on", "of no row"):
        _order(there, other, key)
    _order(there, other, "undecided there", decision="open")
    _order(there, other, "cancelled there", decision="rollback")
    here.write(database_url)
    there.write(other_url)
    paid = ("only here", "only there", "in both", "rolled back here and sent on", "undecided there", "in none")
    book = _written(tmp_path, *((key, "paid") for key in paid), ("cancelled there", "cancelled"))
    told = Told()
    found = run(spark, database_url, tmp_path / "out", books=[book], told=told, others=[other_url])
    a, b = _name(database_url), _name(other_url)
    assert _told(found) == [
        ("lost-message", None, "in none"),
        ("phantom-message", b, "of no row"),
        ("repeated-key", None, "in both"),
        ("undecided-but-known", b, "undecided there"),
    ]
    (twice,) = found.findings.shown["repeated-key"]
    assert twice.detail == f"book shop, key in both: committed in several stores: {', '.join(sorted((a, b)))}"
    # each has the rows that it is compared with, and those of none are counted apart
    assert [(each.store, each.rows, each.messages) for each in found.books] == [(a, 2, 3), (b, 5, 6), (None, 1, 0)]
    assert told.warnings == []
    _is_in_every_form(found, tmp_path / "out", a, b)


def _is_in_every_form(found: Run, out: Path, a: str, b: str) -> None:
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert not {"store", "totals", "rows_read", "seen_at"} & summary.keys()
    assert [(each["name"], each["totals"]["posted"]) for each in summary["stores"]] == [(a, 3), (b, 6)]
    assert [each["store"]["id"] for each in summary["stores"]][1] == "theother"
    assert [each.metrics.totals["posted"] for each in found.stores] == [3, 6]
    assert summary["clean"] is False
    with (out / "findings.csv").open(encoding="utf-8", newline="") as file:
        lines = [(line["kind"], line["store"]) for line in csv.DictReader(file)]
    assert lines == [(kind, store or "") for kind, store, _ in _told(found)]
    page = (out / "report.html").read_text("utf-8")
    assert f"The period in numbers: {a}" in page
    assert f"The period in numbers: {b}" in page
    assert f"<li>{b}: orders: book shop, key of no row" in page


@pytest.mark.night
@pytest.mark.rule("R20", "R22")
def test_a_book_by_txn_id(spark: SparkSession, database_url: str, other_url: str, tmp_path: Path) -> None:
    here, there = StoreRows(seed=32), StoreRows(seed=33)
    one, other = here.address("orders"), there.address("orders")
    rows = [(_order(here, one, "1"), "paid"), (_order(there, other, "2"), "paid")]
    undecided = _order(there, other, "3", decision="open")
    rolled_back = _order(there, other, "4", decision="rollback")
    nowhere = here.uuid_v7(AT)
    here.write(database_url)
    there.write(other_url)
    rows += [(undecided, "paid"), (rolled_back, "paid"), (nowhere, "paid")]
    book = _written(tmp_path, *rows, book=BOOK.replace("property:order", "txn-id"))
    found = run(spark, database_url, tmp_path / "out", books=[book], others=[other_url])
    b = _name(other_url)
    assert set(_told(found)) == {
        ("lost-message", None, nowhere),
        ("lost-message", b, rolled_back),
        ("undecided-but-known", b, undecided),
    }
    assert found.findings.total == 3


@pytest.mark.night
@pytest.mark.rule("R24")
def test_a_consumers_book_and_each_stores_inbox(
    spark: SparkSession, database_url: str, other_url: str, tmp_path: Path
) -> None:
    """The group is in one store alone; what no row tells of is of its store."""
    here, there = StoreRows(seed=34), StoreRows(seed=34)
    there.address("first")
    one, other = here.address("others"), there.address("orders")
    for rows, address, keys in ((here, one, ["a"]), (there, other, ["b", "lost"])):
        for key in keys:
            message = encode_message(message_id=key, properties={"order": key}, body={})
            _, (half,) = rows.committed([address], AT, messages=[message])
            rows.op("accept", AT, covers=[(half, address)])
    here.write(database_url)
    there.write(other_url)
    with psycopg.connect(other_url) as connection:
        connection.execute(
            f"insert into {SCHEMA}.inbox (consumer, message_id, taken_at) values ('orders', 'b', %s)".encode(), [AT]
        )
    text = BOOK.replace('addresses = ["orders"]', 'group = "orders"').replace("committed_when", "processed_when")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("rolled_back_when"))
    book = _written(tmp_path, ("b", "paid"), ("unknown", "paid"), book=text)
    told = Told()
    found = run(spark, database_url, tmp_path / "out", books=[book], inbox=True, told=told, others=[other_url])
    b = _name(other_url)
    kinds = [(kind, store) for kind, store, _ in _told(found)]
    assert kinds == [("consumed-not-processed", b)] * 2 + [("processed-not-consumed", None)]
    assert [(each.name, each.store, each.rows) for each in found.books] == [
        ("shop", _name(database_url), 0),
        ("shop", b, 1),
        ("shop", None, 1),
        ("inbox", _name(database_url), 0),
        ("inbox", b, 1),
    ]
    assert told.warnings == []


def test_what_no_store_has_is_warned_of_once(
    spark: SparkSession, database_url: str, other_url: str, tmp_path: Path
) -> None:
    told = Told()
    found = run(spark, database_url, tmp_path / "out", books=[_written(tmp_path)], told=told, others=[other_url])
    assert found.findings.total == 0
    assert told.warnings == ["book shop: the store knows no address 'orders'; nothing was ever posted to it"]
    assert "Clean: everything agrees." in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_no_report_is_clean_over_a_store_that_could_not_be_read(
    spark: SparkSession, database_url: str, empty_database_url: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for url, says in (
        (empty_database_url, "store 1: database: there is no table coordinator.half in it"),
        ("postgresql://user:hunter2@127.0.0.1:1/shop", "store 1: database: connection failed"),
    ):
        with pytest.raises(StoreUnreadable, match=says) as refused:
            run(spark, database_url, out, others=[url])
        assert "hunter2" not in str(refused.value)
        assert list(out.iterdir()) == []


@pytest.fixture
def lossy(database_url: str, other_url: str) -> tuple[str, str]:
    """In each store an order waits for its group that does not get it; the ids are the same."""
    for url in (database_url, other_url):
        rows = StoreRows(seed=35)
        rows.committed([rows.address("orders")], AT)
        rows.write(url)
    return database_url, other_url


@pytest.mark.rule("R34")
def test_a_repair_is_of_its_store(command: Command, lossy: tuple[str, str], tmp_path: Path) -> None:
    one, other = lossy
    out = str(tmp_path / "out")
    file = tmp_path / "other.url"
    file.write_text(other, "utf-8")
    file.chmod(0o600)
    arguments = ["reconcile", "--out", out, "--database-url", one, "--also", str(file)]
    ran = prepared.run(arguments, environment(), timeout=300)
    assert ran.returncode == 1, ran.stderr
    assert ran.stdout == f"4 findings: 2 lost-delivery, 2 unbalanced; report: {out}/report.html\n"

    def entries(url: str) -> Any:
        with psycopg.connect(url) as connection:
            return connection.execute(f"select count(*) from {SCHEMA}.entry".encode()).fetchone()

    done = command("repair", out, "--apply", "--database-url", other)
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["done", "by hand"], done.stderr
    assert (entries(one), entries(other)) == ((0,), (1,))
    done = command("repair", out, "--apply", "--database-url", one)
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["done", "by hand"], done.stderr
    assert (entries(one), entries(other)) == ((1,), (1,))
    with psycopg.connect(one) as connection:
        connection.execute(f"update {SCHEMA}.store_identity set id = 'athird00'".encode())
    refused = command("repair", out, "--database-url", one)
    assert refused.returncode == 2
    assert ", theother, and this is athird00" in refused.stderr


def _refused(out: Path, *arguments: str) -> str:
    ran = CliRunner().invoke(app, ["reconcile", "--out", str(out), *arguments])
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert "hunter2" not in ran.stderr
    assert not list(out.glob("*"))
    (line,) = ran.stderr.splitlines()
    return line


@pytest.mark.rule("S8")
@pytest.mark.usefixtures("handlers")
def test_what_cannot_be_read_together_is_named(database_url: str, other_url: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    here = ("--database-url", database_url)
    away = "postgresql://user:hunter2@127.0.0.1:1/shop"
    assert _refused(out, *here, "--also", away) == (
        "error: 127.0.0.1:1/shop: database at 127.0.0.1:1/shop: Connection refused"
    )
    assert "--also: " in _refused(out, *here, "--also", str(tmp_path / "none"))
    assert ": give it once" in _refused(out, *here, "--also", database_url)
    for option in (("--store",), ("--archive", str(tmp_path))):
        said = _refused(out, *here, "--also", other_url, *option)
        assert said == f"error: {option[0]}: it is of one store, and --also names another"
    cluster = ("--database-url", "postgresql://127.0.0.1/shop", "--master", "spark://127.0.0.1:1")
    with psycopg.connect(other_url) as connection:
        connection.execute("update coordinator.alembic_version set version_num = '9.9'")
    assert "schema is at 9.9" in (said := _refused(out, *here, "--also", other_url))
    assert str(conninfo_to_dict(other_url)["dbname"]) in said
    assert "--also: on a cluster expected a file" in _refused(out, *cluster, "--also", away)
