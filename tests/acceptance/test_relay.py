"""The anonymous relay while an address is looked up (rule P9; anonymous terminus 1.0)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fix_service import Service
from tests.fix_wire import Begin
from tests.wire.frames import Accepted, Close, Detach, End, Source, Target
from tests.wire.messages import Properties, data
from tests.wire.peer import Session
from tests.wire.queues import BROKEN, condition, post
from tests.wire.types import Symbol

#: longer than any name may be
_INVALID = "x" * 1100


@pytest.mark.rule("P9")
def test_many_behind_one_that_is_looked_up_are_refused(begin: Begin, address: str) -> None:
    """Each of them is answered, however many there are; the connection and the service go on."""
    session = begin()
    relay = session.sender(Target())
    with session.peer.at_once():
        first = relay.post(Properties(to=address).encoded() + data(b"x"))
        others = [relay.post(Properties(to=_INVALID).encoded() + data(b"x")) for _ in range(400)]
    assert relay.answer_to(first).state == Accepted()
    for number in others:
        assert condition(relay.answer_to(number).state) == "amqp:invalid-field"
    assert session.receiver(address).bodies() == [b"x"]


def _detach(session: Session, handle: int) -> None:
    session.send(Detach(handle=handle, closed=True))


def _end(session: Session, handle: int) -> None:
    session.send(End())


def _close(session: Session, handle: int) -> None:
    session.send(Close())


@pytest.mark.rule("P9")
@pytest.mark.parametrize("leave", [_detach, _end, _close])
def test_a_settled_message_outlives_its_link(begin: Begin, address: str, leave: Callable[[Session, int], None]) -> None:
    """Its address is not known yet when its link ends; what is in its way is refused by then."""
    session = begin()
    relay = session.sender(Target())
    names = [f"{address}-{number}" for number in range(3)]
    with session.peer.at_once():
        relay.post(Properties(to=f"{address}-first").encoded() + data(b"not settled"))
        for name in names:
            relay.post(Properties(to=name).encoded() + data(b"settled"), settled=True)
        leave(session, relay.handle)
    after = begin()
    for name in names:
        taken = after.receiver(name).take()
        assert taken.body == b"settled"
        taken.disposition(Accepted())


@pytest.mark.rule("P9", "T31")
def test_a_settled_message_in_a_transaction_outlives_its_session(begin: Begin, address: str, service: Service) -> None:
    """The session of the relay ends; the control link is on another, and its commit has the message."""
    session = begin()
    control = session.control()
    txn = control.declare()
    other = session.peer.begin()
    relay = other.sender(Target())
    with session.peer.at_once():
        relay.post(Properties(to=address).encoded() + data(b"settled"), settled=True, txn=txn)
        other.send(End())
    session.peer.wait(End)
    control.commit(txn)
    assert session.receiver(address).bodies() == [b"settled"]


@pytest.mark.rule("P9", "T13")
@pytest.mark.parametrize("settled", [True, False])
def test_what_the_look_up_found_is_not_for_the_next_message(begin: Begin, address: str, settled: bool) -> None:
    """Its transaction is rolled back while its address is looked up; the message behind it goes to its own."""
    session = begin()
    control = session.control()
    txn = control.declare()
    relay = session.sender(Target())
    with session.peer.at_once():
        relay.post(Properties(to=f"{address}-first").encoded() + data(b"rolled back"), settled=settled, txn=txn)
        behind = relay.post(Properties(to=address).encoded() + data(b"behind"))
        session.send(Detach(handle=control.handle, closed=True))
    assert relay.answer_to(behind).state == Accepted()
    assert session.receiver(address).bodies() == [b"behind"]
    assert session.receiver(f"{address}-first").bodies() == []


@pytest.mark.rule("P9")
@pytest.mark.parametrize("in_transaction", [False, True])
def test_what_cannot_be_forwarded_is_named_by_its_tag(begin: Begin, in_transaction: bool) -> None:
    """Anonymous terminus 1.0, section 2.2: the error's info has the delivery-tag."""
    session = begin()
    relay = session.sender(Target())
    txn = session.control().declare() if in_transaction else None
    number = relay.post(Properties(to=_INVALID).encoded() + data(b"x"), txn=txn, delivery_tag=b"the tag")
    state: Any = relay.answer_to(number).state
    rejected = state.outcome if in_transaction else state
    assert rejected.error.info == {Symbol("delivery-tag"): b"the tag"}


@pytest.mark.rule("P9")
def test_a_settled_message_that_cannot_be_forwarded_ends_the_link(begin: Begin, address: str) -> None:
    """The same: with the error, and the delivery-tag of that message."""
    session = begin()
    relay = session.sender(Target())
    relay.post(Properties(to=address).encoded() + data(b"x"), settled=True, delivery_tag=b"another")
    relay.post(Properties(to=_INVALID).encoded() + data(b"y"), settled=True, delivery_tag=b"the tag")
    relay.post(Properties(to=_INVALID).encoded() + data(b"z"), settled=True, delivery_tag=b"a later")
    error = relay.wait_detached().error
    assert error is not None
    assert error.condition == "amqp:invalid-field"
    assert error.info == {Symbol("delivery-tag"): b"the tag"}
    post(session, address, b"stored behind it")
    assert session.receiver(address).bodies() == [b"x", b"stored behind it"]


@pytest.mark.rule("P9")
def test_a_relay_whose_source_takes_no_rejected_is_detached(begin: Begin, address: str) -> None:
    """The same: with the error, and the delivery-tag."""
    session = begin()
    source = Source(outcomes=("amqp:accepted:list", "amqp:released:list"))
    relay = session.sender(Target(), source=source)
    assert relay.outcome(Properties(to=address).encoded() + data(b"x")) == Accepted()
    relay.post(Properties(to=_INVALID).encoded() + data(b"y"), delivery_tag=b"the tag")
    error = relay.wait_detached().error
    assert error is not None
    assert error.condition == "amqp:invalid-field"
    assert error.info == {Symbol("delivery-tag"): b"the tag"}
    assert session.receiver(address).bodies() == [b"x"]


@pytest.mark.rule("P9", "T23")
@pytest.mark.parametrize("properties", [{}, {Symbol("coordinator:on-refused-post"): "continue"}])
@pytest.mark.parametrize("on_relay", [True, False])
def test_a_source_that_takes_no_rejected_in_a_transaction(
    begin: Begin, address: str, on_relay: bool, properties: dict[Symbol, str]
) -> None:
    """Its link is detached with the error, and the transaction can only roll back."""
    session = begin()
    control = session.control()
    txn = control.declare()
    source = Source(outcomes=("amqp:accepted:list",))
    link = session.sender(Target() if on_relay else address, source=source, properties=properties or None)
    good, bad = Properties(to=address).encoded() + data(b"x"), Properties(to=_INVALID).encoded() + data(b"y")
    with session.peer.at_once():
        link.post(good, txn=txn, delivery_tag=b"a good one")
        link.post(bad if on_relay else BROKEN, txn=txn, delivery_tag=b"the tag")
        link.post(good, txn=txn, delivery_tag=b"a later one")
    error = link.wait_detached().error
    assert error is not None
    assert error.condition == ("amqp:invalid-field" if on_relay else "amqp:decode-error")
    assert error.info == ({Symbol("delivery-tag"): b"the tag"} if on_relay else None)
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    assert session.receiver(address).bodies() == []
