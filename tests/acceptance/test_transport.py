"""The transport frame by frame: opening, credit and settlement (part 2; rules P1, P2, P5 to P7, P14)."""

from __future__ import annotations

import pytest

from tests.fix_night import by_night
from tests.fix_service import Service
from tests.fix_wire import Ask, Begin, Dial
from tests.wire.frames import (
    AMQP_HEADER,
    SASL,
    SASL_HEADER,
    SENDER,
    Accepted,
    Close,
    Disposition,
    End,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    frame,
)
from tests.wire.frames import (
    Begin as BeginFrame,
)
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import browse, post
from tests.wire.types import Described, ULong

# -- opening


@pytest.mark.rule("P1")
@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"AMQP\x00\x00\x09\x01", id="AMQP 0-9-1"),
        pytest.param(b"AMQP\x01\x01\x00\x0a", id="AMQP 0-10"),
        pytest.param(b"AMQP\x00\x01\x01\x00", id="AMQP 1.1"),
        pytest.param(b"AMQP\x03\x01\x01\x00", id="SASL 1.1"),
        pytest.param(b"AMQP\x02\x01\x00\x00", id="TLS by AMQP"),
        pytest.param(b"AMQP\x07\x01\x00\x00", id="no such protocol"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
        pytest.param(bytes(8), id="zeros"),
        pytest.param(b"\xff" * 64, id="ones"),
    ],
)
def test_another_protocol_is_answered_with_ours_and_a_close(dial: Dial, header: bytes) -> None:
    """Part 2, section 2.2: the header that we take, then the end of the stream."""
    peer = dial()
    peer.send_octets(header)
    assert peer.read_header() in (AMQP_HEADER, SASL_HEADER)
    peer.rest()


@pytest.mark.rule("P1")
@pytest.mark.parametrize("sasl", [False, True])
def test_with_and_without_a_sasl_layer(dial: Dial, sasl: bool) -> None:
    """Part 2, section 2.2, and part 5, section 5.3.2."""
    peer = dial()
    answer = peer.open(sasl=sasl)
    assert answer.container_id
    assert peer.close().error is None


@pytest.mark.rule("P1")
def test_pipelined_opening(dial: Dial) -> None:
    """Part 2, section 2.4.2: everything may be sent before anything is read."""
    peer = dial()
    peer.send_octets(
        b"".join(
            (
                SASL_HEADER,
                frame(SaslInit(mechanism="ANONYMOUS"), kind=SASL),
                AMQP_HEADER,
                frame(Open(container_id="hasty")),
                frame(BeginFrame(next_outgoing_id=0, incoming_window=10, outgoing_window=10)),
                frame(Close()),
            )
        )
    )
    assert peer.read_header() == SASL_HEADER
    assert isinstance(peer.read().performative, SaslMechanisms)
    outcome = peer.read().performative
    assert isinstance(outcome, SaslOutcome)
    assert outcome.code == 0
    assert peer.read_header() == AMQP_HEADER
    kinds = [type(found.performative) for found in peer.rest()]
    assert kinds in ([Open, BeginFrame, Close], [Open, BeginFrame, End, Close])


@pytest.mark.rule("P1")
@pytest.mark.parametrize("mechanism", ["PLAIN", "EXTERNAL", "NO-SUCH", ""])
def test_a_mechanism_that_is_not_offered(dial: Dial, mechanism: str) -> None:
    """Part 5, section 5.3.3.6: sasl-outcome with the code auth (1), then the end."""
    peer = dial()
    peer.send_octets(SASL_HEADER)
    assert peer.read_header() == SASL_HEADER
    mechanisms = peer.read().performative
    assert isinstance(mechanisms, SaslMechanisms)
    assert mechanism not in mechanisms.sasl_server_mechanisms
    peer.send(SaslInit(mechanism=mechanism, initial_response=b"\0guest\0guest"), kind=SASL)
    outcome = peer.read().performative
    assert isinstance(outcome, SaslOutcome)
    assert outcome.code == 1
    peer.rest()


@pytest.mark.rule("P2", "P5")
@pytest.mark.parametrize("window", [by_night(0), 1, by_night(3)])
@pytest.mark.parametrize("size", [10_000, 2_000_000])
def test_the_session_window_is_kept(begin: Begin, address: str, window: int, size: int) -> None:
    """Part 2, section 2.5.6: no more transfers than the incoming window, whatever the credit."""
    session = begin(max_frame_size=1000)
    narrow = session.peer.begin(incoming_window=window)
    consumer = narrow.receiver(address, credit=1)
    post(session, address, b"z" * size)
    while len(consumer._coming.frames if consumer._coming else []) < window:
        session.peer.step()
    answered_from_the_store(session, address)
    assert len(consumer._coming.frames if consumer._coming else []) == window
    narrow.incoming_window = 10_000
    narrow.flow()
    assert consumer.take().body == b"z" * size


def answered_from_the_store(session: Session, address: str) -> None:
    """Read on until the store has answered all that it was asked before: its questions are answered in their order."""
    browse(session, f"{address}-beside")
    session.sync()


# -- credit


@pytest.mark.rule("P5")
def test_credit_is_kept(begin: Begin, address: str) -> None:
    """Part 2, section 2.6.7: as many deliveries as there is credit, and none without."""
    session = begin()
    post(session, address, *(b"%d" % number for number in range(5)))
    consumer = session.receiver(address)
    post(session, address, *(b"%d" % number for number in range(5, 10)))
    answered_from_the_store(session, address)
    assert not consumer.arrived
    consumer.credit(3)
    assert [consumer.take().body for _ in range(3)] == [b"0", b"1", b"2"]
    answered_from_the_store(session, address)
    assert not consumer.arrived
    consumer.credit(2)
    assert [consumer.take().body for _ in range(2)] == [b"3", b"4"]


@pytest.mark.rule("P5")
@pytest.mark.parametrize("mode", ["move", "copy"])
@pytest.mark.parametrize(("credit", "there"), [by_night(10, 0), (10, 4), (4, 4), by_night(3, 4)])
def test_drain_uses_up_all_credit_and_says_so(begin: Begin, address: str, mode: str, credit: int, there: int) -> None:
    """Part 2, section 2.6.7: what there is is sent, the delivery-count takes what is left, credit is 0."""
    session = begin()
    post(session, address, *(b"x" for _ in range(there)))
    consumer = session.receiver(Source(address=address, distribution_mode=mode))
    found = consumer.drain(credit)
    assert len(found) == min(credit, there)
    assert consumer.delivery_count == (consumer.answer.initial_delivery_count or 0) + credit
    if there < credit:
        flow = consumer.flows[-1]
        assert flow.link_credit == 0
        assert flow.drain is True


@pytest.mark.rule("P5")
def test_credit_may_be_taken_back(begin: Begin, address: str) -> None:
    """Part 2, section 2.6.7: a flow with less credit than before; posts later are not sent."""
    session = begin()
    consumer = session.receiver(address, credit=10)
    consumer.credit(-10)
    session.sync()
    post(session, address, b"x")
    session.sync()
    assert not consumer.arrived
    assert consumer.take().body == b"x"


# -- settlement


@pytest.mark.rule("P6")
def test_a_settled_sender(begin: Begin, address: str) -> None:
    """Part 2, section 2.8.2: settled transfers are not answered, and are there."""
    session = begin()
    sender = session.sender(address, snd_settle_mode=1)
    assert sender.answer.snd_settle_mode == 1
    numbers = [sender.post(data(b"%d" % number), settled=True) for number in range(3)]
    consumer = session.receiver(address)
    assert [consumer.take().body for _ in range(3)] == [b"0", b"1", b"2"]
    session.sync()
    assert not any(session.answers[number] for number in numbers)


@pytest.mark.rule("P6")
def test_a_mixed_sender(begin: Begin, address: str) -> None:
    """Part 2, section 2.8.2: each transfer says itself."""
    session = begin()
    sender = session.sender(address, snd_settle_mode=2)
    quiet = sender.post(data(b"quiet"), settled=True)
    assert sender.outcome(data(b"asked")) == Accepted()
    assert not session.answers[quiet]
    assert session.receiver(address).bodies() == [b"quiet", b"asked"]


@pytest.mark.rule("P6")
def test_a_settled_consumer(begin: Begin, address: str) -> None:
    """Part 2, section 2.8.2: deliveries come settled, and are gone."""
    session = begin()
    post(session, address, b"1", b"2")
    consumer = session.receiver(address, snd_settle_mode=1)
    assert consumer.answer.snd_settle_mode == 1
    assert all(delivery.settled for delivery in consumer.take_many(2))
    consumer.detach()
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("P6")
def test_an_unsettled_consumer(begin: Begin, address: str) -> None:
    """Part 2, section 2.8.2: deliveries come unsettled, with the mode that was asked for."""
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address, snd_settle_mode=0)
    assert consumer.answer.snd_settle_mode == 0
    assert not consumer.take().settled


@pytest.mark.rule("P6")
def test_a_receiver_that_settles_second(begin: Begin, address: str) -> None:
    """Part 2, section 2.8.3: the consumer states its outcome, the sender settles, then the consumer."""
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address, rcv_settle_mode=1)
    assert consumer.answer.rcv_settle_mode == 1
    delivery = consumer.take()
    delivery.disposition(Accepted(), settled=False)
    settlement = delivery.settlement()
    assert settlement.settled is True
    assert settlement.state == Accepted()
    delivery.disposition(None, settled=True)
    consumer.detach()
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("P6")
def test_posts_that_their_sender_does_not_settle_use_up_credit(begin: Begin, address: str, service: Service) -> None:
    """The same, where the service receives: it settles none before its sender has, and the log says so once."""
    session = begin()
    sender = session.sender(address, rcv_settle_mode=1)
    since = len(service.log_lines())
    for _ in range(2):
        posts = []
        while sender.link_credit > 0:
            posts.append(sender.post(data(b"x")))
            answer = sender.answer_to(posts[-1])
            assert answer.state == Accepted()
            assert not answer.settled
            if sender.link_credit <= 0:
                session.sync()  # what it gives for these has come
        session.send(Disposition(role=SENDER, first=posts[0], last=posts[-1], settled=True))
        sender.wait_for_credit()
    told = [line for line in service.log_lines()[since:] if "receiver settle mode second" in line["event"]]
    assert [line["link"] for line in told] == [sender.answer.name]


@pytest.mark.rule("P7", "D8")
def test_delivery_tags(begin: Begin, address: str, ask: Ask) -> None:
    """Part 2, section 2.6.12: at most 32 octets, unique on the link; ours name the store and the entry."""
    session = begin()
    post(session, address, *(b"x" for _ in range(50)))
    deliveries = session.receiver(address).take_many(50)
    ((store_id,),) = ask("select id from coordinator.store_identity")
    entries = {
        f"{store_id}:{row[0]}".encode()
        for row in ask(
            """select e.id from coordinator.entry e join coordinator.consumer_group g on g.id = e.group_id
               join coordinator.address a on a.id = g.address_id where a.name = %s""",
            address,
        )
    }
    assert {delivery.tag for delivery in deliveries} == entries
    assert all(len(delivery.tag) <= 32 for delivery in deliveries)


@pytest.mark.rule("P7")
def test_a_message_that_comes_back_keeps_its_tag(begin: Begin, address: str) -> None:
    """Part 2, section 2.6.12: the entry is the same."""
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address)
    first = consumer.take()
    first.disposition(Described(ULong(0x26), []))  # type: ignore[arg-type]
    assert consumer.take().tag == first.tag


@pytest.mark.rule("P14")
def test_many_links_on_one_session(begin: Begin, address: str) -> None:
    """Part 2, section 2.7.2: handles are independent; a name may be used again when its link is gone."""
    session = begin()
    senders = [session.sender(address, name=f"s{number}") for number in range(100)]
    for sender in senders:
        sender.post(data(b"x"), settled=True)
    for sender in senders:
        sender.detach()
    again = session.sender(address, name="s0")
    assert again.outcome(data(b"x")) == Accepted()
    assert len(session.receiver(address).bodies()) == 101
