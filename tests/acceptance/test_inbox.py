"""A message that comes again after its consumer has died does its work once (X4)."""

from __future__ import annotations

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_service import Service
from tests.fix_wire import Begin
from tests.wire.frames import Accepted
from tests.wire.links import Delivery
from tests.wire.messages import data

ORDERS = 10


def _work(application: psycopg.Connection[tuple[bool]], delivery: Delivery) -> None:
    """As docs/how-to/do-work-once.md says."""
    order = delivery.message.body.decode()
    row = application.execute("select coordinator.first_time('billing', %s)", [order]).fetchone()
    if row == (True,):  # else the work is done
        application.execute("insert into invoice values (%s)", [order])
    application.commit()


@pytest.mark.rule("X4")
def test_a_message_that_comes_again_does_its_work_once(begin: Begin, service: Service, address: str) -> None:
    """Its consumer dies before it commits, or before it accepts; a producer posts an order twice."""
    with psycopg.connect(running_url(service.data_dir)) as application:
        application.execute("create table invoice (order_id text not null)")
        application.commit()
        sender = begin().sender(address)
        for order in [*range(ORDERS), 3]:
            sender.post(data(b"order-%d" % order))
        dies = begin()
        for number, delivery in enumerate(dies.receiver(address).take_many(ORDERS + 1)):
            _work(application, delivery)
            if number % 2:
                delivery.disposition(Accepted())
        dies.sync()
        dies.peer.close_socket()
        for delivery in begin().receiver(address).take_many(ORDERS // 2 + 1):
            _work(application, delivery)
            delivery.disposition(Accepted())
        invoices = application.execute("select order_id from invoice order by order_id").fetchall()
    assert invoices == [(f"order-{order}",) for order in range(ORDERS)]
