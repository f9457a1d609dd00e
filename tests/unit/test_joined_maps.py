"""Annotations of one outcome after the other are joined (D2): what that costs follows their number, up to the most that
there may be. Counted are opcodes and comparisons, the same on any machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from store.codec import message
from store.codec.encoding import encode_map, encode_string, encode_symbol

SIZES = (1_000, 10_000)


class _Counted:
    """A key that counts how often it is compared with another."""

    compared = 0

    def __init__(self, number: int) -> None:
        self._number = number

    def __hash__(self) -> int:
        return hash(self._number)

    def __eq__(self, other: object) -> bool:
        _Counted.compared += 1
        return isinstance(other, _Counted) and self._number == other._number


def _opcodes(work: Callable[[], object]) -> int:
    """How many the interpreter executes for it."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def _map(count: int) -> bytes:
    return encode_map([encode_symbol(f"x-opt-{number:05}") + encode_string("v") for number in range(count)])


def _pairs(count: int) -> list[tuple[object, bytes]]:
    return [(_Counted(number), b"") for number in range(count)]


@pytest.mark.rule("D2", "P14")
def test_two_maps_are_joined_in_steps_of_their_size() -> None:
    """As large as they may be: ten times the annotations of an outcome are ten times the work, not a hundred times."""
    maps = {count: _map(count) for count in SIZES}
    assert [message.merge_maps(each, each) == each for each in maps.values()] == [True, True]
    few, many = (_opcodes(lambda each=each: message.merge_maps(each, each)) for each in maps.values())  # type: ignore[misc]
    assert few > 1_000
    assert many < 11 * few
    for count in SIZES:  # what the interpreter does not see: keys compared within a set
        _Counted.compared = 0
        own, added = (_pairs(count) for _ in range(2))
        assert len(message._joined(own, added)) == count
        assert count <= _Counted.compared < 2 * count
