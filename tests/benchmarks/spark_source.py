"""``python -m tests.benchmarks.spark_source``: the data source ``halfop`` beside Spark's own JDBC reader (R2).

Both scan the whole of ``half``, messages included, in one session with the same ranges of the key, in turns;
the middle of the rounds counts. PostgreSQL's JDBC driver is fetched by Maven, for this and nothing else.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from sqlalchemy import create_engine

from spark.reading import credentials_file
from spark.session import open_session
from spark.snapshot import exported_snapshot
from spark.source import HalfOpReader, HalfOpSource, ReadOptions
from store.database import connected
from store.ids import id_at
from store.partitions import make_days
from store.tables import SCHEMA, metadata
from tests.fix_store_rows import NOW

DRIVER = "org.postgresql:postgresql:42.7.7"
#: As the spikes had it; the headers and properties of a message come on top.
BODY_BYTES = 256


def driver_jar(folder: Path) -> Path:
    """PostgreSQL's JDBC driver, by Maven."""
    subprocess.run(
        ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={DRIVER}", f"-DoutputDirectory={folder}"], check=True
    )
    return next(folder.glob("postgresql-*.jar"))


def fill(url: str, rows: int) -> None:
    """A store with ``rows`` halves, made by PostgreSQL itself."""
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"drop schema if exists {SCHEMA} cascade".encode())
        connection.execute(f"create schema {SCHEMA}".encode())
        metadata.create_all(engine)
        with connected(url) as made:
            make_days(made, [NOW.date()])
        connection.execute(
            f"insert into {SCHEMA}.half (id, txn_id, address_id, message)"
            f" select {id_at(NOW)} + i::bigint * 4096, gen_random_uuid(), 1 + i % 4,"
            f" decode('005375b0', 'hex') || int4send({BODY_BYTES})"
            f" || convert_to(repeat(md5(i::text), {BODY_BYTES // 32}), 'UTF8')"
            f" from generate_series(1, {rows}) i".encode()
        )
        connection.execute(f"vacuum analyze {SCHEMA}.half".encode())


def scan(frame: DataFrame) -> int:
    """Read every column of every row; nothing can be left out of a plan that adds all up."""
    return int(
        frame.agg(
            f.count("*")
            + f.sum(f.length("message")) * 0
            + f.count("txn_id") * 0
            + f.count("posted_at") * 0
            + f.sum(f.col("address_id") + f.col("id") % 2) * 0
        ).collect()[0][0]
    )


def halfop(spark: SparkSession, credentials: Path, snapshot: str, partitions: int, columns: str) -> DataFrame:
    options = {"table": "half", "credentials": str(credentials), "partitions": str(partitions), "snapshot": snapshot}
    return spark.read.format("halfop").options(columns=columns, **options).load()


def jdbc(spark: SparkSession, url: str, credentials: Path, partitions: int, columns: str) -> DataFrame:
    """Spark's reader over the same ranges, told its columns likewise."""
    given = {"table": "half", "credentials": str(credentials), "partitions": str(partitions), "columns": columns}
    ranges = HalfOpReader(ReadOptions.parse(given)).partitions()
    predicates = [
        " and ".join(
            [*([f"id >= {part.low[0]}"] if part.low else []), *([f"id < {part.high[0]}"] if part.high else [])]
        )
        or "true"
        for part in ranges
    ]
    names = columns.replace("txn_id", "txn_id::text as txn_id")
    parts = psycopg.conninfo.conninfo_to_dict(url)
    return spark.read.jdbc(
        f"jdbc:postgresql://{parts['host']}:{parts.get('port', 5432)}/{parts['dbname']}",
        f"(select {names} from {SCHEMA}.half) as half",
        predicates=predicates,
        properties={
            "driver": "org.postgresql.Driver",
            "user": str(parts["user"]),
            "password": str(parts.get("password", "")),
            "fetchsize": "10000",
        },
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database-url", required=True, help="an empty database on TCP; its store is made anew")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=8)
    asked = parser.parse_args(arguments)
    columns = "id,txn_id,address_id,posted_at,message"
    fill(asked.database_url, asked.rows)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="coordinator-jdbc-"))
        stack.callback(shutil.rmtree, folder)
        spark = open_session("local[2]", memory="2g", settings={"spark.jars": str(driver_jar(folder))})
        stack.callback(spark.stop)
        spark.dataSource.register(HalfOpSource)
        credentials = stack.enter_context(credentials_file(asked.database_url))
        snapshot = stack.enter_context(exported_snapshot(asked.database_url))
        readers: dict[str, Callable[[], DataFrame]] = {
            "halfop": lambda: halfop(spark, credentials, snapshot.name, asked.partitions, columns),
            "jdbc": lambda: jdbc(spark, asked.database_url, credentials, asked.partitions, columns),
        }
        seconds: dict[str, list[float]] = {name: [] for name in readers}
        # the first round warms up: code, workers, PostgreSQL's buffers
        for turn in range(asked.rounds + 1):
            for name, reader in readers.items():
                began = time.perf_counter()
                count = scan(reader())
                assert count == asked.rows, (name, count)
                if turn:
                    seconds[name].append(time.perf_counter() - began)
    rates = {name: asked.rows / statistics.median(taken) for name, taken in seconds.items()}
    print(
        json.dumps(
            {
                "rows": asked.rows,
                "partitions": asked.partitions,
                "seconds": {name: [round(value, 2) for value in taken] for name, taken in seconds.items()},
                "rows_per_second": {name: round(rate) for name, rate in rates.items()},
                "ratio": round(rates["halfop"] / rates["jdbc"], 2),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
