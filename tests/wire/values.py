"""Any value of AMQP's type system (part 1), as Hypothesis draws it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.wire import types


def _integers(kind: type, bits: int, *, signed: bool) -> st.SearchStrategy[Any]:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high).map(kind)


ASCII = st.text(st.characters(max_codepoint=127), max_size=300)
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    _integers(types.UByte, 8, signed=False),
    _integers(types.UShort, 16, signed=False),
    _integers(types.UInt, 32, signed=False),
    _integers(types.ULong, 64, signed=False),
    _integers(types.Byte, 8, signed=True),
    _integers(types.Short, 16, signed=True),
    _integers(types.Int, 32, signed=True),
    _integers(types.Long, 64, signed=True),
    _integers(types.Timestamp, 64, signed=True),
    st.floats(width=32, allow_nan=False).map(types.Float),
    st.floats(allow_nan=False).map(types.Double),
    st.integers(0, 0x10FFFF).map(types.Char),
    st.sampled_from((4, 8, 16)).flatmap(lambda size: st.binary(min_size=size, max_size=size)).map(types.Decimal),
    st.uuids(),
    st.binary(max_size=300),
    st.text(max_size=100),
    ASCII.map(types.Symbol),
)
#: what one constructor says of every item (section 1.6.24)
_ARRAYS = st.one_of(
    st.builds(types.Array, st.just(0x70), st.lists(_integers(types.UInt, 32, signed=False), max_size=5)),
    st.builds(types.Array, st.just(0x55), st.lists(st.integers(-128, 127).map(types.Long), max_size=5)),
    st.builds(types.Array, st.just(0xA3), st.lists(ASCII.filter(lambda s: len(s) < 200).map(types.Symbol), max_size=5)),
    st.builds(types.Array, st.just(0xB0), st.lists(st.binary(max_size=20), max_size=5), st.just(types.ULong(7))),
    st.builds(types.Array, st.just(0x41), st.lists(st.just(True), max_size=5)),
    st.builds(types.Array, st.just(0x45), st.lists(st.just([]), max_size=5)),
    st.builds(types.Array, st.just(0xD0), st.lists(st.lists(st.booleans(), max_size=2), max_size=5)),
)
KEYS = st.one_of(st.text(max_size=10), ASCII.map(types.Symbol), st.integers(0, 255).map(types.UByte), st.uuids())
VALUES = st.recursive(
    st.one_of(_SCALARS, _ARRAYS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(KEYS, inner, max_size=5),
        st.builds(types.Described, st.one_of(st.integers(0, 1 << 63).map(types.ULong), ASCII.map(types.Symbol)), inner),
    ),
    max_leaves=15,
)
