"""Single parameters of a question in PostgreSQL's binary format; for arrays see :mod:`store.arrays`."""

from __future__ import annotations


def boolean(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def int2(number: int) -> bytes:
    return number.to_bytes(2, "big", signed=True)


def int4(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)


def int8(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)
