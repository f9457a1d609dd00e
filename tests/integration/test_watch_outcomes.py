"""``coordinator watch``: what the service writes is counted once, however it is stopped (R33)."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from pyspark.sql import SparkSession

from spark.watching import Batch, watch
from store import watched
from store.database import connected
from store.ids import id_at
from tests.fix_night import by_night
from tests.fix_proxy import Proxy
from tests.fix_store_rows import NOW, StoreRows
from tests.reconciling import Writer, wait_for
from tests.watching import POST_AND_RETIRE, Stopped, Told, Watching, counted, in_store

pytestmark = pytest.mark.rule("R33")

#: COORDINATOR_TEST_WATCH_KILLS: how many in a long run (make watch-kills).
KILLS = int(os.environ.get("COORDINATOR_TEST_WATCH_KILLS", "1"))


@pytest.fixture
def queue_url(database_url: str) -> str:
    """A store with one queue, as :data:`POST_AND_RETIRE` needs it."""
    rows = StoreRows()
    rows.address("orders")
    rows.write(database_url)
    return database_url


@pytest.fixture
def written(queue_url: str) -> str:
    with Writer(queue_url, 2, POST_AND_RETIRE) as writer:
        wait_for(100, writer)
    return queue_url


def _run(spark: SparkSession, url: str, checkpoint: Path, ledger: Told, rows: int = 10_000) -> None:
    with pytest.raises(Stopped):
        watch(spark, url=url, checkpoint=checkpoint, every=1, rows=rows, ledger=ledger)


def _above(url: str, number: int) -> bool:
    """Whether more rows than these are counted."""
    return sum(counted(url).values()) > number


def _tell(line: str) -> None:
    """Seen at once in a long run, which shows what tests write."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def test_each_row_counts_once_over_kills(queue_url: str, tmp_path: Path) -> None:
    """Killed as the machine may do, again and again, anywhere, while messages come."""
    moments = random.Random(33)
    with Writer(queue_url, 2, POST_AND_RETIRE) as writer:
        wait_for(20, writer)
        for number in range(1, KILLS + 1):
            before = sum(counted(queue_url).values())
            with Watching(queue_url, tmp_path, "--every", "1", "--rows", "1000") as watching:
                watching.wait_for(partial(_above, queue_url, before))
                time.sleep(moments.uniform(0, 3))
                watching.end(signal.SIGKILL)
                assert _above(queue_url, before)
            _tell(f"kill {number} of {KILLS}: {sum(counted(queue_url).values()):,} rows counted")
    expected = in_store(queue_url)
    with Watching(queue_url, tmp_path, "--every", "1") as watching:
        watching.wait_for(lambda: watching.told("; 0 rows and 0.0 s behind"))
        status, said, lines = watching.end(signal.SIGINT)
        assert (status, said, lines[-1]) == (130, "", "error: interrupted")
        assert watching.unexpected() == []
        assert watching.others() == []
    assert counted(queue_url) == expected
    assert expected["half"] == 3 * writer.written
    _tell(f"counted, and in the store: {expected}")


class _Dies(Told):
    """Dies, the first time of each batch: before it has counted it, or after."""

    def __init__(self, url: str, *, after: bool) -> None:
        super().__init__(lambda _: counted(url) == in_store(url))
        self._url = url
        self._after = after
        self.died: set[int] = set()

    def count(self, watch_id: UUID, batch: Batch) -> None:
        first = batch.number not in self.died
        self.died.add(batch.number)
        if first and not self._after:
            raise RuntimeError("died before")
        of = watched.Batch(number=batch.number, since=batch.since, until=batch.until, counts=batch.counts, findings=())
        with connected(self._url) as connection:
            watched.count(connection, watch_id, of, "1.2.3")
        super().count(watch_id, batch)
        if first and self._after:
            raise RuntimeError("died after")


@pytest.mark.parametrize("after", [by_night(False), True])
def test_a_batch_that_is_repeated_counts_once(spark: SparkSession, written: str, tmp_path: Path, after: bool) -> None:
    """Stopped before its counts were in the store, or before Spark noted its end."""
    ledger = _Dies(written, after=after)
    _run(spark, written, tmp_path, ledger, rows=200)
    assert counted(written) == in_store(written)
    assert len(ledger.died) > 1
    assert len(ledger.ids) == 1


def test_a_batch_has_no_more_rows_than_wanted(spark: SparkSession, written: str, tmp_path: Path) -> None:
    """Unless one SQL transaction has more: it is never split."""
    with psycopg.connect(written) as connection:
        connection.execute(
            "insert into coordinator.half (id, address_id, message)"
            " select max(id) + i, 1, '' from coordinator.half cross join generate_series(1, 300) i group by i"
        )
    ledger = Told(lambda told: told.counts() == in_store(written))
    _run(spark, written, tmp_path, ledger, rows=200)
    sizes = [sum(batch.counts.values()) for batch in ledger.batches]
    assert sorted(sizes)[-2] <= 200
    assert max(sizes) == 300
    assert sorted(sizes)[-2] > 150, "a batch has as many as it may"
    assert [batch.number for batch in ledger.batches] == list(range(len(sizes)))
    ends = [batch.until for batch in ledger.batches]
    assert [batch.since for batch in ledger.batches] == [0, *ends[:-1]]


def test_what_commits_late_is_counted(spark: SparkSession, written: str, tmp_path: Path) -> None:
    """It has a low number, and is written by a transaction that others have overtaken."""
    before = in_store(written)["half"]
    late = psycopg.connect(written)
    late.execute(
        "insert into coordinator.half (id, address_id, message) select max(id) + 1, 1, '' from coordinator.half"
    )
    with Writer(written, 3, POST_AND_RETIRE) as writer:
        wait_for(20, writer)
    seen: list[dict[str, int]] = []

    def enough(told: Told) -> bool:
        if told.batches and not late.closed:
            # only what came before it is counted: what comes after may not be complete
            seen.append(told.counts())
            if len(told.looks) > 2:
                late.commit()
                late.close()
        return told.counts() == in_store(written)

    _run(spark, written, tmp_path, Told(enough))
    assert seen
    assert {each["half"] for each in seen} == {before}
    assert in_store(written)["half"] > before + 1


def _found(told: Told) -> list[tuple[str, str, str | None, str | None]]:
    """The findings of its batches, and of its last look."""
    found = [*(each for batch in told.batches for each in batch.findings), *told.looks[-1]]
    return sorted((each.kind, each.severity, each.txn_id or str(each.half_id), each.address) for each in found)


@pytest.mark.rule("R10", "R11", "R14", "R18")
def test_what_is_wrong_is_found_as_it_comes(spark: SparkSession, database_url: str, tmp_path: Path) -> None:
    """And nothing of a healthy store; nor what cannot be judged, as its day was dropped."""
    rows = StoreRows(seed=33).healthy(200)
    orders = rows.address("planted")
    at = NOW - timedelta(hours=1)
    nowhere = id_at(at) + 5
    rows.op("accept", at, covers=[(nowhere, orders)])
    rows.op("accept", at, covers=[(id_at(NOW - timedelta(days=20)), orders)])
    undone = rows.uuid_v7(at)
    rows.decide(undone, "rollback", at, 1)
    rows.op("accept", at, covers=[(rows.half(orders, at, undone), orders)])
    _, (early,) = rows.committed([orders], at)
    rows.op("accept", at - timedelta(minutes=3), covers=[(early, orders)])
    unknown = rows.uuid_v7(at)
    rows.half(orders, at, unknown)
    late = rows.uuid_v7(at)
    rows.half(orders, at, late)
    rows.undecided(late, at, next_check_at=at + timedelta(minutes=1))
    waits = rows.uuid_v7(at)
    rows.half(orders, at, waits)
    rows.undecided(waits, at, checks=1, next_check_at=NOW + timedelta(hours=1))
    forgotten = rows.uuid_v7(at)
    of_forgotten = rows.half(orders, at, forgotten)
    rows.undecided(forgotten, at)
    # a plain one, which its instance rolls back
    rows.undecided(rows.uuid_v7(at), at, producer_group=None)
    # declared on a day that was dropped, and its decision with it
    declared = rows.uuid_v7(NOW - timedelta(days=12))
    rows.op("accept", at, covers=[(rows.half(orders, NOW - timedelta(days=9), declared), orders)])
    rows.write(database_url)
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "insert into coordinator.retention (table_name, kept_from)"
            " values ('half', current_date - 10), ('op', current_date - 30)"
        )
        in_row = "update coordinator.txn set half_ids = array[%s::int8], address_id = %s where id = %s"
        connection.execute(in_row, [of_forgotten, orders, forgotten])
    told = Told(lambda told: told.counts() == in_store(database_url) and len(told.looks) > 1)
    _run(spark, database_url, tmp_path, told)
    assert _found(told) == sorted(
        [
            ("orphan-op", "error", str(nowhere), None),
            ("phantom-delivery", "error", undone, "planted"),
            ("order", "warning", _txn_of(rows, early), "planted"),
            ("overdue", "error", unknown, "planted"),
            ("overdue", "warning", late, None),
            ("overdue", "warning", forgotten, "planted"),
        ]
    )


def _txn_of(rows: StoreRows, half_id: int) -> str:
    (found,) = (row["txn_id"] for row in rows.rows["half"] if row["id"] == half_id)
    return str(found)


@pytest.mark.night
def test_a_database_that_goes_away_is_waited_for(written: str, tmp_path: Path) -> None:
    """And the watch goes on, from where it was."""
    proxy = Proxy(written)
    with Watching(proxy.url, tmp_path, "--every", "1") as watching:
        watching.wait_for(lambda: watching.told("; 0 rows and 0.0 s behind"))
        with proxy.held("connections"):
            proxy.cut()
            watching.wait_for(lambda: watching.told("waiting: database at "))
        with Writer(written, 3, POST_AND_RETIRE) as writer:
            wait_for(10, writer)
        watching.wait_for(lambda: watching.told("the database is back"))
        watching.wait_for(lambda: counted(written) == in_store(written))
        assert watching.end(signal.SIGTERM)[0] == 143
        assert watching.unexpected() == []
        assert watching.lines[-1] == "error: interrupted by SIGTERM"
        assert watching.others() == []
