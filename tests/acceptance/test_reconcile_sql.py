"""What applications do in SQL transactions of their own is nothing that reconciliation finds fault with (X2, X3)."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from store.embedded.running import ROLE, running_url
from tests.fix_application import Application, post
from tests.fix_command import PATIENCE_SECONDS, environment
from tests.fix_proxy import Proxy
from tests.fix_service import Service
from tests.fix_wire import Begin
from tests.reconciling import run
from tests.wire.checkable import accept, in_group
from tests.wire.frames import Accepted
from tests.wire.peer import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.rule("X2", "X3", "R13")


def _discharge(session: Session, address: str, application: Application, *, fail: bool) -> None:
    """A checkable transaction with one message, which the next commit of the application decides."""
    txn = in_group(session).declare()
    accept(session.sender(address), b"decided in SQL", txn)
    application.execute("select coordinator.discharge(%s, %s)", [uuid.UUID(bytes=txn), fail])


def test_it_is_all_in_order(
    service: Service, begin: Begin, address: str, beside: Application, spark: SparkSession, tmp_path: Path
) -> None:
    """Some is consumed, some waits, some is due later, some was rolled back; a topic has two groups."""
    session = begin()
    topic = f"{address}-topic"
    service.cli("address", "add", address)
    service.cli("address", "add", topic, "--topic")
    receivers = [session.receiver(topic, credit=5) for _ in range(2)]
    for end in (beside.commit, beside.rollback):
        _all(session, address, topic, beside, end)
    beside.execute("select coordinator.first_time('books', 'order-1')")
    beside.commit()
    for receiver in receivers:
        receiver.take().disposition(Accepted())
    consumer = session.receiver(address)
    taken = consumer.take_many(3)
    assert [each.body for each in taken if each.body != b"decided in SQL"] == ["first", "plain"]
    for delivery in taken[:2]:
        delivery.disposition(Accepted(), settled=False)
        delivery.settlement()
    assert run(spark, running_url(service.data_dir), tmp_path / "report").findings.by_kind == {}


def _all(session: Session, address: str, topic: str, application: Application, end: Callable[[], None]) -> None:
    for where, body in ((address, "plain"), (topic, "to all")):
        post(application, where, body)
    post(application, address, "later", delay="1 hour")
    post(application, address, "first", priority=9)
    for fail in (False, True):
        _discharge(session, address, application, fail=fail)
    end()


@pytest.mark.rule("R20", "R25")
def test_a_book_in_postgresql_needs_the_jar_of_its_driver_alone(
    service: Service, address: str, orders_java_classpath: str, tmp_path: Path
) -> None:
    """As it is documented: a jar in the environment, and no class among the options."""
    service.cli("address", "add", address)
    (jar,) = Path(orders_java_classpath.rpartition(os.pathsep)[2]).parent.glob("postgresql-*.jar")
    store = running_url(service.data_dir)
    with closing(Proxy(store)) as proxy:  # the driver of Java knows no unix sockets
        (tmp_path / "book.toml").write_text(
            f"""
name = "orders"
format = "jdbc"
addresses = ["{address}"]
key = "id"
message_key = "property:order-id"
time = "at"
committed_when = "true"
grace = "0s"
[options]
url = "jdbc:postgresql://{proxy.url.rpartition("@")[2]}&user={ROLE}"
query = "select 'A-1' as id, now() - interval '1 hour' as at"
""",
            "utf-8",
        )
        ran = subprocess.run(
            [sys.executable, "-m", "coordinator", "reconcile", "--book", "book.toml", "--out", "out"],
            cwd=tmp_path,
            env=environment(COORDINATOR_DATABASE_URL=store, PYSPARK_SUBMIT_ARGS=f"--jars {jar} pyspark-shell"),
            capture_output=True,
            text=True,
            timeout=5 * PATIENCE_SECONDS,
            check=False,
        )
    assert ran.returncode == 1, ran.stderr
    assert " 1 lost-message" in ran.stdout
