"""Send our packages to a cluster, and check its executors before and during the work.

Tasks import this module for the check: at its top it imports nothing that a cluster's Python may lack.
"""

from __future__ import annotations

import hashlib
import platform
import socket
import threading
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pyspark
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

#: The packages that are sent; their dependencies must be installed there.
PACKAGES: Final = ("coordinator", "spark", "store")
#: How long the first executor may take to register.
_EXECUTOR_SECONDS: Final = 90.0
_LOOK_SECONDS: Final = 0.2
#: How long work waits for an executor after all were lost.
_REPLACED_SECONDS: Final = 90.0
_GUARD_SECONDS: Final = 1.0


class ClusterUnusable(Exception):
    """The executors cannot work for this run; the text has the reason."""


class Place(NamedTuple):
    """An executor. ``package``: the path of its copy of this module; ``wrong``: why it cannot work, or None."""

    host: str
    python: str
    pyspark: str
    package: str
    wrong: str | None


def send_package(spark: SparkSession, folder: Path) -> str:
    """Send our packages to all executors as a file in ``folder``, which must exist as long as the session. Return the
    file's name, which contains a digest of them."""
    root = Path(__file__).resolve().parent.parent
    files = sorted(path for name in PACKAGES for path in (root / name).rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
    packed = folder / f"coordinator-{digest}.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            archive.write(path, path.relative_to(root))
    spark.sparkContext.addPyFile(str(packed))
    return packed.name


def check_executors(spark: SparkSession, sent: str, credentials: Path | None) -> None:
    """Check that an executor registers, that all run the packages ``sent``, and that they reach the database.

    :raises ClusterUnusable: the text names the executor and the reason.
    """
    _wait_for_executor(spark)
    context = spark.sparkContext
    tasks = max(2, context.defaultParallelism)
    environment = partial(_environment, None if credentials is None else str(credentials))
    places = sorted(set(context.parallelize(range(tasks), tasks).mapPartitions(environment).collect()), key=repr)
    said = disagreement(platform.python_version(), pyspark.__version__, sent, places)
    if said is not None:
        raise ClusterUnusable(said)


def disagreement(python: str, pyspark_version: str, sent: str, places: Sequence[Place]) -> str | None:
    """Return why an executor cannot work for a driver of these versions; None: all can."""
    for place in places:
        there = f"the executor on {place.host}"
        if place.python.split(".")[:2] != python.split(".")[:2]:
            return f"{there} runs Python {place.python}, and this is {python}: set PYSPARK_PYTHON to one of {python}"
        if place.pyspark != pyspark_version:
            return f"{there} has PySpark {place.pyspark}, and this is {pyspark_version}: they must be the same"
        if sent not in place.package:
            return f"{there} imports another copy of this package, {place.package}: take it out of its PYTHONPATH"
        if place.wrong is not None:
            return f"{there} cannot read the store: {place.wrong}"
    return None


def _environment(credentials: str | None, _: Iterable[int]) -> Iterator[Place]:
    """Describe the executor, in a task."""
    yield Place(
        host=socket.gethostname(),
        python=platform.python_version(),
        pyspark=pyspark.__version__,
        package=__file__,
        wrong=_wrong(credentials),
    )


def _wrong(credentials: str | None) -> str | None:
    try:
        import spark.messages  # noqa: F401 - its dependencies are checked, too
        from spark.source import HalfOpReader, ReadOptions

        options = {"table": "address", "columns": "id"}
        if credentials is not None:
            options["credentials"] = credentials
        HalfOpReader(ReadOptions.parse(options)).partitions()
    except ModuleNotFoundError as error:
        return f"its Python has no module {error.name}"
    except Exception as error:  # noqa: BLE001 - the driver tells of it
        return " ".join(str(error).split())
    return None


def _wait_for_executor(spark: SparkSession) -> None:
    """Wait a limited time: a session begins without executors, and Spark itself would wait for ever."""
    context = spark.sparkContext
    limit = time.monotonic() + _EXECUTOR_SECONDS
    while not _has_executors(spark):
        if time.monotonic() > limit:
            raise ClusterUnusable(
                f"no executor of {context.master} came within {_EXECUTOR_SECONDS:g} s: see that it has workers, and"
                " that these have the cores and the memory that spark.executor.cores and spark.executor.memory ask for"
            )
        time.sleep(_LOOK_SECONDS)


def _has_executors(spark: SparkSession) -> bool:
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) > 1  # the driver is the first


@contextmanager
def guarded(spark: SparkSession) -> Iterator[None]:
    """Stop the work of the block when all executors are lost and none replaces them, as after the master died: Spark
    itself would wait for ever.

    :raises ClusterUnusable: they were lost.
    """
    master = str(spark.sparkContext.master)
    if master.startswith("local"):
        yield
        return
    stopped, lost = threading.Event(), threading.Event()
    guard = threading.Thread(target=_guard, args=(spark, stopped, lost), name="executors", daemon=True)
    guard.start()
    try:
        yield
    except Exception:
        if not lost.is_set():
            raise
        raise ClusterUnusable(
            f"all executors of {master} were lost, and none came within {_REPLACED_SECONDS:g} s:"
            " see that its master lives, and has workers"
        ) from None
    finally:
        stopped.set()
        guard.join()


def _guard(spark: SparkSession, stopped: threading.Event, lost: threading.Event) -> None:
    context = spark.sparkContext
    jobs = context.statusTracker()
    since: float | None = None
    try:
        while not stopped.wait(_GUARD_SECONDS):
            if _has_executors(spark):
                since = None
            elif since is not None and time.monotonic() > since + _REPLACED_SECONDS:
                lost.set()
                context._jsc.sc().stop()  # its jobs fail, and none begins
                return
            elif since is None and jobs.getActiveJobsIds():  # executors that have nothing to do may go
                since = time.monotonic()
    except Py4JError:
        return  # Java has ended; the run itself says so
