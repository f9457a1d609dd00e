"""A session whose window is shut gets nothing, and holds nothing that another consumer waits for (part 2, 2.5.6;
rules D5, P19).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fix_service import Service
from tests.fix_wire import Begin
from tests.wire.links import Receiver
from tests.wire.messages import Properties, data
from tests.wire.peer import Session
from tests.wire.queues import post, select

_COUNT = 20
_BODIES = [b"%02d" % number for number in range(_COUNT)]


def any_of(session: Session, address: str) -> Receiver:
    return session.receiver(address)


def chosen(session: Session, address: str) -> Receiver:
    return select(session, address, "kind IS NULL")


ATTACHED = pytest.mark.parametrize("attached", [any_of, chosen])
Attached = Callable[[Session, str], Receiver]


def _shut(begin: Begin, address: str, attached: Attached, window: int = 0, **fields: Any) -> Receiver:
    """With credit for all that there is."""
    session = begin().peer.begin(incoming_window=window)
    receiver = attached(session, address)
    receiver.link_credit = _COUNT
    _opens(receiver, window, delivery_count=0, link_credit=_COUNT, handle=receiver.handle, **fields)
    return receiver


def _opens(receiver: Receiver, window: int, **fields: Any) -> None:
    receiver.session.flow(next_incoming_id=receiver.session.next_incoming_id, incoming_window=window, **fields)


@pytest.mark.rule("D5", "D6", "P18")
@pytest.mark.parametrize("kind", ["normal", "fifo"])
@pytest.mark.parametrize("window", [0, 3])
@ATTACHED
def test_what_it_does_not_let_through_is_for_others(
    service: Service, begin: Begin, address: str, kind: str, window: int, attached: Attached
) -> None:
    """All of it is a first delivery there."""
    if kind == "fifo" and attached is chosen:
        pytest.skip("selectors are not for fifo addresses")
    service.cli("address", "add", address, "--kind", kind)
    sender = begin().sender(address)
    for body in _BODIES:
        sender.outcome(Properties(group_id=body[-1:].decode()).encoded() + data(body))
    shut = _shut(begin, address, attached, window)
    assert len(shut.take_many(window)) == window
    found = begin().receiver(address).take_many(_COUNT - window) if kind == "normal" else []
    if kind == "fifo":  # of a message group, what comes behind one that is with a consumer waits
        found = begin().receiver(address).drain()
        assert len(found) == _COUNT - 2 * window
    assert [(each.count, each.message.header.first_acquirer) for each in found] == [(0, True)] * len(found)


@ATTACHED
@pytest.mark.rule("P19")
def test_it_gets_more_as_it_opens(begin: Begin, address: str, attached: Attached) -> None:
    """By flows of the session, without a handle."""
    post(begin(), address, *_BODIES)
    shut = _shut(begin, address, attached)
    found: list[object] = []
    for window in (1, 0, 3, 2, _COUNT):
        _opens(shut, window)
        found += [each.body for each in shut.take_many(min(window, _COUNT - len(found)))]
        shut.session.sync()
        assert not shut.arrived
    assert found == _BODIES


@pytest.mark.rule("P19")
def test_messages_of_several_frames(begin: Begin, address: str) -> None:
    """The window counts frames: what does not fit is for others, but for one message."""
    session = begin()
    sender = session.sender(address)
    for _ in range(10):
        sender.outcome(data(bytes(5000)))
    narrow = begin(max_frame_size=1024).peer.begin(incoming_window=10)
    narrow.receiver(address).credit(10)
    narrow.sync()
    assert len(begin().receiver(address).drain()) >= 10 - 3


@pytest.mark.rule("P5", "P18")
@pytest.mark.parametrize("kind", ["normal", "fifo"])
@ATTACHED
def test_a_drain_is_answered_where_there_is_nothing(
    service: Service, begin: Begin, address: str, kind: str, attached: Attached
) -> None:
    """Also of a queue with messages that others have."""
    if kind == "fifo" and attached is chosen:
        pytest.skip("selectors are not for fifo addresses")
    service.cli("address", "add", address, "--kind", kind)
    post(begin(), address, b"1")
    begin().receiver(address).take()
    shut = _shut(begin, address, attached, drain=True)
    while shut.link_credit:
        shut.session.peer.step()


@pytest.mark.rule("D5")
def test_nothing_fails_that_was_never_transferred(service: Service, begin: Begin, address: str) -> None:
    service.cli("address", "add", address, "--max-attempts", "1")
    post(begin(), address, *_BODIES)
    for _ in range(3):
        _shut(begin, address, any_of).session.peer.close_socket()
    found = begin().receiver(address).take_many(_COUNT)
    assert [(each.body, each.count, each.message.header.first_acquirer) for each in found] == [
        (body, 0, True) for body in _BODIES
    ]
