"""Limits, policies and idle times of a service whose settings make them small (part 2, 2.7; part 3, 3.2.1)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.fix_service import Service, running_service
from tests.fix_wire import Ask, Begin, Dial, decided
from tests.wire.frames import (
    AMQP_HEADER,
    RECEIVER,
    Accepted,
    Attach,
    Close,
    End,
    Modified,
    Open,
    Rejected,
    Released,
    Source,
    TransactionalState,
    Transfer,
    frame,
)
from tests.wire.frames import Begin as BeginFrame
from tests.wire.messages import Header, Properties, data
from tests.wire.queues import condition, dead_letters, post
from tests.wire.types import Symbol, Timestamp, UInt
from tests.workers import Worker

LARGEST = 100_000


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """One with small limits; ``letters-*`` keeps what expires, ``strict-*`` allows two failed deliveries."""
    settings = {
        "limits.max_message_size_bytes": str(LARGEST),
        "limits.max_frame_size_bytes": "4096",
        **dict.fromkeys(("limits.idle_timeout_seconds", "bounds.opening_seconds"), "4"),
        "bounds.channel_max": "3",
        "bounds.handle_max": "7",
        "bounds.links_per_connection": "12",
        "bounds.link_credit": "10",
        "bounds.unsettled_per_link": "20",
        "bounds.window_messages": "30",
        "bounds.window_bytes": "100000",
        "bounds.batch_messages": "20",
        "transaction.max_messages": "50",
        "transaction.max_bytes": "200000",
        "transaction.timeout_seconds": "5",
        "addresses.patterns": '[{"match": "letters-*", "on_expiry": "dead-letter"},'
        ' {"match": "strict-*", "max_attempts": 2}]',
    }
    with running_service(settings) as service:
        yield service


def gone(ask: Ask, address: str) -> None:
    """Wait until the address has no entries."""
    deadline = time.monotonic() + 60
    statement = """select count(*) from coordinator.entry e join coordinator.consumer_group g on g.id = e.group_id
                   join coordinator.address a on a.id = g.address_id where a.name = %s"""
    while ask(statement, address) != [(0,)]:
        assert time.monotonic() < deadline, f"{address} has entries still"
        time.sleep(0.05)


# -- sizes


@pytest.mark.rule("P2")
def test_the_limits_are_said(begin: Begin, address: str) -> None:
    """Part 2, sections 2.7.1 and 2.7.3: max-frame-size, channel-max, idle-time-out; max-message-size of a link."""
    session = begin()
    answer = session.peer.remote_open
    assert answer is not None
    assert (answer.max_frame_size, answer.channel_max) == (4096, 3)
    assert answer.idle_time_out is not None
    assert 0 < answer.idle_time_out <= 4000
    assert session.sender(address).answer.max_message_size == LARGEST


@pytest.mark.rule("P2")
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("transactional", [False, True])
def test_a_message_that_is_too_large(begin: Begin, address: str, ask: Ask, settled: bool, transactional: bool) -> None:
    """Part 2, section 2.8.17: the link is detached with amqp:link:message-size-exceeded, and nothing is stored."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare() if transactional else None
    sender.post(data(b"x" * LARGEST), settled=settled, txn=txn)
    assert sender.error == "amqp:link:message-size-exceeded"
    if txn is not None:
        assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    fits = data(b"x" * (LARGEST - 8))
    assert len(fits) == LARGEST
    assert session.sender(address).outcome(fits) == Accepted()
    assert session.receiver(address).bodies() == [b"x" * (LARGEST - 8)]


@pytest.mark.rule("P2", "P14")
def test_a_peer_that_goes_on_after_its_link_was_refused(service: Service, begin: Begin, address: str) -> None:
    """Part 2, section 2.6.5: what comes between our detach and the peer's is thrown away, however much it is."""
    session = begin()
    worker = Worker(service)
    sender = session.sender(address)
    number = session.next_delivery_id()
    for _ in range(10_000):  # 40 MB
        sender.transfer(b"x" * 4000, delivery_id=number, delivery_tag=b"t", message_format=0, more=True)
    assert sender.error == "amqp:link:message-size-exceeded"
    assert worker.peak < 16 << 20
    assert session.sender(address).outcome(data(b"x")) == Accepted()


@pytest.mark.rule("P2", "P14")
def test_a_frame_that_is_too_large(begin: Begin, address: str) -> None:
    """Part 2, sections 2.3.1 and 2.8.16: larger than the max-frame-size that was said: the connection is closed."""
    session, other = begin(), begin()
    sender = session.sender(address)
    sender.post(data(b"x" * 10_000), frame_size=9_000)
    assert session.peer.closed().condition == "amqp:connection:framing-error"
    assert other.receiver(address).bodies() == []


@pytest.mark.rule("P2")
def test_more_sessions_than_channel_max(begin: Begin) -> None:
    """Part 2, section 2.7.1: channels 0 to channel-max may be used, no others."""
    session = begin()
    for _ in range(3):
        session.peer.begin()
    begin_frame = BeginFrame(next_outgoing_id=0, incoming_window=1, outgoing_window=1)
    session.peer.send(begin_frame, channel=4)
    rest = [found.performative for found in session.peer.rest()]
    errors = [found.error for found in rest if isinstance(found, Close | End)]
    assert errors
    assert errors[0] is not None


@pytest.mark.rule("P2")
def test_more_links_than_handles(begin: Begin, address: str) -> None:
    """Part 2, section 2.7.2: handles 0 to handle-max of our begin; one above it closes the connection."""
    session = begin()
    assert session.remote.handle_max == 7
    assert [session.sender(address) for _ in range(8)][7].outcome(data(b"1")) == Accepted()
    session.send(Attach(name="one-too-many", handle=8, role=RECEIVER, source=Source(address=address)))
    assert session.peer.closed().condition == "amqp:connection:framing-error"
    assert begin().sender(address).outcome(data(b"3")) == Accepted()


@pytest.mark.rule("P2", "S4")
def test_more_links_than_a_connection_may_have(begin: Begin, address: str) -> None:
    """Over all its sessions. One too many is refused with the setting's name; one that goes makes room."""
    other = begin().peer.begin()
    senders = [each.sender(address) for each in (other, other.peer.begin()) for _ in range(6)]
    assert other.sender(address, name="one-too-many").error == "amqp:resource-limit-exceeded"
    assert senders[0].outcome(data(b"1")) == Accepted()
    for sender in senders[1:3]:  # the refused one has its handle still
        sender.detach()
    assert other.sender(address).outcome(data(b"2")) == Accepted()
    assert begin().sender(address).outcome(data(b"3")) == Accepted()


@pytest.mark.rule("P2", "P14")
def test_refused_links_that_are_never_detached(begin: Begin, address: str) -> None:
    """They count as a connection's links do; a peer that only makes more of them is closed."""
    session, other = begin(), begin()
    sessions = [session, *(session.peer.begin() for _ in range(3))]
    with suppress(OSError):
        for n in range(32):
            sessions[n // 8].send(Attach(name=f"{n}", handle=n % 8, role=RECEIVER, source=Source(address="$no")))
    assert session.peer.closed().condition == "amqp:resource-limit-exceeded"
    assert other.sender(address).outcome(data(b"x")) == Accepted()


@pytest.mark.rule("P5", "P14")
def test_more_transfers_than_credit(begin: Begin, address: str) -> None:
    """Part 2, section 2.6.7: 40 in one go for a credit of 10: the link ends with the first beyond it; others go on."""
    other, sender = begin(), begin().sender(address)
    transfers = [Transfer(handle=0, delivery_id=n, delivery_tag=b"%d" % n, message_format=0) for n in range(40)]
    sender.session.peer.send_octets(b"".join(frame(transfer, payload=data(b"x")) for transfer in transfers))
    assert sender.error == "amqp:link:transfer-limit-exceeded"
    assert len(other.receiver(address).bodies()) <= 11
    assert other.sender(address).outcome(data(b"x")) == Accepted()


@pytest.mark.rule("T22", "T23")
@pytest.mark.parametrize(("count", "size"), [(51, 1), (5, 50_000)])
def test_a_transaction_that_is_too_large(begin: Begin, address: str, count: int, size: int) -> None:
    """Part 4, section 4.4.4: the post beyond the limit is refused with the limit's name; the transaction rolls back."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    states = [sender.outcome(data(b"x" * size), txn=txn) for _ in range(count)]
    assert condition(states[-1].outcome) == "amqp:resource-limit-exceeded"
    assert "transaction.max_" in states[-1].outcome.error.description
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    assert session.receiver(address).bodies() == []


# -- windows


@pytest.mark.rule("P5")
def test_a_slow_consumer_holds_no_more_than_its_window(begin: Begin, address: str) -> None:
    """Part 2, section 2.6.7: unsettled deliveries are bounded, whatever the credit; settling lets more come."""
    session = begin()
    post(session, address, *(b"%d" % number for number in range(70)))
    consumer = session.receiver(address, credit=1000)
    deliveries = [consumer.take() for _ in range(20)]
    session.sync()
    assert not consumer.arrived
    while len(deliveries) < 70:
        deliveries[len(deliveries) - 20].disposition(Accepted())
        deliveries.append(consumer.take())
    assert [delivery.body for delivery in deliveries] == [b"%d" % number for number in range(70)]


@pytest.mark.rule("P5", "P19")
def test_what_does_not_fit_the_window_keeps_its_order(begin: Begin, address: str, ask: Ask) -> None:
    """What a queue does not hold in memory comes from the store, once, and in order of commit."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    waiting = session.receiver(address, credit=5)
    for start in range(0, 200, 40):
        txn = control.declare()
        for number in range(start, start + 40):
            sender.outcome(data(b"%d" % number + b"." * 2000), txn=txn)
        control.commit(txn)
    found = [waiting.take() for _ in range(5)]
    waiting.detach()
    assert [delivery.body.rstrip(b".") for delivery in found] == [b"%d" % number for number in range(5)]
    consumer = session.receiver(address, credit=300)
    for number in range(200):
        delivery = consumer.take()
        assert delivery.body.rstrip(b".") == b"%d" % number
        delivery.disposition(Accepted())
    gone(ask, address)


# -- idle


@pytest.mark.rule("P4")
def test_a_silent_peer_is_closed(begin: Begin, address: str, ask: Ask) -> None:
    """Part 2, section 2.4.5: silent for longer than our idle-time-out; its transactions roll back (T13)."""
    session = begin()
    control = session.control(properties={Symbol("coordinator:timeout-ms"): UInt(60_000)})
    txn = control.declare()
    session.sender(address).outcome(data(b"x"), txn=txn)
    assert session.peer.closed().condition == "amqp:resource-limit-exceeded"
    assert decided(ask, txn) == ("rollback", "link-lost")


@pytest.mark.rule("P4", "P14")
def test_peers_that_never_open_are_closed(dial: Dial) -> None:
    """Part 2, section 2.4.5: before an open too, whatever part of one they said."""
    silent, *begun = dial(), dial(), dial()
    for said, peer in zip((AMQP_HEADER, AMQP_HEADER + b"\x00\x00"), begun, strict=True):
        peer.send_octets(said)
    for peer in begun:
        assert peer.read_header() == AMQP_HEADER
    for peer in (silent, *begun):
        peer.rest()


@pytest.mark.rule("P4")
def test_empty_frames_keep_a_connection(begin: Begin) -> None:
    """Part 2, section 2.4.5: an empty frame is a sign of life; and ours come as the peer asks for."""
    session = begin(idle_time_out=400)
    peer = session.peer
    for _ in range(25):  # some 200 ms between them: longer, together, than our own four seconds
        frame = peer.read()
        assert frame.performative is None
        assert frame.channel == 0
        peer.send(None)
    assert session.control().declare()


@pytest.mark.rule("P4")
@pytest.mark.parametrize("idle", [1, 10, 99])
def test_an_impossible_idle_time_out_is_refused(dial: Dial, idle: int) -> None:
    """Part 2, section 2.4.5: closed with an error that says why."""
    peer = dial()
    peer.send_octets(AMQP_HEADER)
    assert peer.read_header() == AMQP_HEADER
    peer.send(Open(container_id="hasty", idle_time_out=idle))
    error = peer.closed()
    assert error.condition == "amqp:not-allowed"
    assert f"{idle} ms" in (error.description or "")


@pytest.mark.rule("T14")
def test_the_timeout_of_the_settings(begin: Begin, address: str, ask: Ask) -> None:
    """Part 4, section 4.5.8: where the link asks for no other."""
    session = begin(idle_time_out=0)
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"x"), txn=txn)
    deadline = time.monotonic() + 60
    while not ask("select 1 from coordinator.op where id = encode(%s, 'hex')::uuid", txn):
        session.peer.send(None)
        time.sleep(0.2)
        assert time.monotonic() < deadline
    refused = control.discharge(txn)
    assert condition(refused) == "amqp:transaction:timeout"
    assert "5 s" in refused.error.description


# -- counts and times


@pytest.mark.rule("P11")
@pytest.mark.parametrize("outcome", [Modified(delivery_failed=True), None])
def test_failed_too_often_is_a_dead_letter(begin: Begin, address: str, outcome: Any) -> None:
    """Part 3, section 3.4.5: after max-attempts failed deliveries; a link that is lost counts as one (``None``)."""
    name = f"strict-{address}"
    session = begin()
    post(session, name, b"x")
    for attempt in range(2):
        consumer = session.receiver(name)
        delivery = consumer.take()
        assert delivery.count == attempt
        if outcome is not None:
            delivery.disposition(outcome)
        consumer.detach()
    letter = dead_letters(session, name).take()
    assert letter.body == b"x"
    assert letter.message.annotations["x-opt-delivery-count"] == 2
    assert letter.message.annotations["x-opt-original-address"] == name
    assert session.receiver(name).drain() == []


@pytest.mark.rule("P11")
def test_a_dead_letter_stays_one(begin: Begin, address: str) -> None:
    """Rejected or failed among the dead letters: it is not lost, and goes nowhere else."""
    name = f"strict-{address}"
    session = begin()
    post(session, name, b"x")
    session.receiver(name).take().disposition(Rejected())
    letters = dead_letters(session, name)
    for _ in range(4):
        letters.take().disposition(Modified(delivery_failed=True))
    letters.take().disposition(Released())
    assert letters.take().body == b"x"


@pytest.mark.rule("P12")
@pytest.mark.parametrize("held", [False, True])
def test_an_expired_message_is_dropped_with_an_op(begin: Begin, address: str, ask: Ask, held: bool) -> None:
    """Part 3, section 3.2.1: ttl; whether it waits in the store, or in the window of a consumer without credit."""
    session = begin()
    sender = session.sender(address)
    consumer = session.receiver(address) if held else None
    if consumer is not None:
        consumer.drain(1)
    assert sender.outcome(Header(ttl=150).encoded() + data(b"short")) == Accepted()
    assert sender.outcome(Header(ttl=600_000).encoded() + data(b"long")) == Accepted()
    time.sleep(0.2)
    found = (consumer or session.receiver(address)).drain()
    assert [delivery.body for delivery in found] == [b"long"]
    assert 0 < (found[0].message.header.ttl or 0) <= 600_000
    found[0].disposition(Accepted())
    session.sync()
    gone(ask, address)
    statement = """select count(*) from coordinator.op o join coordinator.half h on h.id = any(o.half_ids)
                   join coordinator.address a on a.id = h.address_id where o.decision = 'expire' and a.name = %s"""
    assert ask(statement, address) == [(1,)]


@pytest.mark.rule("P12")
def test_an_expired_message_is_a_dead_letter_by_policy(begin: Begin, address: str) -> None:
    """Part 3, section 3.2.4: absolute-expiry-time in the past, on an address that keeps what expires."""
    name = f"letters-{address}"
    session = begin()
    past = Timestamp(int(time.time() * 1000) - 1000)
    message = Properties(message_id="m", absolute_expiry_time=past).encoded() + data(b"late")
    assert session.sender(name).outcome(message) == Accepted()
    assert session.receiver(name).drain() == []
    letter = dead_letters(session, name).take()
    assert letter.octets.endswith(message)
    assert letter.message.annotations["x-opt-last-error"] == "expired"


@pytest.mark.rule("P12", "T20")
def test_the_time_to_live_of_a_half_message(begin: Begin, address: str) -> None:
    """Part 3, section 3.2.1: expired before its transaction is committed: it is not delivered."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    state = sender.outcome(Header(ttl=50).encoded() + data(b"short"), txn=txn)
    assert state == TransactionalState(txn_id=txn, outcome=Accepted())
    sender.outcome(data(b"kept"), txn=txn)
    time.sleep(0.1)
    control.commit(txn)
    assert session.receiver(address).bodies() == [b"kept"]
