"""What belongs to a period: every transaction and plain post to exactly one of neighbours."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.ledger import half_moment, txn_millis, words_of
from spark.period import BEGINNING, END, Period, uuid_at
from store.ids import id_at, moment_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOMENTS = st.datetimes(
    min_value=datetime(2024, 1, 2),  # noqa: DTZ001 - hypothesis adds the zone
    max_value=datetime(2060, 1, 1),  # noqa: DTZ001
    timezones=st.just(UTC),
)


@given(MOMENTS, st.integers(0, 2**74 - 1))
def test_a_uuid_is_of_the_period_in_which_it_was_made(moment: datetime, rest: int) -> None:
    milliseconds = int(moment.timestamp() * 1000)
    made = str(uuid.UUID(int=milliseconds << 80 | (7 << 76 | rest & ((1 << 76) - 1)) & ((1 << 80) - 1)))
    begin = datetime.fromtimestamp(milliseconds / 1000, UTC)
    assert uuid_at(begin) <= made < uuid_at(begin + timedelta(milliseconds=2))


def test_a_period_needs_zones_and_an_order() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(ValueError, match="since has no time zone"):
        Period(since=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="must be before until"):
        Period(since=moment, until=moment)
    with pytest.raises(ValueError, match=r"until is 1900-01-02.*a store has times from 2024-01-01 to"):
        Period(since=datetime(1900, 1, 1, tzinfo=UTC), until=datetime(1900, 1, 2, tzinfo=UTC))
    with pytest.raises(ValueError, match="since is 2999"):
        Period(since=datetime(2999, 1, 1, tzinfo=UTC), until=datetime(2999, 1, 2, tzinfo=UTC))
    with pytest.raises(ValueError, match="reach"):
        Period(reach=timedelta(seconds=-1))


def test_the_whole_of_time_fits_into_an_id() -> None:
    assert id_at(BEGINNING) == 0
    assert 0 < id_at(END) < 2**63
    assert Period(since=datetime(1999, 1, 1, tzinfo=UTC), until=datetime(2999, 1, 1, tzinfo=UTC)) == Period()


def test_spark_reads_the_time_of_ids_as_the_store_does(spark: SparkSession) -> None:
    moment = datetime(2026, 3, 4, 5, 6, 7, 891_000, tzinfo=UTC)
    high, _ = words_of(uuid_at(moment))
    frame = spark.createDataFrame([(id_at(moment) + 4097, high)], "half bigint, high bigint")
    row = frame.select(
        half_moment(frame.half).cast("double").alias("half"), txn_millis(frame.high).alias("txn")
    ).collect()[0]
    assert row["half"] == pytest.approx(moment_of(id_at(moment)).timestamp(), abs=1e-6)
    assert row["txn"] == round(moment.timestamp() * 1000)
