"""One Spark for the whole test session, started by the first test that uses it; and a readable comparison of frames."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: For each Java with a Spark, here and in commands: it lives for seconds, and the second compiler and a parallel
#: collector, half of its time, are never earned back.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA_OPTIONS)
    if hasattr(config, "workerinput"):
        return  # the folder is that of the process that has started this one
    # What others have in the user's cache folder stays where it is; what the tests put into it goes with them.
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    config.add_cleanup(
        (folder := TemporaryDirectory(prefix="coordinator-test-cache-", ignore_cleanup_errors=True)).cleanup
    )
    for cache in caches.iterdir() if caches.is_dir() else ():
        Path(folder.name, cache.name).symlink_to(cache.absolute())
    kept = Path(folder.name, "coordinator")
    kept.unlink(missing_ok=True)
    # No Java of the tests keeps an archive of its classes: a file is no folder.
    kept.touch()
    os.environ["XDG_CACHE_HOME"] = folder.name


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that use the session come first: of several processes one begins with them, and what another takes over of
    it comes from the end. So there is one Java for all of them, and its compiler has seen what they do.
    """
    items.sort(key=lambda item: "spark" not in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A JVM takes seconds to start, so all tests share it; frames are small, so it is small too."""
    from spark.session import open_session
    from spark.source import HalfOpSource

    session = open_session(
        "local[2]",
        memory="1g",
        settings={
            # 64 tasks for 100 rows would take most of the time
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            # a test runs a plan once: to compile it, or to plan it again on its way, costs more than it gains
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.autoBroadcastJoinThreshold": "10485760",
        },
    )
    session.dataSource.register(HalfOpSource)
    yield session
    session.stop()


@pytest.fixture
def handlers() -> Iterator[None]:
    """A command that ends in this process leaves its handlers of signals."""
    from spark.java import SIGNALS

    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def assert_same_rows(actual: DataFrame, expected: DataFrame) -> None:
    """Compare schemas, then rows in any order; shows the difference row by row."""
    assert actual.schema.simpleString() == expected.schema.simpleString()
    found, wanted = Counter(map(tuple, actual.collect())), Counter(map(tuple, expected.collect()))
    missing, surplus = wanted - found, found - wanted
    lines = [f"missing: {row}" for row in missing.elements()] + [f"surplus: {row}" for row in surplus.elements()]
    assert not lines, "\n".join(lines[:50])
