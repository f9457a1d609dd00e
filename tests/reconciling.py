"""A run of the reconciliation in the tests' own Spark, and what it tells."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

import psycopg

from spark.output import output
from spark.period import Period
from spark.reconcile import reconcile, report
from spark.snapshot import At
from store.ids import HalfIds, UuidV7
from store.tables import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark.books.description import Description
    from spark.report import Run


class Told:
    """What a run told of itself."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.counts: list[int] = []
        self.warnings: list[str] = []

    def stage(self, name: str) -> None:
        self.stages.append(name)

    def rows(self, count: int) -> None:
        self.counts.append(count)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def run(
    spark: SparkSession,
    url: str,
    out: Path,
    period: Period | None = None,
    books: Sequence[Description] = (),
    told: Told | None = None,
    *,
    inbox: bool = False,
    archive: Path | None = None,
    others: Sequence[str] = (),
) -> Run:
    """``others``: the URLs of other stores, to be told of in the same report."""
    told = told or Told()
    with output(out):
        found = reconcile(
            spark,
            stores=[At(url=each, place=f"store {n}" if others else "") for n, each in enumerate((url, *others))],
            period=period or Period(),
            books=books,
            inbox=inbox,
            archive=archive,
            out=out,
            steps=told,
            version="1.2.3",
        )
        report(found, out, "warning", told)
    return found


def post_and_retire(queue: int = 1, *, lease: int = 1, seconds: float = 0.0) -> str:
    """What a :class:`Writer` executes: three messages posted in a transaction to the address and group ``queue``,
    others retired by it; ``lease``: the instance that leases the new ones, 0 for none. It takes ``seconds`` at least.
    """
    return f"""
with posted as (
  insert into {SCHEMA}.half (id, txn_id, address_id, message)
  select %(half)s + i, %(txn)s, {queue}, '\\x005375a0027b7d' from generate_series(1, 3) i),
 decided as (
  insert into {SCHEMA}.op (id, decision, txn_id, posted, half_ids, group_ids, instance_id)
  select %(txn)s, 'commit', %(txn)s, 3, array_agg(taken.half_id), array_agg({queue}), 1 from (
    select half_id from {SCHEMA}.entry where group_id = {queue} order by id limit %(take)s for update skip locked) taken
  returning half_ids),
 gone as (
  delete from {SCHEMA}.entry e using decided d where e.group_id = {queue} and e.id = any(d.half_ids))
insert into {SCHEMA}.entry (group_id, id, half_id, lease)
  select {queue}, %(half)s + i, %(half)s + i, {lease} from generate_series(1, 3) i cross join pg_sleep({seconds})
"""


class Writer:
    """Executes ``statement`` in an SQL transaction each, as fast as it can, in a thread of its own: it posts three
    messages, with the ids after ``half``, in the transaction ``txn``, and retires ``take`` others.
    """

    def __init__(self, url: str, slot: int, statement: str) -> None:
        self._url = url
        self._slot = slot
        self._statement = statement
        self._stop = threading.Event()
        self.written = 0
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        ids, uuids = HalfIds(self._slot), UuidV7()
        try:
            with psycopg.connect(self._url, autocommit=True) as connection:
                while not self._stop.is_set():
                    ids.advance()
                    first = ids.next()
                    for _ in range(8):
                        ids.next()
                    connection.execute(
                        self._statement.encode(),
                        {"half": first, "txn": uuid.UUID(bytes=uuids.next()), "take": self.written % 5 + 1},
                    )
                    self.written += 1
        except Exception as error:  # noqa: BLE001 - raised again where the writer is left
            self.error = error


def wait_for(count: int, *writers: Writer) -> int:
    """Wait until each has written so often; how often all have."""
    while min(each.written for each in writers) < count:
        threading.Event().wait(0.05)
        assert [each.error for each in writers] == [None] * len(writers)
    return sum(each.written for each in writers)
