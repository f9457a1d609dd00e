"""Part 1, section 1.3.4: a descriptor is a number or a symbol, in performatives, states and termini."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fix_wire import Begin, Dial
from tests.wire import frames, types
from tests.wire.frames import (
    RECEIVER,
    Accepted,
    Disposition,
    Error,
    Modified,
    Record,
    Rejected,
    Source,
    State,
    Target,
    TransactionalState,
    Transfer,
)
from tests.wire.messages import data
from tests.wire.peer import Peer, Session
from tests.wire.queues import dead_letters, post
from tests.wire.types import Described, Symbol, UInt

_SIZES = [1, 7, 1 << 20]


def _symbols(value: Any) -> Any:
    """With the symbol for each number that is a descriptor."""
    if isinstance(value, Described):
        named = frames.name_of(value.descriptor)
        return Described(value.descriptor if named is None else Symbol(named), _symbols(value.value))
    return [_symbols(each) for each in value] if isinstance(value, list) else value


def _by_symbol(peer: Peer, patch: pytest.MonkeyPatch, piece: int = 1 << 20) -> None:
    """From now on the peer gives all its descriptors as symbols, and writes so many octets at once."""
    send, send_octets = peer.send, peer.send_octets

    def sent(performative: Any, **fields: Any) -> None:
        if isinstance(performative, Record):
            performative = types.encode(_symbols(performative.described()))
        send(performative, **fields)

    def cut(octets: bytes) -> None:
        for at in range(0, len(octets), piece):
            send_octets(octets[at : at + piece])

    patch.setattr(peer, "send", sent)
    patch.setattr(peer, "send_octets", cut)


@pytest.mark.rule("P14", "T8", "T26")
@pytest.mark.parametrize("piece", _SIZES)
def test_all_by_symbol(dial: Dial, address: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = dial()
    _by_symbol(peer, monkeypatch, piece)
    peer.open(max_frame_size=4096)
    session = peer.begin()
    control, sender, consumer = session.control(), session.sender(address), session.receiver(address)
    assert sender.outcome(data(b"plain")) == Accepted()
    txn = control.declare()
    assert sender.outcome(data(b"in it"), txn=txn) == TransactionalState(txn_id=txn, outcome=Accepted())
    assert sender.outcome(data(bytes(9000)), txn=txn, frame_size=500).outcome == Accepted()
    consumer.take().retire(txn, Accepted())
    control.commit(txn)
    found = [consumer.take() for _ in range(2)]
    assert [each.body for each in found] == [b"in it", bytes(9000)]
    for each in found:
        each.disposition(Accepted())
    session.flow(echo=True)
    while not session.flows:
        peer.step()
    assert session.flows[0].next_incoming_id == session.next_outgoing_id
    consumer.detach()
    assert session.receiver(address).drain() == []
    session.end()
    assert peer.close().error is None


@pytest.mark.rule("P11", "D4")
@pytest.mark.parametrize("numbered", [False, True])
def test_the_error_of_a_state_by_symbol(begin: Begin, address: str, numbered: bool) -> None:
    """Wherever the symbol stands: of the state, or of what is in it alone."""
    session = begin()
    post(session, address, b"x")
    delivery = session.receiver(address).take()
    rejected = Rejected(error=Error(condition="app:wrong", description="not mine"))
    state: Any = rejected.described()
    state.value[0] = _symbols(state.value[0])
    session.send(
        Disposition(role=RECEIVER, first=delivery.id, settled=True, state=state if numbered else _symbols(state))
    )
    letter = dead_letters(session, address).take()
    assert letter.message.annotations["x-opt-last-error"] == "app:wrong: not mine"


@pytest.mark.rule("P8")
def test_termini_by_symbol(begin: Begin, address: str) -> None:
    session = begin()
    target: Any = _symbols(Target(address=address).described())
    source: Any = _symbols(Source(address=address, distribution_mode="copy").described())
    assert session.sender(target).outcome(data(b"x")) == Accepted()
    browser = session.receiver(source)
    assert isinstance(browser.answer.source, Source)
    assert browser.answer.source.distribution_mode == "copy"
    assert [each.body for each in browser.drain()] == [b"x"]


def _disposition(session: Session, state: State, last: int) -> None:
    given = Disposition(role=RECEIVER, first=0, last=last, settled=False, state=state)
    session.peer.send(types.encode(_symbols(given.described())), channel=session.channel)


@pytest.mark.rule("P14", "S5")
def test_a_large_state_by_symbol_for_many_deliveries_is_refused(begin: Begin, address: str) -> None:
    """As one by number: the engine would copy it to each of them."""
    session = begin()
    session.receiver(address)
    annotations = {Symbol(f"x-opt-{number}"): UInt(number) for number in range(300)}
    _disposition(session, Modified(message_annotations=annotations), last=100_000)
    assert session.peer.closed().condition == "amqp:resource-limit-exceeded"


@pytest.mark.rule("P14")
def test_a_transfer_by_symbol_that_ends_its_link(begin: Begin, address: str) -> None:
    """It counts in its session, as by number: the next transfer is in order."""
    session = begin()
    ended, other = session.sender(address), session.sender(address)
    assert other.outcome(data(b"before")) == Accepted()
    without_tag = Transfer(handle=ended.handle, delivery_id=session.next_delivery_id(), message_format=0)
    session.peer.send(without_tag.encoded(symbolic=True), channel=session.channel, payload=data(b"x"))
    session.next_outgoing_id += 1
    assert ended.error == "amqp:invalid-field"
    assert other.outcome(data(b"behind")) == Accepted()
