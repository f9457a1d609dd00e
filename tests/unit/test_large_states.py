"""The guard refuses large states of deliveries, wherever they are cut: the engine has a copy for each delivery."""

from __future__ import annotations

import pytest

from coordinator.errors import Condition
from tests.guard_engine import Served
from tests.wire.frames import AMQP_HEADER, SENDER, Attach, Begin, Open, Source, Target, frame

pytestmark = pytest.mark.usefixtures("both_forms")

_OPENING = (
    AMQP_HEADER
    + frame(Open(container_id="test", max_frame_size=512))
    + frame(Begin(next_outgoing_id=0, incoming_window=99, outgoing_window=99))
    + frame(
        Attach(name="in", handle=0, role=SENDER, source=Source(), target=Target(address="a"), initial_delivery_count=0)
    )
)
_MOST_FRAME = 1 << 17
_EXTENDED = 3


def _frame(body: bytes, *, extended: int = 0) -> bytes:
    size = 8 + extended * 4 + len(body)
    return size.to_bytes(4, "big") + bytes((2 + extended, 0, 0, 0)) + bytes(extended * 4) + body


def _disposition(
    first: bytes, last: bytes, size: int, descriptor: bytes = b"\x00\x53\x15", *, role: bytes = b"\x41"
) -> bytes:
    fields = role + first + last + b"\x41" + b"\xb0" + size.to_bytes(4, "big") + bytes(size)
    return descriptor + b"\xd0" + (len(fields) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x05" + fields


def _transfer(delivery: int, *, says: int = 11, message: int = 60_000, descriptor: bytes = b"\x00\x53\x14") -> bytes:
    """``says``: how many octets its fields have, as it says."""
    fields = b"\x43\x52" + bytes((delivery,)) + b"\xa0\x01t\x43"
    return _frame(descriptor + b"\xd0" + says.to_bytes(4, "big") + b"\x00\x00\x00\x04" + fields + bytes(message))


_SMALL = _frame(_disposition(b"\x43", b"\x70\x00\x01\x00\x00", 40))
_LARGE_OF_ONE = _frame(_disposition(b"\x52\x07", b"\x40", 50_000))
_TOO_MUCH = (
    _frame(_disposition(b"\x43", b"\x52\x40", 50_000)),
    _frame(_disposition(b"\x70\xff\xff\xff\xf0", b"\x52\x40", 50_000), extended=_EXTENDED),
    _frame(_disposition(b"\x52\x07", b"\x52\x47", 50_000, b"\x00\x80" + bytes(7) + b"\x15")),
    _frame(_disposition(b"\x52\x07", b"\x52\x47", 50_000, b"\x00\xa3\x15amqp:disposition:list")),
    # a little of very many
    _frame(_disposition(b"\x43", b"\x70\x00\x00\x40\x00", 60)),
    # a sender has nothing to say that is large
    _frame(_disposition(b"\x43", b"\x43", 2000, role=b"\x42")),
    _frame(_disposition(b"\x43", b"\x43", 2000, role=b"\x56\x00")),
    # nor has a transfer besides its message
    _transfer(1, says=2048, message=3000),
    _transfer(1, says=2048, message=900),
    _transfer(1, says=2048, message=3000, descriptor=b"\x00\x80" + bytes(7) + b"\x14"),
)
#: what is no number, or no boolean, is 0 or false to the engine
_UNREADABLE = (
    _frame(_disposition(b"\x40", b"\x52\x40", 50_000)),
    _frame(_disposition(b"\x53\x07", b"\x52\x40", 50_000)),
    _frame(_disposition(b"\x43", b"\x52\x40", 50_000, role=b"\x40")),
)


def _heard(octets: bytes, at_once: int = 1 << 18) -> Served:
    served = Served(_MOST_FRAME)
    served.hear([_OPENING])
    served.hear(octets[start : start + at_once] for start in range(0, len(octets), at_once))
    return served


@pytest.mark.parametrize("at_once", [7, 1000, 1 << 18])
def test_what_says_little_or_of_one_goes_on(at_once: int) -> None:
    octets = b"".join(_SMALL + _LARGE_OF_ONE + _transfer(number) for number in range(2))
    served = _heard(octets, at_once)
    assert served.got.endswith(octets)
    assert (served.refused, served.failed) == ([], False)


@pytest.mark.parametrize("refused", _TOO_MUCH)
def test_what_says_much_of_many_is_refused(refused: bytes) -> None:
    before = _SMALL + _transfer(0)
    served = _heard(before + refused + _SMALL)
    assert served.refused == [("connection", Condition.RESOURCE_LIMIT_EXCEEDED)]
    assert served.got.endswith(before)


@pytest.mark.parametrize("refused", _UNREADABLE)
def test_what_says_it_of_nothing_that_can_be_read_is_refused(refused: bytes) -> None:
    served = _heard(_SMALL + refused)
    assert served.refused == [("connection", Condition.DECODE_ERROR)]
    assert served.got.endswith(_SMALL)


@pytest.mark.parametrize("at_once", [1, 7, 1000, 4096])
def test_it_is_refused_wherever_it_is_cut(at_once: int) -> None:
    for refused in (_TOO_MUCH[1], _TOO_MUCH[-1]):
        served = _heard(_SMALL + refused, at_once)
        assert served.refused == [("connection", Condition.RESOURCE_LIMIT_EXCEEDED)]
        assert refused[-100:] not in served.got


@pytest.mark.parametrize("at_once", [7, 1000, 1 << 18])
@pytest.mark.parametrize("extended", [0, _EXTENDED])
def test_a_disposition_of_a_few_hundred_octets_is_known(at_once: int, extended: int) -> None:
    """Values that take an octet each on the wire take 80 in the engine."""
    large = _frame(_disposition(b"\x43", b"\x52\x40", 300), extended=extended)
    served = _heard(_SMALL + large, at_once)
    assert served.guard.channels.largest == len(large)
    served.hear([_SMALL + _transfer(0)[:5000]])
    assert served.guard.channels.largest == 0


@pytest.mark.parametrize("at_once", [1, 1000])
@pytest.mark.parametrize("body", [b"\x00\x53\x15", b"\x00\x53\x15\xd0", b"\x00\x53\x14\xd0"])
def test_a_frame_that_ends_within_its_performative_is_not_read_beyond_its_end(at_once: int, body: bytes) -> None:
    served = _heard(_frame(body, extended=200) + _SMALL, at_once)
    assert served.failed or served.refused == [("connection", Condition.DECODE_ERROR)]
