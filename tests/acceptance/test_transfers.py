"""Deliveries of many frames: their sizes, aborted ones, and links that end in the middle of one (part 2; rules P2, P3,
P19)."""

from __future__ import annotations

import pytest

from tests.fix_night import by_night
from tests.fix_service import Service
from tests.fix_wire import Ask, Begin
from tests.wire.frames import (
    Accepted,
    Target,
    TransactionalState,
)
from tests.wire.messages import data
from tests.wire.queues import post

# -- whole messages


@pytest.mark.rule("P2")
@pytest.mark.parametrize(
    "size", [0, by_night(1), by_night(5_000), 65_536, by_night(1_048_576), 1_048_577, by_night(5_000_000)]
)
def test_large_messages_both_ways(begin: Begin, address: str, size: int) -> None:
    """Part 2, sections 2.6.14 and 2.7.1: many frames, none larger than the peer's max-frame-size."""
    session = begin(max_frame_size=20_000)
    body = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    sender = session.sender(address)
    assert sender.outcome(data(body), frame_size=15_000) == Accepted()
    consumer = session.receiver(address)
    delivery = consumer.take()
    assert delivery.body == body
    assert all(len(piece) < 20_000 for piece in delivery.pieces)
    assert len(delivery.pieces) >= size // 20_000
    delivery.disposition(Accepted())


@pytest.mark.rule("P2")
def test_the_smallest_frames(begin: Begin, address: str) -> None:
    """Part 2, section 2.8.19: MIN-MAX-FRAME-SIZE is 512."""
    session = begin(max_frame_size=512)
    assert session.sender(address).outcome(data(b"x" * 3000), frame_size=100) == Accepted()
    delivery = session.receiver(address).take()
    assert delivery.body == b"x" * 3000
    assert len(delivery.pieces) >= 6
    assert all(len(piece) < 512 for piece in delivery.pieces)


@pytest.mark.rule("P2", "T20")
def test_large_messages_in_a_transaction_interleaved(begin: Begin, address: str) -> None:
    """Part 2, section 2.6.14: frames of deliveries on two links of one session, by turns."""
    session = begin()
    control = session.control()
    senders = [session.sender(f"{address}-{number}") for number in range(2)]
    txn = control.declare()
    numbers = [session.next_delivery_id() for _ in senders]
    octets = data(b"y" * 1000)
    state = TransactionalState(txn_id=txn)
    for at in range(0, len(octets), 100):
        for sender, number in zip(senders, numbers, strict=True):
            sender.transfer(
                octets[at : at + 100],
                delivery_id=number,
                delivery_tag=b"t" if at == 0 else None,
                message_format=0 if at == 0 else None,
                state=state if at == 0 else None,
                more=at + 100 < len(octets),
            )
    for sender, number in zip(senders, numbers, strict=True):
        assert sender.answer_to(number).state == TransactionalState(txn_id=txn, outcome=Accepted())
    control.commit(txn)
    for sender in senders:
        target = sender.answer.target
        assert isinstance(target, Target)
        assert target.address
        assert session.receiver(target.address).bodies() == [b"y" * 1000]


@pytest.mark.rule("P3")
@pytest.mark.parametrize("transactional", [False, True])
def test_an_aborted_transfer_leaves_nothing_behind(begin: Begin, address: str, ask: Ask, transactional: bool) -> None:
    """Part 2, section 2.6.14: what came is forgotten; the next delivery is whole, the transaction goes on."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    state = TransactionalState(txn_id=txn) if transactional else None
    for tag in (b"1", b"2"):
        number = session.next_delivery_id()
        sender.transfer(
            b"\x00\x53\x75\xb0", delivery_id=number, delivery_tag=tag, message_format=0, state=state, more=True
        )
        sender.transfer(b"\x00\x00", delivery_id=number, more=True)
        sender.transfer(b"", delivery_id=number, aborted=True)
        sender.delivery_count += 1
        sender.link_credit -= 1
    assert sender.outcome(data(b"whole"), txn=txn) == TransactionalState(txn_id=txn, outcome=Accepted())
    control.commit(txn)
    assert session.receiver(address).bodies() == [b"whole"]


@pytest.mark.rule("P3")
def test_an_aborted_delivery_gives_its_credit_back(begin: Begin, address: str) -> None:
    """Part 2, section 2.6.14: credit is topped up over aborted deliveries as over others."""
    session = begin()
    sender = session.sender(address)
    for _ in range(3 * sender.link_credit):
        sender.wait_for_credit()
        number = session.next_delivery_id()
        sender.transfer(b"\x00", delivery_id=number, delivery_tag=b"a", message_format=0, more=True)
        sender.transfer(b"", delivery_id=number, aborted=True)
        sender.delivery_count += 1
        sender.link_credit -= 1
    assert sender.outcome(data(b"x")) == Accepted()


# -- links that end in the middle


@pytest.mark.rule("P19", "T15")
@pytest.mark.parametrize("how", ["detach", "end", "close", "socket"])
def test_a_sender_gone_in_the_middle_of_a_delivery(begin: Begin, address: str, how: str) -> None:
    """Part 2, section 2.6: what came of it is forgotten, and keeps no transaction from its end."""
    session, other = begin(), begin()
    control = session.control()
    txn = control.declare()
    working = session.peer.begin()
    sender = working.sender(address)
    sender.outcome(data(b"whole"), txn=txn)
    number = working.next_delivery_id()
    state = TransactionalState(txn_id=txn)
    sender.transfer(b"\x00\x53\x75", delivery_id=number, delivery_tag=b"part", message_format=0, state=state, more=True)
    if how == "detach":
        sender.detach()
    elif how == "end":
        working.end()
    elif how == "close":
        session.peer.close()
    else:
        session.peer.close_socket()
    if how in ("detach", "end"):
        control.commit(txn)
    assert other.receiver(address).bodies() == ([b"whole"] if how in ("detach", "end") else [])


@pytest.mark.rule("P19")
@pytest.mark.parametrize("how", ["detach", "end", "close"])
def test_a_receiver_gone_while_transfers_are_on_their_way(begin: Begin, address: str, how: str) -> None:
    """Part 2, section 2.6: what was sent and not decided comes back once, as seen perhaps (D5)."""
    session, other = begin(), begin()
    bodies = [b"%d" % number for number in range(50)]
    post(session, address, *bodies)
    working = session.peer.begin()
    consumer = working.receiver(address, credit=30)
    consumer.take().disposition(Accepted())
    if how == "detach":
        consumer.detach()
    elif how == "end":
        working.end()
    else:
        session.peer.close()
    found = other.receiver(address).drain()
    assert [delivery.body for delivery in found] == bodies[1:]
    assert [delivery.count for delivery in found] == [1] * 29 + [0] * 20


@pytest.mark.rule("P19")
def test_a_large_delivery_cut_by_the_receivers_detach(begin: Begin, address: str) -> None:
    """Part 2, section 2.6: half sent, the window closed; it comes whole to the next."""
    session = begin(max_frame_size=1000)
    post(session, address, b"z" * 50_000)
    narrow = session.peer.begin(incoming_window=3)
    consumer = narrow.receiver(address, credit=1)
    while not consumer._coming or len(consumer._coming.frames) < 3:
        session.peer.step()
    consumer.detach()
    found = session.receiver(address).take()
    assert found.body == b"z" * 50_000


@pytest.mark.rule("P14", "S7")
def test_a_link_is_refused_once(service: Service, begin: Begin, address: str) -> None:
    """However many transfers come that are wrong: each wrote a line to the log, for 40 octets."""
    session = begin()
    sender = session.sender(address)
    sender.wait_for_credit()
    since = len(service.log_lines())
    for _ in range(20):
        number = session.next_delivery_id()
        sender.transfer(b"", delivery_id=number, delivery_tag=b"%d" % number, message_format=1)
    assert sender.error == "amqp:not-implemented"
    assert session.sender(address).outcome(data(b"after")) == Accepted()
    service.wait_for(lambda line: line["event"] == "link refused", since=since)
    refused = [line for line in service.log_lines()[since:] if line["event"] == "link refused"]
    assert len(refused) == 1
