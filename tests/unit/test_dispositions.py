"""Large delivery states are seen wherever what comes in is cut."""

from __future__ import annotations

import contextlib

import pytest

from coordinator.errors import Refusal
from links.dispositions import Dispositions
from tests.tables import all_cases

pytestmark = pytest.mark.usefixtures("both_forms")

_HEADER = b"AMQP\x00\x01\x00\x00"
_EXTENDED = 3


def _frame(body: bytes, *, extended: int = 0) -> bytes:
    size = 8 + extended * 4 + len(body)
    return size.to_bytes(4, "big") + bytes((2 + extended, 0, 0, 0)) + bytes(extended * 4) + body


def _disposition(
    first: bytes, last: bytes, size: int, descriptor: bytes = b"\x00\x53\x15", *, role: bytes = b"\x41"
) -> bytes:
    fields = role + first + last + b"\x41" + b"\xb0" + size.to_bytes(4, "big") + bytes(size)
    return descriptor + b"\xd0" + (len(fields) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x05" + fields


_SMALL = _frame(_disposition(b"\x43", b"\x70\x00\x01\x00\x00", 40))
_LARGE_OF_ONE = _frame(_disposition(b"\x52\x07", b"\x40", 50_000))
_FIELDS = b"\x43\x43\xa0\x01t\x43"
_LARGE_TRANSFER = _frame(b"\x00\x53\x14\xd0\x00\x00\x00\x0a\x00\x00\x00\x04" + _FIELDS + bytes(60_000))
_REFUSED = (
    _frame(_disposition(b"\x43", b"\x52\x40", 50_000)),
    _frame(_disposition(b"\x70\xff\xff\xff\xf0", b"\x52\x40", 50_000), extended=_EXTENDED),
    _frame(_disposition(b"\x52\x07", b"\x52\x47", 50_000, b"\x00\x80" + bytes(7) + b"\x15")),
    # a little of very many
    _frame(_disposition(b"\x43", b"\x70\x00\x00\x40\x00", 60)),
    # what is no number, or no boolean, is 0 or false to the engine
    _frame(_disposition(b"\x40", b"\x52\x40", 50_000)),
    _frame(_disposition(b"\x53\x07", b"\x52\x40", 50_000)),
    _frame(_disposition(b"\x43", b"\x52\x40", 50_000, role=b"\x40")),
    # a sender has nothing to say that is large
    _frame(_disposition(b"\x43", b"\x43", 2000, role=b"\x42")),
    _frame(_disposition(b"\x43", b"\x43", 2000, role=b"\x56\x00")),
    _frame(_disposition(b"\x43", b"\x40", 2000, role=b"\x40")),
    # nor has a transfer besides its message
    _frame(b"\x00\x53\x14\xd0\x00\x00\x08\x00\x00\x00\x00\x04" + _FIELDS + bytes(3000)),
    _frame(b"\x00\x80" + bytes(7) + b"\x14\xd0\x00\x00\x08\x00\x00\x00\x00\x04" + _FIELDS + bytes(3000)),
)


def _refuses(octets: bytes, at_once: int) -> bool:
    dispositions = Dispositions()
    with contextlib.suppress(Refusal):
        for start in range(0, len(octets), at_once):
            dispositions.look(memoryview(octets[start : start + at_once]))
    return dispositions.refused


@all_cases("at_once", [1, 7, 1000, 4096, 1 << 18])
def test_what_says_little_or_of_one_goes_on(at_once: int) -> None:
    assert not _refuses(_HEADER + (_SMALL + _LARGE_OF_ONE + _LARGE_TRANSFER) * 2, at_once)


@all_cases("at_once", [1, 7, 1000, 4096, 1 << 18])
@all_cases("refused", _REFUSED)
def test_what_says_much_of_many_is_refused(refused: bytes, at_once: int) -> None:
    assert _refuses(_HEADER + _SMALL + _LARGE_TRANSFER + refused, at_once)


@all_cases("at_once", [1, 7, 1000, 4096, 1 << 18])
def test_a_large_disposition_is_known_while_what_is_read_is_part_of_it(at_once: int) -> None:
    dispositions = Dispositions()
    large = _HEADER + _LARGE_OF_ONE
    for start in range(0, len(large), at_once):
        dispositions.look(memoryview(large[start : start + at_once]))
    assert dispositions.largest == len(_LARGE_OF_ONE)
    dispositions.look(memoryview(_SMALL + _LARGE_TRANSFER))
    assert dispositions.largest == 0


def test_a_large_disposition_is_forgotten_while_later_frames_are_cut() -> None:
    dispositions = Dispositions()
    frames = _HEADER + _LARGE_OF_ONE + _LARGE_TRANSFER
    cut = len(_HEADER + _LARGE_OF_ONE) + 5000
    dispositions.look(memoryview(frames[:cut]))
    assert dispositions.largest == len(_LARGE_OF_ONE)
    dispositions.look(memoryview(frames[cut:] + _SMALL[:20]))
    assert dispositions.largest == 0


@all_cases("at_once", [1, 7, 1000, 4096, 1 << 18])
@all_cases("extended", [0, _EXTENDED])
def test_a_disposition_of_a_few_hundred_octets_is_known(at_once: int, extended: int) -> None:
    """Values that take an octet each on the wire take 80 in the engine."""
    dispositions = Dispositions()
    frame = _frame(_disposition(b"\x43", b"\x52\x40", 300), extended=extended)
    octets = _HEADER + _SMALL + frame
    for start in range(0, len(octets), at_once):
        dispositions.look(memoryview(octets[start : start + at_once]))
    assert dispositions.largest == len(frame)


@all_cases("at_once", [1, 7, 1000])
@all_cases("body", [b"\x00\x53\x15", b"\x00\x53\x15\xd0", b"\x00\x53\x14\xd0"])
def test_a_frame_that_ends_within_its_performative_is_left_to_the_engine(at_once: int, body: bytes) -> None:
    _refuses(_HEADER + _frame(body, extended=200) + _SMALL, at_once)
