"""What applications do in SQL transactions of their own is nothing that reconciliation finds fault with (X2, X3)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from store.embedded.running import running_url
from tests.fix_application import Application, post
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
