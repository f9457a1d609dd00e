"""The numbers behind the report's plots: small aggregates, computed by Spark and brought to the driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark.ledger import BALANCE, half_moment

#: A plot over time has at most this many points.
MOST_BUCKETS: Final = 120
_WIDTHS: Final = tuple(
    timedelta(seconds=seconds)
    for seconds in (1, 5, 15, 60, 300, 900, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400)
)
#: Upper edges of the ages of undecided transactions, with what they are called.
AGES: Final = (
    (1, "up to 1 s"),
    (10, "to 10 s"),
    (60, "to 1 min"),
    (600, "to 10 min"),
    (3600, "to 1 h"),
    (86400, "to 1 day"),
)
OLDEST_AGE: Final = "over 1 day"
#: Dead letters shown, the most frequent first.
MOST_ERRORS: Final = 15
MOST_ATTEMPTS: Final = 17


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """Halves of one address in one bucket of time, by what became of them."""

    at: datetime
    address: str | None
    committed: int
    rolled_back: int
    undecided: int


@dataclass(frozen=True, kw_only=True)
class Latency:
    """From declare to decision, in seconds, of the transactions decided in one bucket."""

    at: datetime
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, kw_only=True)
class AddressBalance:
    """R19's sums of one address over the whole period."""

    address: str | None
    counts: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """All numbers of a report."""

    bucket: timedelta
    outcomes: list[Outcomes]
    #: halves that plain transactions posted and rolled back: they were never stored, so no address is known
    unstored: list[tuple[datetime, int]]
    latencies: list[Latency]
    undecided_by_age: list[tuple[str, int]]
    #: attempt -> (accepted, dead-lettered, waiting)
    attempts: list[tuple[int, int, int, int]]
    #: address, group, error, count
    dead_letters: list[tuple[str | None, str | None, str, int]]
    balances: list[AddressBalance]
    totals: dict[str, int] = field(default_factory=dict)


def bucket_width(extent: timedelta) -> timedelta:
    """The finest width that draws ``extent`` in at most ``MOST_BUCKETS`` points."""
    for width in _WIDTHS:
        if extent <= width * MOST_BUCKETS:
            return width
    return _WIDTHS[-1]


def measure(
    *,
    stated: DataFrame,
    transactions: DataFrame,
    pairs: DataFrame,
    deliveries: DataFrame,
    balance: DataFrame,
    seen_at: datetime,
) -> Metrics:
    """Everything the report plots. ``stated`` has ``address``, ``pairs`` and ``deliveries`` have ``address`` and
    ``consumer_group``."""
    judged = stated.where("judged").withColumn("at", half_moment(f.col("half_id")))
    width = bucket_width(_extent(judged, transactions))
    unstored = _unstored(transactions, width)
    balances = _balances(balance)
    return Metrics(
        bucket=width,
        outcomes=_outcomes(judged, width),
        unstored=unstored,
        latencies=_latencies(transactions, width),
        undecided_by_age=_undecided_by_age(transactions, seen_at),
        attempts=_attempts(pairs),
        dead_letters=_dead_letters(deliveries),
        balances=balances,
        totals={
            **_totals(transactions),
            "rolled_back_unstored": sum(count for _, count in unstored),
            **{name: sum(int(of_address.counts[name]) for of_address in balances) for name in BALANCE},
        },
    )


def _extent(judged: DataFrame, transactions: DataFrame) -> timedelta:
    """From the first moment that is plotted to the last."""
    spans = judged.agg(_micros("min", "at"), _micros("max", "at")).unionByName(
        transactions.agg(_micros("min", "declared_at").alias("min_at"), _micros("max", "decided_at").alias("max_at"))
    )
    edges = [value for row in spans.collect() for value in (row[0], row[1]) if value is not None]
    return timedelta(microseconds=max(edges) - min(edges)) if edges else timedelta(0)


def _bucket(column: str, width: timedelta) -> Column:
    seconds = int(width.total_seconds())
    return (f.floor(f.unix_seconds(column) / seconds) * seconds).cast("long").alias("bucket")


def _outcomes(judged: DataFrame, width: timedelta) -> list[Outcomes]:
    rows = (
        judged.groupBy(_bucket("at", width), "address")
        .agg(
            f.count_if(f.col("state") == "committed"),
            f.count_if(f.col("state") == "rolled-back"),
            f.count_if(f.col("state").isin("undecided", "unknown")),
        )
        .orderBy("bucket", "address")
        .collect()
    )
    return [
        Outcomes(at=_at(row[0]), address=row[1], committed=row[2], rolled_back=row[3], undecided=row[4]) for row in rows
    ]


def _latencies(transactions: DataFrame, width: timedelta) -> list[Latency]:
    waited = f.greatest(f.lit(0.0), (f.unix_micros("decided_at") - f.unix_micros("declared_at")) / 1_000_000)
    rows = (
        transactions.where(f.col("decided_at").isNotNull())
        .groupBy(_bucket("decided_at", width))
        .agg(f.percentile_approx(waited, [0.5, 0.95, 0.99], 10_000))
        .orderBy("bucket")
        .collect()
    )
    return [Latency(at=_at(row[0]), p50=row[1][0], p95=row[1][1], p99=row[1][2]) for row in rows]


def _unstored(transactions: DataFrame, width: timedelta) -> list[tuple[datetime, int]]:
    rows = (
        transactions.where(f.col("decided_at").isNotNull())
        .where((f.col("rollbacks") > 0) & (f.col("posted") > f.col("halves")))
        .groupBy(_bucket("decided_at", width))
        .agg(f.sum(f.col("posted") - f.col("halves")))
        .orderBy("bucket")
        .collect()
    )
    return [(_at(row[0]), int(row[1])) for row in rows]


def _totals(transactions: DataFrame) -> dict[str, int]:
    row = transactions.agg(
        f.count("*").alias("transactions"),
        f.count_if(f.col("commits") > 0).alias("transactions_committed"),
        f.count_if((f.col("rollbacks") > 0) & (f.col("commits") == 0)).alias("transactions_rolled_back"),
        f.count_if((f.col("rollbacks") == 0) & (f.col("commits") == 0)).alias("transactions_undecided"),
    ).collect()[0]
    return {name: int(count) for name, count in row.asDict().items()}


def _balances(balance: DataFrame) -> list[AddressBalance]:
    rows = balance.groupBy("address").agg(*(f.sum(name).alias(name) for name in BALANCE)).orderBy("address").collect()
    return [AddressBalance(address=row[0], counts={name: row[name] for name in BALANCE}) for row in rows]


def _dead_letters(deliveries: DataFrame) -> list[tuple[str | None, str | None, str, int]]:
    rows = (
        deliveries.where(f.col("decision") == "dead-letter")
        .groupBy("address", "consumer_group", f.coalesce("reason", f.lit("no reason given")).alias("error"))
        .count()
        .orderBy(f.desc("count"), "address", "consumer_group", "error")
        .limit(MOST_ERRORS)
        .collect()
    )
    return [(row[0], row[1], row[2], row[3]) for row in rows]


def _micros(which: str, column: str) -> Column:
    return f.unix_micros(getattr(f, which)(column)).alias(f"{which}_at")


def _at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _undecided_by_age(transactions: DataFrame, seen_at: datetime) -> list[tuple[str, int]]:
    age = f.lit(seen_at.timestamp()) - f.unix_micros("declared_at") / 1_000_000
    group = f.lit(len(AGES))
    for place in range(len(AGES) - 1, -1, -1):
        group = f.when(age <= AGES[place][0], place).otherwise(group)
    undecided = transactions.where((f.col("commits") == 0) & (f.col("rollbacks") == 0))
    counted = {row[0]: row[1] for row in undecided.groupBy(group.alias("age")).count().collect()}
    names = [name for _, name in AGES] + [OLDEST_AGE]
    return [(name, int(counted.get(place, 0))) for place, name in enumerate(names)]


def _attempts(pairs: DataFrame) -> list[tuple[int, int, int, int]]:
    ended = f.least(f.col("failed_attempts") + 1, f.lit(MOST_ATTEMPTS))
    dead = f.least(f.greatest("failed_attempts", f.lit(1)), f.lit(MOST_ATTEMPTS))
    waiting = f.least(f.coalesce("attempts", f.lit(0)) + 1, f.lit(MOST_ATTEMPTS))
    attempt = (
        f.when(f.col("accepted") > 0, ended).when(f.col("dead_lettered") > 0, dead).when(f.col("entries") > 0, waiting)
    )
    rows = (
        pairs.where("judged")
        .groupBy(attempt.alias("attempt"))
        .agg(
            f.count_if(f.col("accepted") > 0),
            f.count_if((f.col("accepted") == 0) & (f.col("dead_lettered") > 0)),
            f.count_if((f.col("accepted") == 0) & (f.col("dead_lettered") == 0) & (f.col("entries") > 0)),
        )
        .where("attempt is not null")
        .orderBy("attempt")
        .collect()
    )
    return [(row[0], row[1], row[2], row[3]) for row in rows]
