"""The copy of a first half that goes to a checker (``coordinator/check_back.py``)."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Data, Message, symbol

from coordinator.check_back import annotations_of, copy_of
from tests.wire.messages import data

TXN = bytes(range(16))
TOLD = annotations_of(TXN, 2, 3, 1, "órders", 1_700_000_000_123)


def encoded(**fields: Any) -> bytes:
    message = Message(**fields)
    return bytes(message.encode())


def decoded(octets: bytes) -> Any:
    message = Message()
    message.decode(octets)
    return message


@pytest.mark.rule("H8")
def test_it_has_its_own_delivery_annotations_and_the_rest_of_the_message() -> None:
    octets = encoded(
        body={"order": 7},
        id="o-7",
        durable=True,
        properties={"book": "orders"},
        annotations={symbol("x-opt-mine"): 1},
        instructions={symbol("x-opt-hop"): 5},
    )
    found = decoded(copy_of(octets, TOLD, whole=True))
    assert found.instructions == {
        "x-opt-txn-id": TXN,
        "x-opt-check-count": 2,
        "x-opt-half-count": 3,
        "x-opt-retired-count": 1,
        "x-opt-original-address": "órders",
        "x-opt-declared-at": 1_700_000_000_123,
    }
    assert found.annotations == {"x-opt-mine": 1}
    assert (found.id, found.durable, found.properties, found.body) == ("o-7", True, {"book": "orders"}, {"order": 7})


def test_the_types_of_its_annotations() -> None:
    octets = copy_of(data(b"x"), TOLD, whole=True)
    annotations = Data()
    annotations.decode(octets[3:])
    annotations.next()
    annotations.enter()
    types = []
    while annotations.next():
        types.append(annotations.type())
    keys, values = types[::2], types[1::2]
    assert set(keys) == {Data.SYMBOL}
    assert values == [Data.BINARY, Data.UINT, Data.UINT, Data.UINT, Data.STRING, Data.TIMESTAMP]


@pytest.mark.rule("P10")
def test_the_bare_message_is_not_changed() -> None:
    assert copy_of(data(b"x"), TOLD, whole=True).endswith(data(b"x"))
    assert copy_of(data(b"x"), TOLD, whole=True).count(data(b"x")) == 1


def test_a_large_one_ends_before_its_body_and_says_so() -> None:
    octets = encoded(body=b"x" * 5000, id="o-7", properties={"book": "orders"}, annotations={symbol("x-opt-mine"): 1})
    found = decoded(copy_of(octets[:3000], TOLD, whole=False))
    assert found.instructions["x-opt-body-left-out"] is True
    assert found.instructions["x-opt-txn-id"] == TXN
    assert (found.id, found.properties, found.annotations) == ("o-7", {"book": "orders"}, {"x-opt-mine": 1})
    assert found.body == b""


def test_of_a_large_one_whose_properties_are_cut_off_what_is_before_them() -> None:
    octets = encoded(body=b"x", id="o-7", durable=True, properties={"book": "o" * 5000})
    found = decoded(copy_of(octets[:3000], TOLD, whole=False))
    assert (found.id, found.durable, found.properties, found.body) == ("o-7", True, None, b"")
    assert found.instructions["x-opt-half-count"] == 3


@pytest.mark.rule("H11")
@pytest.mark.parametrize("octets", [b"no message", b"\x00\x53", b"\x00\x53\x75\xa0\xff"])
def test_one_that_cannot_be_read_is_the_body_of_the_copy(octets: bytes) -> None:
    found = decoded(copy_of(octets, TOLD, whole=True))
    assert found.body == octets
    assert found.instructions["x-opt-txn-id"] == TXN


@pytest.mark.rule("H11")
def test_one_that_is_lost_has_no_body() -> None:
    found = decoded(copy_of(b"", TOLD, whole=False))
    assert found.body == b""
    assert found.instructions["x-opt-body-left-out"] is True
