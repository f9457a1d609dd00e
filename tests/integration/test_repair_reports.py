"""The reports that ``coordinator repair`` reads back, and what is left once it has done its work (rule R34)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, delete, func, insert, text, update
from typer.testing import CliRunner

from coordinator.__main__ import app
from spark.books.description import describe
from store import repairs, undecided
from store.tables import consumer_group, entry, op
from tests.fix_command import Command
from tests.fix_reports import finding, known, lost, write_report
from tests.fix_store import Rows
from tests.reconciling import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.rule("R34")


def _none(out: Path, _: str) -> None:
    out.mkdir()


def _no_json(out: Path, store_id: str) -> None:
    (write_report(out, [], store_id) / "summary.json").write_text("{", "utf-8")


def _other_format(out: Path, store_id: str) -> None:
    write_report(out, [], store_id, format=9)


def _other_store(out: Path, _: str) -> None:
    write_report(out, [], "00000000")


def _of_two_runs(out: Path, store_id: str) -> None:
    write_report(out, [], store_id)
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    (out / "summary.json").write_text(json.dumps(summary | {"findings": {"total": 3}}), "utf-8")


def _cut_off(out: Path, store_id: str) -> None:
    path = write_report(out, [lost(1)], store_id) / "findings.parquet"
    path.write_bytes(path.read_bytes()[:-5])


def _damaged(out: Path, store_id: str) -> None:
    path = write_report(out, [lost(1)], store_id) / "findings.parquet"
    content = bytearray(path.read_bytes())
    content[4:100] = bytes(96)
    path.write_bytes(content)


def _no_findings(out: Path, store_id: str) -> None:
    (write_report(out, [], store_id) / "findings.parquet").unlink()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_none, "summary.json: No such file or directory; is that the --out of coordinator reconcile?"),
        (_no_json, "summary.json: not what coordinator reconcile writes"),
        (_other_format, "summary.json: its format is 9, expected 1"),
        (_other_store, "is of the store 00000000, and this is "),
        (_of_two_runs, "findings.parquet: 0 findings, where summary.json has 3: not of one run"),
        (_cut_off, "findings.parquet: no whole Parquet file"),
        (_damaged, "findings.parquet: it cannot be read to its end: "),
        (_no_findings, "findings.parquet: No such file or directory"),
    ],
)
def test_a_folder_without_a_whole_report_of_this_store(
    database: Connection, database_url: str, tmp_path: Path, make: Any, said: str
) -> None:
    make(tmp_path / "out", repairs.store_id(database))
    arguments = ["repair", str(tmp_path / "out"), "--apply", "--database-url", database_url]
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line


def test_a_store_that_is_away(command: Command, tmp_path: Path) -> None:
    write_report(tmp_path / "out", [], "x")
    done = command("repair", str(tmp_path / "out"), "--database-url", "postgresql://u:secret@127.0.0.1:1/shop")
    assert (done.returncode, done.stderr) == (2, "error: database at 127.0.0.1:1/shop: Connection refused\n")


@pytest.mark.rule("R22")
def test_a_transaction_that_the_books_decide_in_two_ways_is_for_a_person(
    rows: Rows, database_url: str, command: Command, tmp_path: Path
) -> None:
    """Of two of its messages, or of two books: more findings lie between them than are repaired together."""
    orders = rows.address_of(rows.queue("orders"))
    twice, once, others = (rows.checkable(1, orders) for _ in range(3))
    plain = rows.txn(1)
    only_its_client = finding("undecided-but-known", "let its client commit it", txn_id=str(plain))
    between = [known(others, "commit"), *(lost(number) for number in range(repairs.MOST_TOGETHER))]
    findings = [known(twice, "commit"), only_its_client, *between, known(twice, "rollback"), known(once, "rollback")]
    write_report(tmp_path / "out", [*findings, known(plain, "rollback")], repairs.store_id(rows.connection))
    said = []
    for more in ([], ["--apply"]):
        done = command("repair", str(tmp_path / "out"), "--database-url", database_url, *more)
        assert done.returncode == 1, done.stderr
        said.append([line for line in done.stdout.splitlines() if "(lost-delivery)" not in line])
    for lines in said:
        for_a_person = "is for a person to decide: the books say committed of some of its messages, and rolled back of"
        left = [line for line in lines if line.startswith("left: ")]
        assert left == [
            f"left: transaction {each} {for_a_person} others (undecided-but-known)" for each in (twice, twice, plain)
        ]
        assert lines[-1] == "by hand: 1 undecided-but-known: let its client commit it"
    assert [line.split()[0] for line in said[0] if line not in said[1]] == ["would", "would"]
    decided = {row.id: row.decision for row in rows.ops()}
    assert decided == {once: "rollback", others: "commit"}
    undecided.commit(rows.connection, twice, "by hand")
    again = command("repair", str(tmp_path / "out"), "--apply", "--database-url", database_url)
    assert again.stdout.count(f"done: transaction {twice} is decided already: commit (by hand)") == 1


def test_what_is_left_to_a_person_is_counted_whatever_message_it_is_about(
    database: Connection, database_url: str, command: Command, tmp_path: Path
) -> None:
    again = "have it delivered again: coordinator group seek --back-to {} -- orders"
    found = [finding("consumed-not-processed", again.format(half_id), half_id=half_id) for half_id in range(98, 102)]
    found.append(finding("consumed-not-processed", again.format(102) + "-2", half_id=102))
    found += [finding("null-key"), finding("null-key"), finding("null-key", "another")]
    write_report(tmp_path / "out", found, repairs.store_id(database))
    arguments = ["repair", str(tmp_path / "out"), "--database-url", database_url]
    assert json.loads(command(*arguments, "--json").stdout)["by_hand"] == [
        {"kind": "consumed-not-processed", "findings": 4, "suggested_repair": again.format(98)},
        {"kind": "null-key", "findings": 2, "suggested_repair": "look"},
        {"kind": "consumed-not-processed", "findings": 1, "suggested_repair": again.format(102) + "-2"},
        {"kind": "null-key", "findings": 1, "suggested_repair": "another"},
    ]
    assert command(*arguments).stdout.splitlines() == [
        f"by hand: 5 consumed-not-processed: {again.format(98)} (and 1 others)",
        "by hand: 3 null-key: look (and 1 others)",
    ]


def test_after_it_the_store_and_the_book_agree(
    spark: SparkSession, rows: Rows, database_url: str, command: Command, tmp_path: Path
) -> None:
    """What a run has found, repaired by its own report: the next one is clean."""
    orders, lines = rows.queue("orders"), rows.queue("lines")
    rows.connection.execute(text("update coordinator.address set created_at = now() - interval '1 day'"))
    rows.connection.execute(update(consumer_group).values(created_at=func.now() - timedelta(days=1)))
    rows.connection.commit()
    known = [rows.checkable(rows.instance(), rows.address_of(orders)) for _ in range(2)]
    rows.entry(lines)
    rows.connection.execute(delete(entry))
    rows.entry(lines, lease=rows.instance(ended_at=func.now() - timedelta(minutes=10)))
    given_up = rows.entry(lines)
    rows.connection.execute(delete(entry).where(entry.c.half_id == given_up))
    ended = {"id": UUID(bytes=rows.txn_ids.next()), "decision": "dead-letter", "reason": "app:bad"}
    rows.connection.execute(insert(op).values(**ended, half_ids=[given_up], group_ids=[lines]))
    rows.connection.commit()
    book = tmp_path / "book.toml"
    book.write_text(
        'name = "shop"\nformat = "csv"\naddresses = ["orders"]\nkey = "txn"\nmessage_key = "txn-id"\ntime = "at"\n'
        'committed_when = "state = \'paid\'"\nrolled_back_when = "state = \'failed\'"\ngrace = "0s"\n'
        'options.path = "book.csv"\noptions.header = "true"\n',
        "utf-8",
    )
    at = datetime.now(UTC).isoformat()
    decided = [f"{known[0]},{at},paid", f"{known[1]},{at},failed"]
    (tmp_path / "book.csv").write_text("\n".join(["txn,at,state", *decided, ""]), "utf-8")

    def found() -> dict[str, int]:
        return dict(run(spark, database_url, tmp_path / "out", books=[describe(book)]).findings.by_kind)

    deliveries = {"dead-letter-mismatch": 1, "lost-delivery": 1, "stuck-delivery": 1, "unbalanced": 1}
    assert found() == {**deliveries, "undecided-but-known": 2}
    repaired = command("repair", str(tmp_path / "out"), "--apply", "--database-url", database_url)
    assert repaired.stdout.count("done: ") == 5, repaired.stdout + repaired.stderr
    assert found() == {}
