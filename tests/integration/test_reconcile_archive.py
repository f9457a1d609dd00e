"""``coordinator reconcile --archive``: archive and live tables read as one (R4)."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow.parquet as pq
import pytest

from spark.books.description import describe
from spark.period import Period
from spark.snapshot import StoreUnreadable
from store.archive import days, writing
from store.archive.copies import ArchiveUnusable
from store.database import connected
from store.ids import id_at
from store.retention import Policy, drop_old
from tests.fix_store_rows import NOW, StoreRows, encode_message
from tests.reconciling import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.books.description import Description
    from spark.report import Run

#: Halves of most days are archived, ops of half of these: others are in the store.
POLICY = Policy(messages=timedelta(hours=72), decisions=timedelta(days=9))
BEGIN = NOW - timedelta(days=16)
DAY = timedelta(days=1)
BOOK = """
name = "shop"
format = "parquet"
addresses = ["planted"]
key = "id"
message_key = "property:order"
time = "at"
committed_when = "true"
options.path = "shop.parquet"
"""


def _plant(rows: StoreRows, address: int, at: datetime) -> None:
    """A finding of each kind that an old day can have; the message of a lost delivery has the key of its day."""
    (group,) = rows.groups_of(address, at)
    message = encode_message(properties={"order": f"{at:%d}"}, body={})
    rows.committed([address], at, messages=[message])
    _, (twice,) = rows.committed([address], at)
    for seconds in (5, 6):
        rows.op("accept", at + timedelta(seconds=seconds), covers=[(twice, group)])
    rolled_back = rows.uuid_v7(at)
    phantom = rows.half(address, at, rolled_back)
    rows.decide(rolled_back, "rollback", at, 1)
    taken = rows.uuid_v7(at)
    rows.decide(taken, "commit", at + timedelta(seconds=9), 0, [(phantom, group), (twice + 1, group)])
    rows.decide(rows.uuid_v7(at), "commit", at, 2)
    rows.half(address, at, rows.uuid_v7(at))
    early = rows.half(address, at)
    rows.op("accept", at - timedelta(minutes=9), covers=[(early, group)])
    rows.op("dead-letter", at, covers=[(rows.half(address, at), group)], reason="app:bad")


def _archive_and_drop(url: str, root: Path) -> list[str]:
    """The partitions that were emptied."""
    with connected(url) as connection:
        days.turn_on(connection, root)
        with writing.alone(connection):
            for table, day in writing.due(connection, POLICY):
                writing.write_day(connection, root, table, day)
        days.run_retention_soon(connection)
        connection.commit()
        return list(drop_old(connection, POLICY).emptied)


def _said(ran: Run, out: Path) -> list[dict[str, Any]]:
    """All findings, without how long ago each was, which grows."""
    found = pq.read_table(out / "findings.parquet").drop_columns(["seen_at"]).to_pylist()
    for each in found:
        each["detail"] = re.sub(r"[\d.]+ (s|min|h|days) (ago|before)", "a while ago", each["detail"])
    assert len(found) == ran.findings.total
    return sorted(found, key=repr)


def _same(one: Run, other: Run) -> None:
    left, right = (replace(each.metrics, undecided_by_age=[]) for each in (one, other))
    assert left == right


@pytest.fixture
def planted(spark: SparkSession, database_url: str, tmp_path: Path) -> Description:
    """A store of 16 days with findings in all of them, and a book that knows half of the messages."""
    rows = StoreRows(seed=31).healthy(240, begin=BEGIN, end=NOW)
    address = rows.address("planted")
    for number in range(16):
        _plant(rows, address, BEGIN + (number + 0.4) * DAY)
    # of a day that is dropped, and decided days later
    slow = rows.uuid_v7(BEGIN + 2 * DAY)
    half = rows.half(address, BEGIN + 4 * DAY, slow)
    rows.decide(slow, "commit", BEGIN + 4 * DAY, 1)
    rows.entry(rows.groups_of(address, NOW)[0], half)
    rows.write(database_url)
    (tmp_path / "book.toml").write_text(BOOK, "utf-8")
    kept = [(f"{BEGIN + (number + 0.4) * DAY:%d}", BEGIN + (number + 0.4) * DAY) for number in range(0, 16, 2)]
    book = [*kept, ("none", BEGIN + DAY)]
    spark.createDataFrame(book, "id string, at timestamp").write.parquet(str(tmp_path / "shop.parquet"))
    return describe(tmp_path / "book.toml")


@pytest.mark.rule("R4", "R35")
def test_archived_and_live_days_are_one(
    spark: SparkSession, database_url: str, planted: Description, tmp_path: Path
) -> None:
    root = tmp_path / "the archive"
    # all; and with a book, from a day whose ops are archived, too, into one that is live
    asked = [(Period(), []), (Period(since=NOW - 11.5 * DAY, until=NOW - 2.5 * DAY), [planted])]
    before = [run(spark, database_url, tmp_path / f"before-{n}", *each) for n, each in enumerate(asked)]
    assert min(ran.findings.total for ran in before) > 40
    emptied = _archive_and_drop(database_url, root)
    assert {name.partition("_")[0] for name in emptied} == {"half", "op"}
    assert len(emptied) > 14
    with psycopg.connect(database_url) as connection:
        carried = connection.execute("select count(*) from coordinator.half h where id < %s", [_id(4)]).fetchone()
    assert carried is not None
    assert carried[0] > 5, "nothing is in both"
    for number, each in enumerate(asked):
        ran = run(spark, database_url, out := tmp_path / f"after-{number}", *each, archive=root)
        assert _said(ran, out) == _said(before[number], tmp_path / f"before-{number}")
        _same(ran, before[number])
        assert ran.period == before[number].period
    _damaged(spark, database_url, root, tmp_path / "damaged")
    _incomplete(spark, database_url, root, tmp_path / "incomplete")


def _id(ago: int) -> int:
    return id_at(NOW - ago * DAY)


def _damaged(spark: SparkSession, url: str, root: Path, out: Path) -> None:
    path = sorted(root.glob("half/*/half.parquet"))[0]
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"x" + content[101:])
    with pytest.raises(ArchiveUnusable, match=rf"{re.escape(str(path))}: changed; its SHA-256 is \w+, expected \w+"):
        run(spark, url, out, archive=root)
    assert not (out / "summary.json").exists()
    path.write_bytes(content)


def _incomplete(spark: SparkSession, url: str, root: Path, out: Path) -> None:
    """Days that were dropped without a copy are not judged, nor are those before them."""
    with connected(url) as connection:
        days.turn_off(connection)
        drop_old(connection, Policy(messages=DAY, decisions=POLICY.decisions))
    ran = run(spark, url, out, archive=root)
    assert ran.period.since > NOW - 3 * DAY
    with pytest.raises(StoreUnreadable, match="not kept any more"):
        run(spark, url, out, Period(until=NOW - 10 * DAY), archive=root)
