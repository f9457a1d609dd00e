"""Large messages, many of them at once: the service holds little of them in memory, both ways."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest

from store.codec.message import first_delivery
from tests.fix_night import by_night
from tests.fix_service import Service
from tests.fix_wire import Begin
from tests.wire.frames import (
    RECEIVER,
    Accepted,
    Discharge,
    Disposition,
    Modified,
    Rejected,
    Released,
    Source,
    State,
    TransactionalState,
)
from tests.wire.links import Delivery, Receiver, Sender
from tests.wire.messages import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, Header, data, section
from tests.wire.peer import Ended, Peer, Session
from tests.wire.queues import dead_letters, select
from tests.wire.types import Symbol, UInt
from tests.workers import Worker

MIB = 1 << 20
#: octets of a message that one frame carries
FRAME = 65_000
#: the header of a first delivery, where its poster has given none
_FIRST = first_delivery(data(b"")).removesuffix(data(b""))


@pytest.fixture
def worker(service: Service) -> Worker:
    return Worker(service)


def octets(size: int, seed: int = 0) -> bytes:
    """A message of ``size`` octets that no other resembles."""
    block = random.Random(seed).randbytes(65_537)
    return data((block * (size // len(block) + 1))[: size - 8])


def frames(
    sender: Sender, message: bytes, *, txn: bytes | None = None, settled: bool = False, tag: bytes = b"large"
) -> Iterator[int]:
    """Sends a message frame by frame, one for each step; the delivery's number."""
    number = sender.session.next_delivery_id()
    sender.delivery_count += 1
    sender.link_credit -= 1
    state = None if txn is None else TransactionalState(txn_id=txn)
    given: dict[str, Any] = {"delivery_tag": tag, "message_format": 0, "settled": settled, "state": state}
    for at in range(0, len(message), FRAME):
        more = at + FRAME < len(message)
        sender.transfer(message[at : at + FRAME], delivery_id=number, more=more, **given)
        given = {}
        yield number


def accepted(sender: Sender, number: int) -> None:
    assert sender.answer_to(number).state == Accepted()


def as_posted(delivery: Delivery) -> bytes:
    """Without the header that says that it is the first delivery."""
    return delivery.octets.removeprefix(_FIRST)


def taken(session: Session, address: str) -> list[bytes]:
    """Everything there is, accepted."""
    receiver = session.receiver(address)
    found = []
    while waiting := receiver.drain(1):
        waiting[0].disposition(Accepted())
        found.append(as_posted(waiting[0]))
    receiver.detach()
    return found


@pytest.mark.rule("P2", "P10")
def test_a_hundred_megabytes_both_ways(begin: Begin, address: str, worker: Worker) -> None:
    session = begin(max_frame_size=65_536)
    message = octets(100 * MIB)
    sender = session.sender(address)
    *_, number = frames(sender, message)
    accepted(sender, number)
    assert worker.peak < 16 * MIB
    assert taken(session, address) == [message]
    assert worker.files == 0
    assert worker.peak < 16 * MIB


@pytest.mark.rule("P2", "P5")
def test_many_large_ones_at_once(begin: Begin, address: str, worker: Worker) -> None:
    """Eight connections send 20 MB each, frame by frame in turn; no more than a piece of each is in memory."""
    messages = [octets(20 * MIB, seed) for seed in range(8)]
    senders = [begin().sender(address) for _ in messages]
    sending = [frames(sender, message) for sender, message in zip(senders, messages, strict=True)]
    numbers = list(zip(*sending, strict=True))[-1]
    for sender, number in zip(senders, numbers, strict=True):
        accepted(sender, number)
    assert worker.peak < 32 * MIB
    assert sorted(taken(begin(max_frame_size=65_536), address)) == sorted(messages)


@pytest.mark.rule("P2", "P5")
def test_many_that_are_begun_and_not_complete(begin: Begin, address: str, worker: Worker) -> None:
    """100 links with 900 kB each of a message that goes on: above a bound the rest is in files."""
    session = begin(max_frame_size=65_536)
    messages = [octets(900_000 + FRAME, seed) for seed in range(100)]
    senders = [session.sender(address) for _ in messages]
    sending = [frames(sender, message) for sender, message in zip(senders, messages, strict=True)]
    for each in sending:
        for _ in itertools.islice(each, 900_000 // FRAME):
            pass
    session.sync()
    assert worker.peak < 64 * MIB
    assert worker.files > 30
    for sender, each in zip(senders, sending, strict=True):
        *_, number = each
        accepted(sender, number)
    assert worker.files == 0
    assert taken(session, address) == messages


@pytest.mark.rule("T20", "T31", "P2")
def test_large_ones_in_a_transaction(begin: Begin, address: str, worker: Worker) -> None:
    """Large and small ones are posted in one transaction; they are not in memory while it is undecided."""
    session = begin(max_frame_size=65_536)
    control, sender = session.control(), session.sender(address)
    messages = [octets(size, size) for size in (100, 20 * MIB, 1000, MIB, MIB + 1, 30 * MIB, 10)]
    for fail in (True, False):
        txn = control.declare()
        for message in messages:
            *_, number = frames(sender, message, txn=txn)
            assert sender.answer_to(number).state == TransactionalState(txn_id=txn, outcome=Accepted())
        assert worker.peak < 16 * MIB
        assert worker.files == 3
        assert control.discharge(txn, fail=fail) == Accepted()
        assert worker.files == 0
        assert worker.peak < 16 * MIB
        assert taken(session, address) == ([] if fail else messages)


@pytest.mark.rule("P19", "P3")
@pytest.mark.parametrize("how", ["detach", "abort", "end", "socket"])
def test_nothing_is_left_of_a_large_one_that_was_given_up(begin: Begin, address: str, worker: Worker, how: str) -> None:
    session, other = begin(), begin()
    sender = session.sender(address)
    numbers = list(itertools.islice(frames(sender, octets(3 * MIB)), 20))
    session.sync()
    assert worker.files == 1
    if how == "detach":
        sender.detach()
    elif how == "abort":
        sender.transfer(b"", delivery_id=numbers[-1], aborted=True)
        assert sender.outcome(data(b"whole")) == Accepted()
    elif how == "end":
        session.end()
    else:
        session.peer.close_socket()
        other.peer.begin().sync()
    other.sync()
    assert worker.files == 0
    assert taken(other, address) == ([data(b"whole")] if how == "abort" else [])


@pytest.mark.rule("T8", "H4", "H13")
def test_killed_while_large_ones_are_written(service: Service, address: str) -> None:
    """Kill -9 while the store takes them: all of a transaction is there, or nothing; all, where it was acknowledged."""
    dice = random.Random(1)
    messages = [octets(10 * MIB, seed) for seed in range(2)]
    for number in range(4):
        name = f"{address}-{number}"
        worker = Worker(service)
        seen = len(service.log_lines())
        with _session(service) as session:
            control, sender = session.control(), session.sender(name)
            txn = control.declare()
            for message in messages:
                *_, posted = frames(sender, message, txn=txn)
                sender.answer_to(posted)
            asked = control.request(Discharge(txn_id=txn, fail=False))
            time.sleep(dice.uniform(0, 0.3))
            os.kill(worker.pid, signal.SIGKILL)
            with suppress(Ended):
                while True:
                    session.peer.step()
        acknowledged = bool(session.answers[asked])
        service.wait_for(lambda line: line.get("event") == "worker ready", since=seen)
        with _session(service) as session:
            found = taken(session, name)
        assert found == messages or (found == [] and not acknowledged), (acknowledged, [len(each) for each in found])


# -- going out


def posted(session: Session, address: str, *messages: bytes) -> None:
    sender = session.sender(address)
    for message in messages:
        *_, number = frames(sender, message)
        accepted(sender, number)
    sender.detach()


def begun(session: Session, receiver: Receiver, count: int) -> int:
    """Wait until so many frames of a delivery have come; its number."""
    while receiver._coming is None or len(receiver._coming.frames) < count:
        session.peer.step()
    return receiver._coming.id


def ended(session: Session, receiver: Receiver) -> None:
    """Wait until nothing more comes of the delivery that has begun."""
    while receiver._coming is not None:
        session.peer.step()


@pytest.mark.rule("P2", "P5")
def test_many_consumers_of_large_ones(begin: Begin, address: str, worker: Worker) -> None:
    """Eight connections take 20 MB each at once; each costs a piece."""
    messages = [octets(20 * MIB, seed) for seed in range(8)]
    posted(begin(), address, *messages)
    sessions = [begin(max_frame_size=65_536) for _ in messages]
    receivers = [session.receiver(address, credit=1) for session in sessions]
    for session, receiver in zip(sessions, receivers, strict=True):
        begun(session, receiver, 1)
    found = [receiver.take() for receiver in receivers]
    assert sorted(map(as_posted, found)) == sorted(messages)
    assert worker.peak < 32 * MIB


@pytest.mark.rule("P19", "D5")
@pytest.mark.parametrize("how", ["detach", "end", "socket"])
@pytest.mark.parametrize("snd_settle_mode", [0, by_night(1)])
def test_a_large_one_cut_off_comes_whole_to_the_next(
    begin: Begin, address: str, how: str, snd_settle_mode: int
) -> None:
    """Half of it was sent, the window closed: it counts as a failed delivery, settled or not."""
    session = begin()
    posted(session, address, octets(2 * MIB), data(b"next"))
    other = begin(max_frame_size=65_536)
    narrow = other.peer.begin(incoming_window=10)
    consumer = narrow.receiver(address, credit=2, snd_settle_mode=snd_settle_mode)
    begun(other, consumer, 10)
    assert other.control().declare()  # another session goes on
    if how == "detach":
        consumer.detach()
    elif how == "end":
        narrow.end()
    else:
        other.peer.close_socket()
    found = session.receiver(address, credit=2).take_many(2)
    assert [delivery.count for delivery in found] == [1, 0]
    assert found[0].octets.endswith(octets(2 * MIB))
    assert found[1].body == b"next"


@pytest.mark.rule("P11", "P19")
@pytest.mark.parametrize("outcome", [Accepted(), Released(), Modified(delivery_failed=True)])
def test_a_large_one_decided_before_it_is_complete(begin: Begin, address: str, outcome: State) -> None:
    """The rest is not sent; the outcome holds, and the link goes on (part 2, section 2.6.14)."""
    session = begin(max_frame_size=65_536)
    posted(session, address, octets(2 * MIB))
    narrow = session.peer.begin(incoming_window=10)
    consumer = narrow.receiver(address, credit=1)
    number = begun(session, consumer, 10)
    narrow.send(Disposition(role=RECEIVER, first=number, settled=True, state=outcome))
    narrow.control().detach()  # it was heard
    posted(session, f"{address}-other", data(b"x"))  # and is durable
    narrow.incoming_window = 1000
    narrow.flow()
    ended(session, consumer)
    assert not consumer.arrived  # aborted
    assert not consumer.detached
    if outcome != Accepted():
        again = consumer.take()
        assert again.octets.endswith(octets(2 * MIB))
        assert again.count == (1 if isinstance(outcome, Modified) else 0)
        again.disposition(Accepted())
    assert session.sender(address).outcome(data(b"next")) == Accepted()
    assert consumer.take().body == b"next"


@pytest.mark.rule("P10", "P11", "D6")
def test_what_a_large_one_says_of_itself(begin: Begin, address: str) -> None:
    """Counts and annotations are put in; sections larger than what is read of a message at first too."""
    session = begin(max_frame_size=65_536)
    annotations = Symbol("x-opt-large")
    front = Header(ttl=600_000).encoded() + section(MESSAGE_ANNOTATIONS, {annotations: "a" * 300_000})
    bare = octets(2 * MIB)
    posted(session, address, front + bare)
    consumer = session.receiver(address)
    for count in range(3):
        delivery = consumer.take()
        assert delivery.count == count
        assert delivery.octets.endswith(bare)
        assert 0 < (delivery.message.header.ttl or 0) <= 600_000
        found = delivery.message.annotations
        assert found[annotations] == "a" * 300_000
        assert found.get("x-opt-count") == (count or None)
        added = {Symbol("x-opt-count"): UInt(count + 1)}
        delivery.disposition(Modified(delivery_failed=True, message_annotations=added))


@pytest.mark.rule("P16", "P8")
def test_large_ones_are_chosen_and_looked_at(begin: Begin, address: str) -> None:
    session = begin(max_frame_size=65_536)
    messages = [section(APPLICATION_PROPERTIES, {"n": UInt(n)}) + octets(2 * MIB, n) for n in range(3)]
    posted(session, address, *messages)
    browser = session.receiver(Source(address=address, distribution_mode="copy"))
    assert [as_posted(each) for each in browser.drain()] == messages
    consumer = select(session, address, "n = 1")
    found = consumer.drain()
    assert [as_posted(each) for each in found] == messages[1:2]
    found[0].disposition(Accepted())
    assert taken(session, address) == [messages[0], messages[2]]


@pytest.mark.rule("P17", "P5")
def test_large_ones_keep_their_place(begin: Begin, address: str) -> None:
    """Small ones that may go out at once do not overtake a large one that is read from the store."""
    session = begin(max_frame_size=65_536)
    consumer = session.receiver(address, credit=100)
    control, sender = session.control(), session.sender(address)
    messages = [data(b"1"), octets(2 * MIB), data(b"2"), octets(3 * MIB), data(b"3")]
    for _ in range(2):
        txn = control.declare()
        for message in messages:
            *_, number = frames(sender, message, txn=txn)
            sender.answer_to(number)
        control.commit(txn)
    assert [as_posted(consumer.take()) for _ in range(10)] == messages * 2


# -- many links


@pytest.mark.rule("P2", "P14")
@pytest.mark.parametrize("sessions", [1, 10])
def test_a_thousand_links_on_a_connection(begin: Begin, address: str, worker: Worker, sessions: int) -> None:
    """Half of them send and half receive; their memory is free for the next thousand."""
    all_sessions = [begin()]
    all_sessions += [all_sessions[0].peer.begin() for _ in range(sessions - 1)]
    peaks = []
    for _ in range(3):
        each = list(itertools.islice(itertools.cycle(all_sessions), 500))
        senders = [session.sender(address) for session in each]
        receivers = [session.receiver(address, credit=1) for session in each]
        numbers = [sender.post(data(b"x")) for sender in senders]
        for sender, number in zip(senders, numbers, strict=True):
            accepted(sender, number)
        for receiver in receivers:
            receiver.take().disposition(Accepted())
        for link in (*senders, *receivers):
            link.detach()
        peaks.append(worker.peak)
    assert max(peaks) < 16 * MIB
    assert peaks[2] - peaks[0] < 2 * MIB, peaks


@contextmanager
def _session(service: Service) -> Iterator[Session]:
    peer = Peer(service.port)
    peer.open(max_frame_size=65_536)
    with closing(peer.socket):
        yield peer.begin()


@pytest.mark.rule("D4", "P2")
def test_a_large_one_is_buried_where_it_lies(begin: Begin, address: str, worker: Worker) -> None:
    """Neither the message nor its letter is in the service's memory; what is before the bare message may be long."""
    session = begin(max_frame_size=65_536)
    sender = session.sender(address)
    own = {Symbol("x-opt-own"): bytes(100_000)}
    bare = octets(60 * MIB)
    *_, number = frames(sender, Header(durable=True, priority=7).encoded() + section(MESSAGE_ANNOTATIONS, own) + bare)
    accepted(sender, number)
    consumer = session.receiver(address)
    marked = {Symbol("x-opt-mark"): "seen"}
    consumer.take().disposition(Modified(message_annotations=marked))
    again = consumer.take()
    assert worker.peak < 16 * MIB
    again.disposition(Rejected())
    found = dead_letters(session, address).take()
    assert worker.peak < 16 * MIB
    assert found.octets.endswith(bare)
    assert found.message.header.priority == 7
    annotations = found.message.annotations
    assert annotations.items() >= (own | marked).items()
    assert annotations["x-opt-original-address"] == address
    assert annotations["x-opt-last-error"] == "rejected"
