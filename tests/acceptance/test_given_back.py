"""What a consumer at one worker gives back is delivered at another, whatever was read there meanwhile (rule D5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from store.embedded.running import running_url
from store.locks import ROW_OF
from store.tables import SCHEMA
from tests.fix_night import by_night
from tests.fix_service import Service, running_service
from tests.fix_wire import BeginAt, DialTo
from tests.wire.frames import Accepted, Open
from tests.wire.links import Receiver
from tests.wire.messages import Header, data, section
from tests.wire.peer import Session
from tests.wire.queues import select

#: messages that are in the store when older ones come back
BACKLOG = 1000
#: of the clock, as ids have it
HOUR = 3_600_000 << 22
OLD = [b"old 1", b"old 2"]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"workers": "2"}) as service:
        yield service


def _at(dial_to: DialTo, worker: int) -> Session:
    peer = dial_to(worker)
    peer.send(Open(container_id=f"at-{worker}"))
    peer.remote_open = peer.wait(Open)
    return peer.begin()


def _fill(session: Session, address: str, *messages: bytes) -> None:
    sender = session.sender(address)
    sent = [sender.post(each) for each in messages]
    for delivery in sent:
        assert sender.answer_to(delivery).state == Accepted()


@pytest.mark.rule("D5", "P17", "P16")
@pytest.mark.parametrize("priority", [by_night(9), 4, by_night(0)])
@pytest.mark.parametrize(
    "consumer",
    [lambda session, name: session.receiver(name), lambda session, name: select(session, name, "true = true")],
    ids=["takes anything", "selects"],
)
def test_while_a_backlog_is_read(
    service: Service, dial_to: DialTo, address: str, priority: int, consumer: Callable[[Session, str], Receiver]
) -> None:
    """It comes in order, before the backlog ends. Some that are newer may come between, as the two come one by one."""
    header = section(Header.CODE, Header(priority=priority).described().value)
    one, other = _at(dial_to, 0), _at(dial_to, 1)
    _fill(one, address, *(header + data(body) for body in OLD))
    with psycopg.connect(running_url(service.data_dir)) as connection:
        connection.execute(f"update {SCHEMA}.entry set id = id - {HOUR}".encode())
    held = one.receiver(address).take_many(len(OLD))
    _fill(one, address, *([header + data(b"new")] * BACKLOG))
    receiver = consumer(other, address)
    found = receiver.take_many(20)
    held[0].receiver.detach()
    while sum(each.body != b"new" for each in found) < len(OLD):
        found[-1].disposition(Accepted())
        found.append(receiver.take())
    assert [each.body for each in found if each.body != b"new"] == OLD
    assert len(found) < BACKLOG


#: Of the last message.
_POST_A_COPY = f"""with made as (
      insert into {SCHEMA}.half (id, address_id, message)
      select id + (1 << 22), address_id, message from {SCHEMA}.half order by id desc limit 1 returning id, address_id)
    insert into {SCHEMA}.entry (group_id, id, half_id)
    select g.id, m.id, m.id from made m join {SCHEMA}.consumer_group g on g.address_id = m.address_id"""


@pytest.mark.rule("D5", "H13")
def test_one_that_serves_before_the_dead_is_given_up_gets_its_messages(database_url: str, begin_at: BeginAt) -> None:
    """The one that died held the group whole: a consumer that looks before it is given up finds nothing, and is told
    when there is something.
    """
    with running_service({"database_url": database_url}) as service:
        session = begin_at(service)
        _fill(session, "orders", data(b"1"), data(b"2"))
        consumer = session.receiver("orders")
        for delivery in consumer.take_many(2):
            delivery.disposition(Accepted(), settled=False)
            delivery.settlement()
        service.kill()
        with psycopg.connect(database_url) as other:
            # as another service would post it: no entry of the dead one comes back
            other.execute(_POST_A_COPY.encode())
            other.commit()
            other.execute(f"select {ROW_OF['giving up']} for update".encode())
            service.restart()
            consumer = begin_at(service).receiver("orders")
            assert consumer.drain() == []
        consumer.credit(10)
        assert consumer.take().body == b"2"
