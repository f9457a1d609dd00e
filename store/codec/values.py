"""AMQP's types that Python has no type for (part 1, section 1.6), and described values."""

from __future__ import annotations

from typing import NamedTuple


class Symbol(str):
    """An AMQP symbol: ASCII."""

    __slots__ = ()


class Map(list[tuple[object, object]]):
    """An AMQP map: its pairs in order."""

    __slots__ = ()


class Described(NamedTuple):
    """A described value (part 1, section 1.3)."""

    descriptor: object
    value: object
