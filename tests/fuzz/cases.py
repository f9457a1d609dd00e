"""One case: what one connection sends, piece by piece, and the file that keeps cases for another time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

#: Stands in a case for the id of a transaction that the service has declared on the same connection: 15 octets, then
#: which of them. The driver puts the id in its place when it writes.
TXN = b"\xf5txn-of-the-run"


def txn(number: int) -> bytes:
    """16 octets that stand for the txn-id number ``number``, modulo as many as were declared."""
    return TXN + bytes((number & 0xFF,))


class Case(NamedTuple):
    """``writes``: octets that go out at once; the next follow when the service has answered, or a moment later.

    ``frames``: how many frames each write has. ``abrupt``: the socket is reset at the end, not closed in order.
    ``records``: what is drawn from it is done to the records of TLS, or to the request and the frames of a WebSocket,
    of which ``stage`` says where; none: there is neither.
    """

    generator: str
    stage: str
    writes: list[bytes]
    frames: list[int]
    abrupt: bool = False
    records: int | None = None


def save(path: Path, cases: Iterable[Case], why: str) -> None:
    """The cases of a failure, in the order in which they began; ``why`` is for people."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = [{**case._asdict(), "writes": [write.hex() for write in case.writes]} for case in cases]
    path.write_text(json.dumps({"why": why, "cases": found}, indent=1))


def load(path: Path) -> list[Case]:
    return [
        Case(**{**found, "writes": [bytes.fromhex(write) for write in found["writes"]]})
        for found in json.loads(path.read_text())["cases"]
    ]
