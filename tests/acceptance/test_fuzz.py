"""The wire under fuzzing, in short (rules S6, P14); ``make fuzz`` is the long form. And what it found, one by one."""

from __future__ import annotations

from random import SystemRandom
from typing import Any

import pytest

from tests.fix_night import by_night
from tests.fix_service import PATIENCE, Service
from tests.fix_wire import Ask, Begin, Dial
from tests.fuzz.run import Run, cases, watched_service
from tests.wire.frames import (
    AMQP_HEADER,
    SASL,
    SASL_HEADER,
    SENDER,
    Accepted,
    Attach,
    Close,
    Coordinator,
    Detach,
    Disposition,
    End,
    Modified,
    Open,
    Rejected,
    Released,
    SaslInit,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    Transfer,
    frame,
)
from tests.wire.frames import Begin as BeginFrame
from tests.wire.messages import Header, data
from tests.wire.types import Char, Raw, Symbol, UInt, ULong, encode

_WARM_UP = 5_000


@pytest.mark.rule("S6", "P14")
@pytest.mark.parametrize(
    ("seeds", "frames"), [([None], 4_000), by_night([1, None], 10_000)], ids=["of this run", "fixed, and of this run"]
)
def test_fuzzed_bytes_harm_only_their_sender(seeds: list[int | None], frames: int) -> None:
    """A fixed seed, then one of this run: no crash, no hang, nothing left, and a client beside loses nothing.

    What hangs is not told by the clock of a busy machine: see ``tests/fuzz/driver.py``.
    """
    drawn = [SystemRandom().getrandbits(32) if seed is None else seed for seed in seeds]
    print(f"seeds {drawn}")  # noqa: T201 (shown where it fails)
    with watched_service() as service:
        for seed in drawn:
            report = Run(service, seed, bound=PATIENCE / 4).play(cases(seed), frames, _WARM_UP)
            assert not report.failures, "\n".join(report.failures)
            assert report.total >= _WARM_UP + frames
            assert report.rounds > 0


# -- what was found


@pytest.mark.rule("S6", "P14")
@pytest.mark.parametrize(
    "octets",
    [
        pytest.param(SASL_HEADER + frame(SaslResponse(response=b"x"), kind=SASL), id="a response to no challenge"),
        pytest.param(SASL_HEADER + frame(Open(container_id="early")), id="an open in the SASL layer"),
        pytest.param(SASL_HEADER + frame(b"\x00\x53\x41\x40", kind=SASL), id="an init that is no list"),
        pytest.param(SASL_HEADER + b"\x00\x00\x00\x10\x05\x01\x00\x00", id="an offset beyond the octets"),
    ],
)
def test_in_the_sasl_layer_there_is_one_init_and_nothing_else(dial: Dial, octets: bytes) -> None:
    """Part 5, section 5.3.2. The first of these ended the worker."""
    peer = dial()
    peer.send_octets(octets)
    assert peer.read_header() == SASL_HEADER
    assert [type(found.performative).__name__ for found in peer.rest()] == ["SaslMechanisms"]


@pytest.mark.rule("S6", "P14")
@pytest.mark.parametrize("kind", [SaslInit(mechanism="ANONYMOUS"), SaslResponse(response=b""), SaslOutcome(code=0)])
def test_sasl_frames_behind_the_sasl_layer(dial: Dial, kind: SaslInit | SaslResponse | SaslOutcome) -> None:
    for sasl in (False, True):
        peer = dial()
        peer.open(sasl=sasl)
        peer.send(kind, kind=SASL)
        assert peer.closed().condition


@pytest.mark.rule("S6", "P1")
def test_the_sasl_layer_octet_by_octet(dial: Dial) -> None:
    peer = dial()
    for octet in SASL_HEADER + frame(SaslInit(mechanism="ANONYMOUS"), kind=SASL) + AMQP_HEADER:
        peer.send_octets(bytes((octet,)))
    assert peer.read_header() == SASL_HEADER
    peer.read()
    outcome = peer.read().performative
    assert isinstance(outcome, SaslOutcome)
    assert outcome.code == 0
    assert peer.read_header() == AMQP_HEADER


_UNREADABLE = [
    pytest.param({b"binary": 1}, None, id="a binary as a key"),
    pytest.param({Symbol("x"): Raw(b"\xa1\x02\xff\xfe")}, "amqp:decode-error", id="no UTF-8"),
    pytest.param({Symbol("x"): Char(0x110000)}, None, id="no character"),
    pytest.param({Symbol("x"): Raw(b"\x56\x02")}, None, id="no boolean"),
]


@pytest.mark.rule("S6", "P14")
@pytest.mark.parametrize(("properties", "condition"), _UNREADABLE)
@pytest.mark.parametrize("target", [Target(address="fuzz-properties"), by_night(Target()), by_night(Coordinator())])
def test_properties_of_an_attach_that_cannot_be_read(
    begin: Begin, properties: dict[object, object], condition: str | None, target: Target | Coordinator
) -> None:
    """What Proton cannot decode is refused; what the service does not read does no harm, and the link is there."""
    session = begin()
    properties = {key: UInt(value) if type(value) is int else value for key, value in properties.items()}
    session.peer.send(
        Attach(name="odd", handle=0, role=SENDER, source=Source(), target=target, properties=properties,
               initial_delivery_count=0)
    )  # fmt: skip
    answer = session.peer.wait(Attach, name="odd")
    refused = session.peer.wait(Detach).error.condition if answer.target is None else None
    assert refused == condition
    assert begin().control().declare()


@pytest.mark.rule("S6", "P14")
def test_outcomes_that_cannot_be_read(begin: Begin) -> None:
    """What Proton has half read is not sent back: it takes the error of its encoder for a size."""
    names = (b"amqp:accepted:list", b"amqp:rejected:list", b"amqp:released:list", b"amqp:modified:list")
    elements = b"".join(bytes((len(name),)) + name for name in names)
    # the first says that it has one octet, so that the others begin anywhere
    outcomes: Any = Raw(b"\xe0" + bytes((len(elements) + 2,)) + b"\x04\xa3\x01" + elements[1:])
    peer = begin().peer
    peer.send(
        Attach(name="odd", handle=0, role=SENDER, source=Source(outcomes=outcomes), target=Coordinator(),
               initial_delivery_count=0)
    )  # fmt: skip
    assert peer.wait(Detach).error.condition == "amqp:decode-error"
    assert begin().control().declare()


@pytest.mark.rule("S6", "P10")
@pytest.mark.parametrize(("field", "value"), [("priority", "high"), ("ttl", ULong((1 << 64) - 1))])
def test_a_header_of_wrong_types_is_refused(begin: Begin, address: str, field: str, value: object) -> None:
    """Once taken, it ended each worker that wrote it anew for a second delivery, or failed its batch."""
    wrong: dict[str, Any] = {field: Raw(encode(value))}
    state = begin().sender(address).outcome(Header(**wrong).encoded() + data(b"x"))
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.condition == "amqp:decode-error"


@pytest.mark.rule("S6", "P11")
@pytest.mark.parametrize(
    "annotations", [Raw(encode("text")), Raw(encode([1 > 0])), Raw(b"\xd1\x00\x00\x00\x04\0\0\0\1")]
)
@pytest.mark.parametrize("transactional", [False, True])
def test_annotations_of_modified_that_are_no_map(
    begin: Begin, address: str, annotations: Raw, transactional: bool
) -> None:
    """They are left out, or the link is refused: kept as they were, they ended the worker at the next delivery."""
    session, other = begin(), begin()
    assert session.sender(address).outcome(data(b"x")) == Accepted()
    delivery = session.receiver(address).take()
    outcome = Modified(delivery_failed=True, message_annotations=annotations)  # type: ignore[arg-type]
    if transactional:
        control = session.control()
        txn = control.declare()
        delivery.retire(txn, outcome)
        control.discharge(txn)
    else:
        delivery.disposition(outcome)
    session.peer.close_socket()
    again = other.receiver(address).take()
    assert again.body == b"x"
    assert Symbol("text") not in again.message.annotations


@pytest.mark.rule("S6", "P14", "P6")
@pytest.mark.parametrize("txn", [False, True])
def test_a_sender_that_settles_before_it_is_answered(begin: Begin, address: str, ask: Ask, txn: bool) -> None:
    """Part 2, section 2.6.12: the delivery is on its way to the store. That it is settled then ended the worker."""
    session = begin()
    control = session.control()
    sender = session.sender(address, rcv_settle_mode=1)
    for number in range(100):
        each = control.declare() if txn else None
        first = sender.post(data(b"%d" % number), txn=each)
        session.send(Disposition(role=SENDER, first=first, settled=True))
        if each is not None:
            assert control.discharge(each) == Accepted()
    session.sync()
    receiver = session.receiver(address)
    assert [each.body for each in receiver.take_many(100)] == [b"%d" % number for number in range(100)]


@pytest.mark.rule("S6", "P14", "P5")
def test_a_transfer_before_the_attach_is_answered(begin: Begin, address: str) -> None:
    """Part 2, section 2.6.7: there is no credit yet. What was taken so was answered for another delivery."""
    session = begin()
    peer = session.peer
    peer.send_octets(
        frame(Attach(name="hasty", handle=0, role=SENDER, source=Source(), target=Target(address=address),
                     initial_delivery_count=0))
        + b"".join(
            frame(Transfer(handle=0, delivery_id=number, delivery_tag=b"%d" % number), payload=data(b"%d" % number))
            for number in range(3)
        )
    )  # fmt: skip
    assert peer.wait(Detach).error.condition == "amqp:link:transfer-limit-exceeded"
    assert begin().receiver(address).bodies() == []


@pytest.mark.rule("S6", "P14")
@pytest.mark.parametrize("mode", ["move", "copy"])
def test_a_transfer_from_a_receiver(begin: Begin, address: str, mode: str) -> None:
    """Part 2, section 2.6.1: messages go one way on a link. The session ends."""
    session = begin()
    receiver = session.receiver(Source(address=address, distribution_mode=mode))
    session.send(Transfer(handle=receiver.handle, delivery_id=0, delivery_tag=b"x"), payload=data(b"x"))
    assert session.peer.wait(End).error.condition == "amqp:not-allowed"


@pytest.mark.rule("S6", "P14")
def test_transfers_on_a_refused_link_are_let_go(begin: Begin, address: str) -> None:
    """The link ends before its sender knows. What it sends meanwhile is neither taken nor kept."""
    session = begin()
    sender = session.sender(address)
    sender.post(b"no message", settled=True)  # refused with the link
    numbers = [sender.post(data(b"%d" % number)) for number in range(5)]
    session.sync()  # the detach is not answered before: with the link its deliveries are forgotten
    assert [answer.state for number in numbers for answer in session.answers[number]] == [Released()] * 5
    assert sender.error == "amqp:decode-error"
    assert begin().receiver(address).bodies() == []


@pytest.mark.rule("S6", "S7")
def test_the_engine_writes_no_lines_of_its_own(dial: Dial, service: Service) -> None:
    """What Proton has to say goes through the log."""
    since = len(service.log_lines())
    peer = dial()
    peer.send_octets(AMQP_HEADER + frame(Open(container_id="small", max_frame_size=UInt(3))))
    service.wait_for(lambda line: line.get("event") == "the engine says", since=since)
    assert not [line for line in service.log_lines()[since:] if "text" in line]


@pytest.mark.rule("S6", "T4")
def test_a_large_body_on_the_control_link_is_refused_unread(begin: Begin) -> None:
    session = begin()
    control = session.control()
    control.request(b"\x00\x53\x77\xb0\x00\x10\x00\x00" + bytes(1 << 20))
    assert control.error == "amqp:link:message-size-exceeded"
    assert session.control().declare()


@pytest.mark.rule("S6", "P8", "P17")
def test_a_browser_that_is_told_news_while_it_asks(begin: Begin, address: str) -> None:
    """A browser of messages of high priority must begin anew: behind the last that it has seen there are none."""
    session = begin()
    sender = session.sender(address)
    browser = session.receiver(Source(address=address, distribution_mode="copy"))
    message = Header(priority=9).encoded() + data(b"x")
    for _ in range(30):
        browser.credit(10)
        for _ in range(3):
            sender.post(message)
            session.flow(handle=browser.handle, delivery_count=browser.delivery_count, link_credit=browser.link_credit)
            session.flow(
                handle=browser.handle,
                delivery_count=browser.delivery_count,
                link_credit=browser.link_credit,
                drain=True,
            )
        session.sync()
        while browser.link_credit:
            session.peer.step()
        browser.arrived.clear()
    assert len(begin().receiver(address).bodies()) == 90


@pytest.mark.rule("S6", "P14")
@pytest.mark.parametrize("ended", [False, True])
def test_a_begin_that_answers_the_peers_own(begin: Begin, address: str, ended: bool) -> None:
    """Part 2, section 2.7.2: a remote-channel is of a begin of ours. Proton takes both for one session."""
    session = begin()
    session.sender(address)
    window = 1 << 20
    again = BeginFrame(
        remote_channel=session.remote_channel, next_outgoing_id=0, incoming_window=window, outgoing_window=window
    )
    attach = Attach(name="late", handle=0, role=SENDER, source=Source(), target=Target(), initial_delivery_count=0)
    if ended:
        session.peer.send_octets(frame(End()) + frame(again, channel=5))
    else:
        session.peer.send_octets(frame(again, channel=5) + frame(End(), channel=5) + frame(attach))
    assert session.peer.closed().condition == "amqp:not-allowed"


@pytest.mark.rule("S6", "P14", "P15")
def test_what_is_said_behind_a_close_is_not_heard(dial: Dial, begin: Begin) -> None:
    """Part 2, section 2.7.9. The session waited for the answer to the open, and was not known to its attach."""
    peer = dial()
    peer.send_octets(
        AMQP_HEADER
        + frame(Open(container_id="hasty", desired_capabilities=("sole-connection-for-container",)))
        + frame(BeginFrame(next_outgoing_id=0, incoming_window=100, outgoing_window=100))
        + frame(Close())
        + frame(Attach(name="late", handle=0, role=SENDER, source=Source(), target=Target(), initial_delivery_count=0))
    )
    peer.socket.shutdown(1)
    peer.read_header()
    assert not any(isinstance(found.performative, Attach) for found in peer.rest())
    assert begin().control().declare()
