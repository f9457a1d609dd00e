"""Arrays in PostgreSQL's binary format (``store/arrays.py``), held against psycopg's own reader."""

from __future__ import annotations

import struct
import uuid
from datetime import UTC, datetime, timedelta
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.adapt import Transformer
from psycopg.types.array import ArrayBinaryLoader

from store import arrays
from tests.tables import all_cases

pytestmark = pytest.mark.usefixtures("both_forms")

#: microseconds after 2000-01-01 UTC, as moments
MOMENTS = st.integers(-315360000000000, 3153600000000000).map(
    lambda micros: datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
)


def read(octets: bytes) -> Any:
    """As psycopg does."""
    return ArrayBinaryLoader(0, Transformer(None)).load(octets)


_INT8 = st.integers(-(1 << 63), (1 << 63) - 1)


@pytest.mark.day
@given(st.lists(_INT8), st.lists(st.integers(-(1 << 31), (1 << 31) - 1)), st.lists(st.integers(-32768, 32767)))
def test_integers(eights: list[int], fours: list[int], twos: list[int]) -> None:
    assert read(arrays.int8(eights)) == eights
    assert read(arrays.int4(fours)) == fours
    assert read(arrays.int2(twos)) == twos


@pytest.mark.day
@given(st.lists(st.binary(max_size=40)), st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"))))
def test_octets_and_text(values: list[bytes], texts: list[str]) -> None:
    assert [bytes(each) for each in read(arrays.bytea(values))] == values
    assert read(arrays.text([each.encode() for each in texts])) == texts


def test_lengths_beyond_the_table_of_short_ones() -> None:
    values = [b"x" * size for size in (4095, 4096, 4097, 100_000)]
    assert [bytes(each) for each in read(arrays.bytea(values))] == values


@given(st.lists(st.uuids()))
def test_uuids(values: list[uuid.UUID]) -> None:
    assert read(arrays.uuid([each.bytes for each in values])) == values


@given(st.lists(MOMENTS))
def test_times(moments: list[datetime]) -> None:
    """Microseconds since 2000-01-01 UTC."""
    micros = [(each - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) for each in moments]
    assert read(arrays.timestamptz(micros)) == moments


@all_cases("values", [[1 << 31], [-(1 << 31) - 1], [1 << 64], [1, None], ["1"]])
def test_what_does_not_fit_its_column_is_refused(values: list[Any]) -> None:
    with pytest.raises(struct.error):
        arrays.int4(values)


def test_octets_in_a_file_are_taken_like_others(tmp_path: Path) -> None:
    path = tmp_path / "octets"
    path.write_bytes(b"x" * 10_000)
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as octets:
        assert [bytes(each) for each in read(arrays.bytea([b"a", octets]))] == [b"a", b"x" * 10_000]
