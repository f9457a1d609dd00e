"""Apache Qpid JMS, unchanged, as producer and as checker of checkable transactions (rules H1, H2, H8)."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from store.embedded.running import ROLE, running_url
from tests.fix_check_back import Plant
from tests.fix_jms import Jms
from tests.fix_proxy import Proxy
from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_wire import Ask, Begin, decided
from tests.wire.frames import Accepted
from tests.wire.messages import VALUE, section
from tests.wire.peer import Session

#: what a checker is asked about; those that it leaves unknown are asked about again
ASKED = Counter({"accept": 1, "modify": 2, "modify undeliverable": 2, "reject": 1, "release": 2})
COMMITTED = ["accept", "modify", "modify undeliverable", "release"]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"check.immunity_seconds": "0", "check.interval_seconds": "0.2"}) as service:
        yield service


def assert_all_asked(said: dict[str, list[str]]) -> None:
    """A checker that takes longer than the interval is asked once more."""
    asked = Counter(said["asked"])
    assert asked.keys() == ASKED.keys()
    assert asked >= ASKED


@pytest.mark.rule("H2", "H7", "H8", "H13")
def test_a_jms_producer_is_killed_and_a_jms_consumer_answers(
    service: Service, jms: Jms, begin: Begin, ask: Ask
) -> None:
    """The message names the group; each check is acknowledged by itself, by every type that Qpid JMS has."""
    producer = jms("leave-by-property", service)
    assert producer.line() == {"step": "kill"}
    assert ask("select distinct producer_group from coordinator.txn") == [("jms-shop",)]
    producer.end()
    assert_all_asked(jms("check-individually", service).line())
    assert committed(begin(), "jms-shop-orders", ask) == COMMITTED


@pytest.mark.rule("H1", "H2", "H8")
def test_an_address_of_kind_transaction_makes_jms_transactions_checkable(
    service: Service, jms: Jms, begin: Begin, ask: Ask
) -> None:
    """Its name is the group. The checker has the prefetch that Qpid JMS has unless it is told."""
    service.cli("address", "add", "jms-deals", "--kind", "transaction")
    producer = jms("leave-by-kind", service)
    assert producer.line() == {"step": "kill"}
    assert ask("select distinct producer_group from coordinator.txn") == [("jms-deals",)]
    producer.end()
    assert_all_asked(jms("check-with-prefetch", service).line())
    assert committed(begin(), "jms-deals", ask) == COMMITTED


@pytest.mark.rule("H8")
def test_a_jms_session_that_recovers_leaves_it_unknown(service: Service, jms: Jms, planted: Plant, ask: Ask) -> None:
    txn = planted("jms-recover", "jms-recovered", section(VALUE, "order 1"), interval_ms=50)
    assert jms("check-by-recover", service).line() == {"asked": ["order 1"] * 2}
    assert decided(ask, txn) == ("commit", "checked")


@pytest.mark.rule("H2", "H8", "H20")
def test_what_a_jms_session_has_consumed_in_a_checkable_transaction(
    service: Service, jms: Jms, begin: Begin, ask: Ask
) -> None:
    """Rolled back it comes again; the transaction that a killed client leaves holds it until the checker's answer."""
    session = begin()
    sender = session.sender("jms-in")
    for text in ("1", "2"):
        assert sender.outcome(section(VALUE, text)) == Accepted()
    client = jms("checkable-transfer", service)
    assert client.line() == {"step": "kill"}
    undecided = "select posted, retired from coordinator.undecided where producer_group = 'jms-transfer'"
    assert ask(undecided) == [(1, 1)]
    client.end()
    check = session.receiver("$check/jms-transfer", credit=1).take()
    assert check.body in ("1", "2")  # what the client has prefetched may come before what it rolls back
    check.disposition(Accepted())
    assert committed(session, "jms-out", ask) == ["1", "2"]
    assert session.receiver("jms-in").bodies() == []


@pytest.mark.rule("H2", "T23")
def test_a_jms_client_is_told_of_a_second_group(service: Service, jms: Jms) -> None:
    seen = jms("two-groups", service).line()
    assert "'one'" in seen["send"]
    assert "'another'" in seen["send"]
    assert "the transaction was rolled back" in seen["commit"]
    assert "amqp:precondition-failed" in seen["commit"]
    assert seen["left"] == []


@pytest.mark.rule("H2", "H5", "T11")
def test_a_checked_order_in_java_is_rolled_back_before_its_commit(
    service: Service, orders_java_classpath: str, ask: Ask, tmp_path: Path
) -> None:
    """By the operator, while the order waits for the lock of its book: Qpid JMS throws what it throws of a doubt."""
    store = running_url(service.data_dir)
    with closing(Proxy(store)) as proxy, psycopg.connect(store) as book:  # the driver of Java knows no unix sockets
        book.execute("create schema jms_book")
        book.execute("create table jms_book.checked_orders (id int primary key, state varchar(7) not null)")
        book.commit()
        book.execute("lock table jms_book.checked_orders in share mode")
        url = f"jdbc:postgresql://{proxy.url.rpartition('@')[2]}&user={ROLE}&currentSchema=jms_book"
        program = ["java", "-XX:TieredStopAtLevel=1", "-cp", orders_java_classpath, "orders.CheckedOrders"]
        place = subprocess.Popen(
            [*program, "place", service.url, url, "1"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        try:
            deadline = time.monotonic() + PATIENCE
            while not (
                txns := ask("select txn_id from coordinator.undecided where producer_group = 'order-service-java'")
            ):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            service.cli("transaction", "resolve", txns[0][0].hex, "--rollback", "--reason", "by the books")
            book.commit()
            _, errors = place.communicate(timeout=PATIENCE)
        finally:
            place.kill()
            place.wait()
        assert book.execute("select * from jms_book.checked_orders").fetchall() == [(1, "placed")]
    assert "order 1 is in the book, its message is not: " in errors
    assert place.returncode == 0, errors


def committed(session: Session, address: str, ask: Ask) -> list[str]:
    """The texts there, once every transaction is decided."""
    deadline = time.monotonic() + PATIENCE
    while ask("select from coordinator.txn where producer_group is not null"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return sorted(session.receiver(address).bodies())
