"""The steps of the hot path (``links/steps.py``) do the same in C and in Python, with an engine behind them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from links import engine, steps
from tests.fix_night import by_night
from tests.steps_engine import MOST, WINDOWS, Engine, Link
from tests.wire import types
from tests.wire.frames import (
    RECEIVER,
    SENDER,
    Accepted,
    Disposition,
    Flow,
    State,
    TransactionalState,
    Transfer,
    frame,
)

_STEPS = ("drain", "said", "answer", "end", "send_whole")
_TXN_ID = b"0123456789abcdef"
_FIELDS = b"\xc0\x17\x02\xa0\x10" + _TXN_ID + b"\x00\x53\x24\x45"
#: octets of a message in one frame
_PIECE = 4000
_FLOW = frame(Flow(**WINDOWS, handle=1, delivery_count=0, link_credit=9))


@pytest.fixture(params=["compiled", by_night("in Python")])
def form(request: pytest.FixtureRequest) -> Any:
    """The steps, by their names."""
    if request.param == "compiled":
        return request.getfixturevalue("compiled_part")["links._steps"]
    return SimpleNamespace(
        window=engine.session_window, **{name: getattr(steps, f"_{name}_in_python") for name in _STEPS}
    )


@pytest.fixture
def peer(form: Any) -> Engine:
    found = Engine(form)
    found.written()
    return found


def _transfer(octets: bytes = b"", number: int = 0, **more: Any) -> bytes:
    given = {"delivery_id": number, "delivery_tag": b"%d" % number, "message_format": 0, **more}
    return frame(Transfer(handle=0, **given), payload=octets)


@pytest.mark.day
def test_events_come_one_by_one_to_their_links(peer: Engine) -> None:
    peer.hear(_transfer(b"a") + _FLOW + _transfer(b"b", 1))
    assert [each[:2] for each in peer.came] == [
        ("complete", peer.posting),
        ("on_flow", peer.taking),
        ("complete", peer.posting),
    ]
    assert [engine.tag_of(peer.came[place][2]) for place in (0, 2)] == [b"0", b"1"]


def test_those_of_links_that_are_no_more_come_back(peer: Engine) -> None:
    peer.links.clear()
    peer.hear(_transfer(b"a") + _FLOW + _transfer(b"b", 1))
    kinds = (engine.DELIVERY, engine.LINK_FLOW, engine.DELIVERY)
    assert peer.came == [("no link", kind) for kind in kinds]


class Broken(Link):
    def complete(self, delivery: Any, *message: object) -> bool | None:
        super().complete(delivery, *message)
        raise ArithmeticError

    def on_delivery(self, delivery: Any) -> bool | None:
        super().on_delivery(delivery)
        raise ArithmeticError

    def on_flow(self) -> None:
        super().on_flow()
        raise ArithmeticError


@pytest.mark.parametrize(
    ("octets", "expected"),
    [(_transfer(b"a"), "complete"), (_transfer(b"a", more=True), "on_delivery"), (_FLOW, "on_flow")],
    ids=["complete", "on_delivery", "on_flow"],
)
def test_what_raises_stays_on_top(peer: Engine, octets: bytes, expected: str) -> None:
    """So that it is known which connection's it was; and is not handled again."""
    for pointer in peer.links:
        peer.links[pointer] = Broken(peer, pointer)
    with pytest.raises(ArithmeticError):
        peer.hear(octets)
    assert engine.event_type(engine.collector_peek(peer.events)) in (engine.DELIVERY, engine.LINK_FLOW)
    peer.drain(pops=True)
    assert [each[0] for each in peer.came] == [expected]


@pytest.mark.parametrize(
    ("octets", "of_messages", "of_others", "expected"),
    [
        (_transfer(b"a"), True, False, True),
        (_transfer(b"a"), False, True, False),
        (_transfer(b"a"), None, True, False),
        (_transfer(b"a", more=True), False, True, True),
        (_transfer(b"a", more=True), True, None, False),
        (_transfer(b"a") + _transfer(b"b", 1, more=True), True, True, True),
        (_transfer(b"a") + _transfer(b"b", 1, more=True), True, False, False),
        (_transfer(b"a") + _transfer(b"b", 1, more=True), False, True, False),
        (_transfer(b"a") + _FLOW, True, True, True),
        (_FLOW, True, True, False),
        (frame(None), True, True, False),
    ],
)
def test_whether_links_ask_for_all_that_is_to_be_written(
    peer: Engine, octets: bytes, of_messages: bool | None, of_others: bool | None, expected: bool
) -> None:
    peer.says = of_messages, of_others
    peer.hear(octets)
    assert peer.quiet == [expected]


class Ending(Link):
    """Ends with what it is given: by the time the next is handled, there is no such link."""

    def complete(self, delivery: Any, *message: object) -> bool | None:
        super().complete(delivery, *message)
        del self._peer.links[self._pointer]
        return None


def test_a_link_may_end_in_what_it_does(peer: Engine) -> None:
    peer.links[peer.posting] = Ending(peer, peer.posting)
    peer.hear(_transfer(b"a") + _transfer(b"b", 1))
    assert [each[0] for each in peer.came] == ["complete", "no link"]


@pytest.mark.parametrize(
    ("octets", "more", "expected"),
    [
        (b"x", {}, (b"x", 0, False, None)),
        (b"", {}, (b"", 0, False, None)),
        (bytes(MOST), {"settled": True}, (bytes(MOST), 0, True, None)),
        (b"x", {"state": Accepted()}, (b"x", engine.ACCEPTED, False, None)),
        (b"x", {"state": TransactionalState(txn_id=_TXN_ID)}, (b"x", engine.TRANSACTIONAL, False, _TXN_ID)),
        (
            b"x",
            {"state": TransactionalState(txn_id=_TXN_ID, outcome=Accepted()), "settled": True},
            (b"x", engine.TRANSACTIONAL, True, _TXN_ID),
        ),
        (b"x", {"state": TransactionalState(txn_id=b"short")}, (b"x", engine.TRANSACTIONAL, False, None)),
        (b"x", {"state": TransactionalState(txn_id=bytes(17))}, (b"x", engine.TRANSACTIONAL, False, None)),
        (b"x", {"state": TransactionalState(txn_id=types.Raw(b"\x40"))}, (b"x", engine.TRANSACTIONAL, False, None)),
        (
            b"x",
            {"state": TransactionalState(txn_id=types.Raw(b"\xb0\x00\x00\x02\x00" + bytes(512)))},
            (b"x", engine.TRANSACTIONAL, False, None),
        ),
    ],
)
def test_a_message_that_is_whole_is_taken(peer: Engine, octets: bytes, more: dict[str, Any], expected: object) -> None:
    peer.hear(_transfer(octets, **more) + _transfer(b"next", 1))
    assert [each[3] for each in peer.came] == [expected, (b"next", 0, False, None)]


@pytest.mark.parametrize(
    "frames",
    [
        _transfer(bytes(MOST + 1)),
        _transfer(b"x", more=True),
        _transfer(b"x", more=True) + _transfer(aborted=True),
    ],
    ids=["larger than the link takes", "not complete", "aborted"],
)
def test_one_that_is_not_stays_in_the_engine(peer: Engine, frames: bytes) -> None:
    peer.hear(frames)
    assert {each[0] for each in peer.came} == {"on_delivery"}
    _, pointer, delivery = peer.came[-1]
    assert engine.link_current(pointer) == delivery


@pytest.mark.parametrize(
    ("size", "step"), [(engine.MESSAGE_ROOM - 1, "complete"), (engine.MESSAGE_ROOM, "on_delivery")]
)
def test_one_as_large_as_the_room_is_not_taken(peer: Engine, size: int, step: str) -> None:
    """However much the link takes."""
    peer.links[peer.posting].takes = 2 * engine.MESSAGE_ROOM
    for at in range(0, size, _PIECE):
        piece = bytes(min(_PIECE, size - at))
        peer.hear(_transfer(piece, more=at + _PIECE < size))
    assert peer.came[-1][0] == step


def test_a_link_that_takes_no_octets_takes_an_empty_message(peer: Engine) -> None:
    peer.links[peer.posting].takes = 0
    peer.hear(_transfer() + _transfer(b"x", 1))
    assert [each[0] for each in peer.came] == ["complete", "on_delivery"]


def test_none_is_taken_where_the_link_takes_none_now(peer: Engine) -> None:
    peer.links[peer.posting].takes = -1
    peer.hear(_transfer(b"x"))
    assert [each[0] for each in peer.came] == ["on_delivery"]


def test_one_that_the_link_had_before_is_not_taken_again(peer: Engine) -> None:
    peer.hear(_transfer(b"x"))
    peer.send(Disposition(role=SENDER, first=0, settled=True))
    assert [each[0] for each in peer.came] == ["complete", "on_delivery"]


def _sent(peer: Engine, form: Any, octets: bytes = b"message", tag: bytes = b"tag") -> Any:
    return form.send_whole(peer.taking, tag, octets)


@pytest.mark.parametrize("tag", [b"t", b"t" * 32])
def test_a_message_goes_out_whole(peer: Engine, form: Any, tag: bytes) -> None:
    _sent(peer, form, b"message", tag)
    peer.output.write(1 << 16)
    (sent,) = peer.output.read()
    assert isinstance(sent.performative, Transfer)
    assert (sent.performative.delivery_tag, bool(sent.performative.more), sent.payload) == (tag, False, b"message")


@pytest.mark.parametrize(
    ("state", "settled", "expected"),
    [
        (Accepted(), True, (engine.ACCEPTED, True, None)),
        (None, True, (0, True, None)),
        (TransactionalState(txn_id=_TXN_ID, outcome=Accepted()), False, None),
    ],
)
def test_what_the_peer_has_said(peer: Engine, form: Any, state: State | None, settled: bool, expected: object) -> None:
    delivery = _sent(peer, form)
    peer.written()
    peer.send(Disposition(role=RECEIVER, first=0, settled=settled, state=state))
    fields = engine.encoded(engine.disposition_data(engine.delivery_remote(delivery)))
    assert form.said(delivery) == (expected or (engine.TRANSACTIONAL, settled, fields))


def test_fields_that_are_long_are_read_elsewhere(peer: Engine, form: Any) -> None:
    delivery = _sent(peer, form)
    peer.written()
    state = TransactionalState(txn_id=types.Raw(b"\xb0\x00\x00\x02\x00" + bytes(512)))
    peer.send(Disposition(role=RECEIVER, first=0, state=state))
    assert form.said(delivery) == (engine.TRANSACTIONAL, False, None)


@pytest.mark.parametrize("settles", [True, False])
def test_an_answer(peer: Engine, form: Any, settles: bool) -> None:
    peer.hear(_transfer(b"x"))
    peer.written()
    form.answer(peer.came[0][2], engine.TRANSACTIONAL, _FIELDS, settles)
    (found,) = peer.written()
    assert isinstance(found, Disposition)
    assert (found.first, bool(found.settled)) == (0, settles)
    assert found.state == TransactionalState(txn_id=_TXN_ID, outcome=Accepted())


@pytest.mark.parametrize("settled", [True, False])
def test_an_end_says_the_outcome_unless_the_peer_has_settled(peer: Engine, form: Any, settled: bool) -> None:
    delivery = _sent(peer, form)
    peer.written()
    peer.send(Disposition(role=RECEIVER, first=0, settled=settled, state=Accepted()))
    peer.written()
    form.end(delivery, engine.ACCEPTED)
    expected = [] if settled else [Disposition(role=SENDER, first=0, settled=True, state=Accepted())]
    assert peer.written() == expected


def test_pointers_of_another_type_and_none_are_refused(compiled_part: dict[str, Any]) -> None:
    """As by the binding: nothing is read where they point to."""
    module = compiled_part["links._steps"]
    peer = Engine(module)
    peer.hear(_transfer(b"x"))
    _, link, delivery, _ = peer.came[0]
    for step, *arguments in (
        (module.drain, delivery, {}, False),
        (module.drain, peer.events, [], False),
        (module.said, link),
        (module.end, 5, engine.ACCEPTED),
        (module.send_whole, delivery, b"", b""),
        (module.answer, delivery, engine.ACCEPTED, "x", True),
        (module.answer, delivery, engine.ACCEPTED),
    ):
        with pytest.raises(TypeError):
            step(*arguments)
    for step, *arguments in ((module.said, engine.NULL), (module.send_whole, link, b"t" * 33, b"")):
        with pytest.raises(ValueError, match=r"expected|at most 32"):
            step(*arguments)


def test_it_keeps_nothing(peer: Engine, form: Any) -> None:
    """Of what it has made: here and at the end, all is what the engine has."""
    state = TransactionalState(txn_id=_TXN_ID, outcome=Accepted())
    before = 0
    for number in range(40):
        peer.hear(_transfer(b"x" * 100, number, state=state))
        _, _, delivery, message = peer.came.pop()
        assert message == (b"x" * 100, engine.TRANSACTIONAL, False, _TXN_ID)
        for _ in range(50):
            form.said(delivery)
            peer.drain()
        form.answer(delivery, engine.TRANSACTIONAL, _FIELDS, True)
        before = before or sys.getallocatedblocks()
    assert sys.getallocatedblocks() - before < 1000


@pytest.mark.rule("P19")
@pytest.mark.parametrize("window", [99, 7, 0, (1 << 32) - 1])
def test_the_window_of_the_peer(peer: Engine, form: Any, window: int) -> None:
    peer.hear(frame(Flow(**{**WINDOWS, "incoming_window": window})))
    session = engine.link_session(peer.taking)
    assert form.window(session) == engine.session_window(session) == window
