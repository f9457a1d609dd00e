"""The Spark session of a reconciliation, on the Java of :mod:`spark.java`."""

from __future__ import annotations

import logging
import os
import pwd
import re
import signal
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.serializers import UTF8Deserializer, read_int
from pyspark.sql import SparkSession

from spark.cluster import check_executors, send_package
from spark.java import Java, Running, started
from spark.master import MasterUnusable

_DYING_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 0.02
#: The most characters of Java's last words, and of Spark's error, in a message.
_MOST_SAID: Final = 1_000
#: Spark logs this when Java is full; the error itself is raised by whatever used the context then.
_GIVEN_UP: Final = b"All masters are unresponsive! Giving up."
#: The reason if Java ended without a message.
_KILLED: Final = (
    "it was killed (SIGKILL), as the system does where the memory of the machine, or of the container, is used up: give"
    " that more, or Spark less (--memory)"
)
#: A line of a stack, or one that announces it.
_STACK: Final = re.compile(
    r"\s+at |Driver stacktrace:|JVM stacktrace:|\s*\.\.\. \d+ more|An error occurred while calling "
)


class SparkFailed(Exception):
    """Spark, or its Java, cannot start or continue; the text is one line."""


def open_session(
    master: str = "local[*]", *, memory: str = "2g", brief: bool = False, settings: dict[str, str] | None = None
) -> SparkSession:
    """Return a session; 3 to 5 s the first time, and there is no other in a process.

    ``memory`` is the heap of the driver, which in local mode is all of Spark's; ``brief``: it will work for so short
    (:data:`spark.snapshot.BRIEF_BYTES`) that Java's second compiler and parallel collector do not pay; ``settings``
    win over those chosen here.

    :raises spark.java.JavaMissing: there is no Java.
    """
    with started(master, memory=memory, brief=brief, settings=settings) as java:
        return _session(java)


def _session(java: Java) -> SparkSession:
    _quiet()
    with warnings.catch_warnings():
        # PySpark warns of changes in its next releases, which users cannot act on
        warnings.simplefilter("ignore", category=FutureWarning)
        warnings.simplefilter("ignore", category=DeprecationWarning)
        SparkContext._ensure_initialized(gateway=_gateway(java))
        _log_in()
        builder = SparkSession.builder
        for name, value in java.settings.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()


def _log_in() -> None:
    """Name the user for Hadoop, which reads all files and refuses a user id without a name."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        users = SparkContext._jvm.org.apache.hadoop.security.UserGroupInformation  # type: ignore[union-attr]
        users.setLoginUser(users.createRemoteUser(str(os.getuid())))


def _gateway(java: Java) -> JavaGateway:
    """Connect to Java, once it listens."""
    while not java.place.exists():
        if java.process.poll() is not None:
            raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
        time.sleep(_AGAIN_SECONDS)
    with java.place.open("rb") as written:
        port = read_int(written)  # type: ignore[no-untyped-call]
        secret = UTF8Deserializer().loads(written)  # type: ignore[no-untyped-call]
    given = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(given)
    try:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        for name in given:
            del os.environ[name]
    gateway.proc = java.process
    return gateway


@contextmanager
def running_session(running: Running, credentials: Path | None = None) -> Iterator[SparkSession]:
    """Yield the session on this Java, which begins to end after the block if all went well. On a cluster the tasks run
    this package, which is sent there; ``credentials``: see :func:`spark.master.check_master`.

    :raises MasterUnusable: what listens there takes no application.
    :raises spark.cluster.ClusterUnusable: its executors cannot work for us.
    :raises SparkFailed: Spark, or its Java, cannot start or go on.
    """
    try:
        session = _session(running.java)
        running.starting.close()
        # PySpark has set a handler of its own
        running.stopping.install()
        # it prints a stack when Java ends
        session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
        if not running.master.startswith("local"):
            check_executors(session, send_package(session, running.folder), credentials)
        yield session
        running.went_well = True
        # not PySpark's own, which waits half a second for a server that ends with this process
        session.sparkContext._jsc.stop()
        running.java.process.terminate()
    except Exception as error:
        if running.stopping.stopped:
            # the calls that waited for Java fail
            raise KeyboardInterrupt from None
        if isinstance(error, PySparkException | Py4JError | ConnectionError):
            running.told.seek(0)
            if _GIVEN_UP in running.told.read():
                raise MasterUnusable(
                    f"{running.master} takes connections, and has not taken this application within the minute that"
                    " Spark tries: see that it is a master, of this version of Spark and with the same"
                    " spark.authenticate"
                ) from None
            raise SparkFailed(_failure(error, running)) from None
        raise


def _failure(error: Exception, running: Running) -> str:
    """Return the reason of an error without Java's stacks; if Java has ended, its last words."""
    process, gateway = running.java.process, SparkContext._gateway
    if gateway is not None and not isinstance(error, PySparkException | Py4JJavaError):
        # Java has ended, or is about to
        with suppress(subprocess.TimeoutExpired):
            process.wait(_DYING_SECONDS)
    if gateway is None or process.poll() is not None:
        running.told.seek(0)
        said = " ".join(running.told.read().decode("utf-8", "replace").split())
        when = "while it started" if gateway is None else f"in the middle, with status {process.returncode}"
        nothing = _KILLED if process.returncode == -signal.SIGKILL else "it said nothing"
        return f"Java ended {when}: {said[:_MOST_SAID] or nothing}"
    try:
        lines = str(error).splitlines()
    except Py4JError:
        return "Java does not answer"
    said = " ".join(line.removeprefix(": ").strip() for line in lines if not _STACK.match(line))
    return said[:_MOST_SAID]


def _quiet() -> None:
    """Silence PySpark's logs of exceptions that it raises, too: a JSON line each, and a stack at a Ctrl-C."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # Py4J logs an interrupted call by the root logger
    logging.getLogger().addFilter(_is_not_py4j)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"
