"""What becomes of messages at a consumer with an inbox is nothing that reconciliation finds fault with (R24)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from spark.period import Period
from store.embedded.running import running_url
from tests.fix_application import Application
from tests.fix_service import Service
from tests.fix_wire import Begin
from tests.reconciling import run
from tests.wire.frames import Accepted, Rejected
from tests.wire.links import Delivery
from tests.wire.messages import APPLICATION_PROPERTIES, Header, Properties, data, section
from tests.wire.peer import Session
from tests.wire.queues import SELECTOR, filtered
from tests.wire.types import Described, Symbol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.rule("R24", "X4")

#: All of it happened an hour ago: what is younger than five minutes is not judged.
SHIFT = """
    set session_replication_role = replica;
    update coordinator.op set decided_at = decided_at - interval '1 hour';
    update coordinator.half set posted_at = posted_at - interval '1 hour';
    update coordinator.inbox set taken_at = taken_at - interval '1 hour'"""


def _post(session: Session, address: str, *keys: str, ttl: int | None = None) -> None:
    sender = session.sender(address)
    for key in keys:
        message = Header(durable=True, ttl=ttl).encoded() + Properties(message_id=key).encoded() + data(key.encode())
        assert sender.outcome(message) == Accepted()
    sender.detach()


def _take(session: Session, address: str, count: int) -> list[Delivery]:
    receiver = session.receiver(address)
    return receiver.take_many(count)


def _note(application: Application, consumer: str, delivery: Delivery) -> None:
    application.execute("select coordinator.first_time(%s, %s)", [consumer, delivery.body.decode()])
    application.commit()


def _work(session: Session, address: str, count: int, application: Application) -> None:
    """The work of so many, each before its accept."""
    taken = _take(session, address, count)
    for delivery in taken:
        _note(application, address, delivery)
        delivery.disposition(Accepted(), settled=False)
        delivery.settlement()
    taken[0].receiver.detach()


def _found(spark: SparkSession, service: Service, out: Path, period: Period | None = None) -> dict[str, int]:
    return dict(run(spark, running_url(service.data_dir), out, period, inbox=True).findings.by_kind)


def test_over_seeks_and_ends_of_all_kinds(
    begin: Begin, service: Service, address: str, beside: Application, spark: SparkSession, tmp_path: Path
) -> None:
    """Then a row is lost, and one is there of what waits."""
    session = begin()
    _post(session, address, *(f"k-{number}" for number in range(10)))
    _work(session, address, 8, beside)
    control = session.control()
    txn = control.declare()
    for delivery in _take(session, address, 2):
        _note(beside, address, delivery)
        delivery.retire(txn)
    control.commit(txn)
    _crash(begin, address, beside)
    _work(session, address, 1, beside)
    _other_ends(session, service, address)
    service.cli("group", "seek", address, "--back-to", "2026-01-01T00:00:00Z")
    _work(session, address, 11, beside)
    _removed(session, service, f"{address}-gone", beside)
    with psycopg.connect(running_url(service.data_dir)) as store:
        store.execute(SHIFT)
    assert _found(spark, service, tmp_path / "clean") == {}
    with psycopg.connect(running_url(service.data_dir)) as store:
        store.execute("delete from coordinator.inbox where message_id = 'crash'")
        store.execute(
            "insert into coordinator.inbox values (%s, 'late', now() - interval '1 hour'), ('till', 'k-1', now())",
            [address],
        )
    assert _found(spark, service, tmp_path / "broken") == {
        "consumed-not-processed": 1,
        "processed-not-consumed": 1,
        "unknown-consumer": 1,
    }


def test_what_the_selector_of_a_subscription_passes_over(
    begin: Begin, service: Service, address: str, beside: Application, spark: SparkSession, tmp_path: Path
) -> None:
    """No consumer has had it."""
    begun = datetime.now(UTC)
    with psycopg.connect(running_url(service.data_dir)) as store:
        store.execute("delete from coordinator.inbox")
    service.cli("address", "add", address, "--topic")
    session = begin(container_id="shop")
    source = filtered(
        address,
        {"jms-selector": Described(SELECTOR, "color = 'red'")},
        durable=2,
        expiry_policy=Symbol("never"),
    )
    receiver = session.receiver(source, name="red", credit=5)
    sender = session.sender(address)
    for number, color in enumerate(("red", "blue", "red")):
        properties = Properties(message_id=f"k-{number}").encoded() + section(APPLICATION_PROPERTIES, {"color": color})
        assert sender.outcome(properties + data(b"k-%d" % number)) == Accepted()
    for delivery in receiver.take_many(2):
        _note(beside, f"{address}::red@shop", delivery)
        delivery.disposition(Accepted(), settled=False)
        delivery.settlement()
    with psycopg.connect(running_url(service.data_dir)) as store:
        store.execute(SHIFT)
    assert _found(spark, service, tmp_path, Period(since=begun)) == {}


def _crash(begin: Begin, address: str, application: Application) -> None:
    """Between the work and the accept."""
    dies = begin()
    _post(dies, address, "crash")
    _note(application, address, _take(dies, address, 1)[0])
    dies.peer.close_socket()


def _other_ends(session: Session, service: Service, address: str) -> None:
    """A dead letter; what expires; what is purged; what waits."""
    _post(session, address, "rejected")
    (delivery,) = _take(session, address, 1)
    delivery.disposition(Rejected())
    delivery.receiver.detach()
    _post(session, address, "expires", ttl=1)
    _post(session, address, "purged")
    service.cli("address", "purge", address)
    _post(session, address, "late")


def _removed(session: Session, service: Service, address: str, application: Application) -> None:
    service.cli("address", "add", address)
    _post(session, address, "gone-1", "gone-2")
    _work(session, address, 1, application)
    service.cli("address", "remove", address, "--force")
