"""The transport frame by frame (part 2; rules P1 to P7, P14, P19), and bad bytes at every stage."""

from __future__ import annotations

import pytest

from tests.fix_wire import Ask, Begin, Dial
from tests.wire.frames import (
    AMQP_HEADER,
    RECEIVER,
    SASL,
    SASL_HEADER,
    SENDER,
    Accepted,
    Attach,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    TransactionalState,
    Transfer,
    frame,
)
from tests.wire.frames import (
    Begin as BeginFrame,
)
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import browse, post
from tests.wire.types import Described, ULong, encode

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


# -- large messages


@pytest.mark.rule("P2")
@pytest.mark.parametrize("size", [0, 1, 5_000, 65_536, 1_048_576, 1_048_577, 5_000_000])
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


@pytest.mark.rule("P2", "P5")
@pytest.mark.parametrize("window", [0, 1, 3])
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
        sender.transfer(b"\x00\x53\x75\xb0", delivery_id=number, delivery_tag=tag, state=state, more=True)
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
        sender.transfer(b"\x00", delivery_id=number, delivery_tag=b"a", more=True)
        sender.transfer(b"", delivery_id=number, aborted=True)
        sender.delivery_count += 1
        sender.link_credit -= 1
    assert sender.outcome(data(b"x")) == Accepted()


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
@pytest.mark.parametrize(("credit", "there"), [(10, 0), (10, 4), (4, 4), (3, 4)])
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


# -- broken connections


@pytest.mark.rule("P14")
@pytest.mark.parametrize(
    "octets",
    [
        pytest.param(b"\x00\x00\x00\x00\x02\x00\x00\x00", id="size 0"),
        pytest.param(b"\x00\x00\x00\x07\x02\x00\x00\x00", id="size 7"),
        pytest.param(b"\x00\x00\x00\x0c\x01\x00\x00\x00ABCD", id="data offset 1"),
        pytest.param(b"\x00\x00\x00\x0c\xff\x00\x00\x00ABCD", id="data offset behind the end"),
        pytest.param(b"\x7f\xff\xff\xff\x02\x00\x00\x00", id="size 2 GB"),
        pytest.param(b"\xff\xff\xff\xff\x02\x00\x00\x00", id="size 4 GB"),
        pytest.param(frame(b"\xff\xff\xff\xff"), id="no value"),
        pytest.param(frame(b"\x00"), id="descriptor cut off"),
        pytest.param(frame(b"\x00\x53"), id="descriptor without a value"),
        pytest.param(frame(encode(Described(ULong(0x10), {}))), id="open as a map"),
        pytest.param(frame(encode(Described(ULong(0x99), []))), id="unknown performative"),
        pytest.param(frame(encode(Described(ULong(1 << 60), []))), id="unknown, and large"),
        pytest.param(frame(encode([])), id="not described"),
        pytest.param(frame(b"\x00\x53\x12\xc0\xff\x01"), id="list longer than the frame"),
        pytest.param(frame(b"\x00\x53\x12\xd0\xff\xff\xff\xff\x00\x00\x00\x01"), id="list of 4 GB"),
        pytest.param(frame(b"\x00\x53\x12\xd0\x00\x00\x00\x08\xff\xff\xff\xff\x40\x40\x40\x40"), id="4 G fields"),
        pytest.param(frame(b"\x00\x53\x12" + b"\x00\x53\x12" * 3000 + b"\x45"), id="nested without end"),
        pytest.param(frame(Attach(handle=0, role=RECEIVER)), id="attach without a name"),
        pytest.param(
            frame(Disposition(role=RECEIVER, first=5, last=3, settled=True)), id="a range that runs backwards"
        ),
        pytest.param(frame(Transfer(handle=77, delivery_id=0, delivery_tag=b"x")), id="transfer on no link"),
        pytest.param(frame(Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1), channel=9), id="no session"),
        pytest.param(frame(Detach(handle=77, closed=True)), id="detach of no link"),
        pytest.param(frame(End(), channel=9), id="end of no session"),
        pytest.param(frame(Open(container_id="again")), id="a second open"),
        pytest.param(frame(SaslInit(mechanism="ANONYMOUS"), kind=SASL), id="SASL in the middle"),
        pytest.param(AMQP_HEADER, id="a header again"),
        pytest.param(b"\x00" * 1000, id="zeros"),
        pytest.param(b"\xff" * 1000, id="ones"),
    ],
)
def test_bad_bytes_end_that_connection_and_no_other(begin: Begin, address: str, octets: bytes) -> None:
    """Part 2, sections 2.3, 2.4.3 and 2.8: a close (or end, or detach) with an error; others do not notice."""
    other, session = begin(), begin()
    txn_control = other.control()
    txn = txn_control.declare()
    other.sender(address).outcome(data(b"kept"), txn=txn)
    control = session.control()
    lost = control.declare()
    session.sender(address).outcome(data(b"lost"), txn=lost)
    session.peer.send_octets(octets)
    session.peer.socket.shutdown(1)
    rest = [found.performative for found in session.peer.rest()]
    errors = [found.error for found in rest if isinstance(found, Close | End | Detach) and found.error is not None]
    assert errors, rest
    txn_control.commit(txn)
    assert other.receiver(address).bodies() == [b"kept"]


@pytest.mark.rule("P14")
def test_a_frame_of_another_type_is_passed_over(begin: Begin, address: str) -> None:
    """Part 2, section 2.3.1: Proton reads nothing in it; the connection and its transaction go on."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"before"), txn=txn)
    session.peer.send_octets(frame(b"", kind=7))
    sender.outcome(data(b"after"), txn=txn)
    control.commit(txn)
    assert session.receiver(address).bodies() == [b"before", b"after"]


@pytest.mark.rule("P14")
@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_frame_cut_off_by_the_end_of_the_stream(begin: Begin, address: str, cut: int) -> None:
    """Part 2, section 2.3: half a frame has no effect."""
    session, other = begin(), begin()
    sender = session.sender(address)
    whole = frame(
        Transfer(handle=sender.handle, delivery_id=0, delivery_tag=b"x", message_format=0), payload=data(b"y" * 60)
    )
    session.peer.send_octets(whole[:cut])
    session.peer.socket.shutdown(1)
    session.peer.rest()
    assert other.receiver(address).bodies() == []


@pytest.mark.rule("P14")
def test_one_octet_at_a_time(dial: Dial, address: str) -> None:
    """Part 2, section 2.3: where a frame is cut into segments means nothing."""
    peer = dial()
    octets = b"".join(
        (
            AMQP_HEADER,
            frame(Open(container_id="slow")),
            frame(BeginFrame(next_outgoing_id=0, incoming_window=10, outgoing_window=10)),
            frame(Attach(name="s", handle=0, role=SENDER, target=Target(address=address), initial_delivery_count=0)),
        )
    )
    for at in range(len(octets)):
        peer.send_octets(octets[at : at + 1])
    assert peer.read_header() == AMQP_HEADER
    assert peer.wait(Attach).role is RECEIVER
    assert peer.wait(Flow).link_credit > 0


@pytest.mark.rule("P14")
def test_an_attach_that_is_wrong_ends_its_link_only(begin: Begin, address: str) -> None:
    """Part 2, section 2.6.3: neither source nor target: refused with a detach; the session goes on."""
    session = begin()
    answer = session.attach(RECEIVER, name="nothing")
    assert answer.source is None
    found = session.peer.wait(Detach, handle=answer.handle)
    assert found.closed is True
    assert found.error is not None
    assert session.sender(address).outcome(data(b"x")) == Accepted()


@pytest.mark.rule("P14")
@pytest.mark.parametrize("role", [SENDER, RECEIVER])
@pytest.mark.parametrize("name", ["", "x" * 2000, "bell\x07", "$management", "line\nbreak"])
def test_an_impossible_address_is_refused(begin: Begin, role: bool, name: str) -> None:
    """Part 2, section 2.6.3: the answer's terminus is null, then detached with the error."""
    session = begin()
    source, target = (Source(), Target(address=name)) if role is SENDER else (Source(address=name), Target())
    answer = session.attach(role, source=source, target=target, initial_delivery_count=0)
    assert (answer.target if role is SENDER else answer.source) is None
    found = session.peer.wait(Detach, handle=answer.handle)
    assert found.error.condition in ("amqp:invalid-field", "amqp:not-found")
    assert session.control().declare()


@pytest.mark.rule("P14")
def test_dispositions_of_nothing_are_ignored(begin: Begin, address: str) -> None:
    """Part 2, section 2.7.6: deliveries that are settled already, or never were."""
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address)
    delivery = consumer.take()
    delivery.disposition(Accepted())
    delivery.disposition(Accepted())
    for first, last in ((0, None), (1000, 2000), (0xFFFFFFFF, 0xFFFFFFFF)):
        session.send(Disposition(role=RECEIVER, first=first, last=last, settled=True, state=Accepted()))
    assert consumer.drain() == []


# -- links that go in the middle


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
    sender.transfer(b"\x00\x53\x75", delivery_id=number, delivery_tag=b"part", state=state, more=True)
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
    """Part 2, section 2.6: what was sent and not decided comes back once, with one more attempt."""
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
