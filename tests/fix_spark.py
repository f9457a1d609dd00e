"""One Spark for the whole test session, started by the first test that uses it; and a readable comparison of frames."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: For each Java with a Spark, here and in commands: it lives for seconds, and the second compiler and a parallel
#: collector, half of its time, are never earned back.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def pytest_configure() -> None:
    os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA_OPTIONS)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A JVM takes seconds to start, so all tests share it; frames are small, so it is small too."""
    from spark.session import open_session

    session = open_session(
        "local[2]",
        memory="1g",
        settings={
            # 64 tasks for 100 rows would take most of the time
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            # a test runs a plan once: compiling it costs more than it gains
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.autoBroadcastJoinThreshold": "10485760",
        },
    )
    yield session
    session.stop()


def assert_same_rows(actual: DataFrame, expected: DataFrame) -> None:
    """Compare schemas, then rows in any order; shows the difference row by row."""
    assert actual.schema.simpleString() == expected.schema.simpleString()
    found, wanted = Counter(map(tuple, actual.collect())), Counter(map(tuple, expected.collect()))
    missing, surplus = wanted - found, found - wanted
    lines = [f"missing: {row}" for row in missing.elements()] + [f"surplus: {row}" for row in surplus.elements()]
    assert not lines, "\n".join(lines[:50])
