"""What applications post and discharge in SQL while the service is killed and started again (X2, X3)."""

from __future__ import annotations

import random
import threading
import uuid

import psycopg
import pytest

from tests.fix_application import Application, post
from tests.fix_service import Service, running_service
from tests.fix_wire import BeginAt
from tests.wire.checkable import accept, in_group
from tests.wire.frames import Accepted
from tests.wire.peer import Session

APPLICATIONS = 3
KILLS = 3
#: Transactions of AMQP clients for each application, which discharges them in SQL.
CHECKABLE = 10


class Shop(threading.Thread):
    """Posts from one to five messages in a transaction, with a row for each; every third rolls back, and some discharge
    a transaction of a client.
    """

    def __init__(self, number: int, url: str, address: str, txns: list[bytes], stop: threading.Event) -> None:
        super().__init__()
        self._number = number
        self._url = url
        self._address = address
        self._txns = txns
        self._stopped = stop
        self.errors: list[str] = []

    def run(self) -> None:
        chosen = random.Random(self._number)
        with psycopg.connect(self._url) as own:
            count = 0
            while self._txns or not self._stopped.is_set():
                for _ in range(chosen.randint(1, 5)):
                    count += 1
                    body = f"{self._number}-{count}"
                    own.execute("insert into sale values (%s)", [body])
                    post(own, self._address, body)
                keeps = chosen.random() < 0.67
                if self._txns and chosen.random() < 0.3:
                    self._discharge(own, self._txns.pop() if keeps else self._txns[-1])
                own.commit() if keeps else own.rollback()

    def _discharge(self, own: Application, txn: bytes) -> None:
        own.execute("insert into sale values (%s)", [txn.hex()])
        own.execute("select coordinator.discharge(%s)", [uuid.UUID(bytes=txn)])


def _declared(session: Session, address: str) -> list[bytes]:
    """Transactions of a client, each with one message that says which it is."""
    control, sender = in_group(session), session.sender(address)
    txns = [control.declare() for _ in range(CHECKABLE)]
    for txn in txns:
        accept(sender, txn.hex().encode(), txn)
    return txns


def _taken(session: Session, address: str, missing: int) -> list[str]:
    """Piece by piece: a link leaves a bounded number unsettled."""
    receiver = session.receiver(address, credit=200)
    bodies: list[str] = []
    while len(bodies) < missing:
        found = receiver.take_many(min(100, missing - len(bodies)))
        for delivery in found:
            delivery.disposition(Accepted(), settled=False)
        for delivery in found:
            assert delivery.settlement().settled, "only then it is not delivered once more"
        bodies += [each.body if isinstance(each.body, str) else each.body.decode() for each in found]
    return bodies


@pytest.mark.rule("X2", "X3", "H13")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_is_committed_comes_once_and_nothing_else(
    database_url: str, begin_at: BeginAt, address: str, workers: str
) -> None:
    with (
        running_service({"database_url": database_url, "workers": workers}) as service,
        psycopg.connect(database_url) as looks,
    ):
        looks.execute("create table sale (body text primary key)")
        looks.commit()
        service.cli("address", "add", address)
        stop = threading.Event()
        shops = [
            Shop(number, database_url, address, _declared(begin_at(service), address), stop)
            for number in range(APPLICATIONS)
        ]
        for shop in shops:
            shop.start()
        taken: list[str] = []
        for _ in range(KILLS):
            taken += _taken(begin_at(service), address, 100)
            service.kill()
            service.restart()
        stop.set()
        for shop in shops:
            shop.join()
        sold = [row[0] for row in looks.execute("select body from sale").fetchall()]
        looks.commit()
        taken += _taken(begin_at(service), address, len(sold) - len(taken))
        assert sorted(taken) == sorted(sold)
        _nothing_left(service, looks, address)


def _nothing_left(service: Service, looks: Application, address: str) -> None:
    states = looks.execute(
        "select state, count(*) from coordinator.messages where address = %s group by state", [address]
    ).fetchall()
    assert {state for state, _ in states} == {"acked"}
    assert looks.execute("select count(*) from coordinator.outbox").fetchone() == (0,)
    assert looks.execute("select count(*) from coordinator.enlistment").fetchone() == (0,)
    assert service.stop() == 0
