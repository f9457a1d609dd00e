"""The decoder of stored messages, against Proton's own encoder, and against bytes that are no message."""

from __future__ import annotations

import json
import uuid
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.messages import Message, MessageUnreadable, decode, selector, text_of
from tests.fix_store_rows import encode_message

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300)
SIMPLE: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    TEXT,
    st.uuids(),
    st.binary(max_size=300),
)
NESTED = st.recursive(
    SIMPLE, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)


@given(TEXT, st.dictionaries(TEXT, SIMPLE, max_size=5), NESTED)
def test_what_proton_encodes_is_decoded(message_id: str, properties: dict[str, Any], body: Any) -> None:
    sent = proton.Message(id=message_id, properties=properties, body=body, inferred=False)
    got = decode(sent.encode())
    assert got.message_id == message_id
    assert got.application_properties == (properties or {})
    assert got.body == (body if body is not None else None)


def test_data_sections_are_one_body() -> None:
    one = b"\x00\x53\x75\xa0\x02{}"
    assert decode(one).body == b"{}"
    assert decode(b"\x00\x53\x75\xa0\x01{" + b"\x00\x53\x75\xb0\x00\x00\x00\x01}").body == b"{}"
    assert decode(b"\x00\x53\x76\xc0\x03\x01\x54\x07").body == [7]
    assert decode(b"\x00\xa3\x10amqp:data:binary\xa0\x01x").body == b"x"


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_unreadable(data: bytes) -> None:
    try:
        decode(data)
    except MessageUnreadable:
        return


@given(st.data())
def test_a_message_cut_or_changed_is_unreadable_at_worst(data: st.DataObject) -> None:
    whole = bytearray(encode_message(message_id="a", properties={"order": "1"}, body={"amount": 1}))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    except MessageUnreadable:
        return


def test_deep_nesting_is_refused() -> None:
    data = b"\x40"
    for _ in range(40):
        data = b"\xd0" + (len(data) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x01" + data
    with pytest.raises(MessageUnreadable, match="nested more than"):
        decode(b"\x00\x53\x77" + data)
    with pytest.raises(MessageUnreadable, match="nested more than"):
        decode(b"\x00" * 5000)


def test_an_array_that_claims_more_than_it_holds_is_refused() -> None:
    with pytest.raises(MessageUnreadable, match="without any octets"):
        decode(b"\x00\x53\x77\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("message-id", "m-1"),
        ("property:order", "A-17"),
        ("property:count", "3"),
        ("property:absent", None),
        ("body:$.amount", "12.50"),
        ("body:$.lines[1].sku", "b"),
        ("body:$.lines[7].sku", None),
        ("body:$.paid", "true"),
        ("body:$.absent.deeper", None),
    ],
)
def test_what_a_book_may_pick(source: str, text: str | None) -> None:
    body = b'{"amount": 12.50, "paid": true, "lines": [{"sku": "a"}, {"sku": "b"}]}'
    message = Message(message_id="m-1", application_properties={"order": "A-17", "count": 3}, body=body)
    assert selector(source)(message) == text


def test_a_body_that_is_an_amqp_map_is_followed_too() -> None:
    message = decode(proton.Message(body={"order": {"id": 7}}).encode())
    assert selector("body:$.order.id")(message) == "7"


@pytest.mark.parametrize(
    "source", ["", "txn", "property:", "body:", "body:amount", "body:$amount", "body:$.a[x]", "subject"]
)
def test_other_selectors_are_refused(source: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        selector(source)


def test_what_has_no_text_is_said() -> None:
    with pytest.raises(MessageUnreadable, match="dict is not a single value"):
        text_of({})
    with pytest.raises(MessageUnreadable, match="not utf-8"):
        text_of(b"\xff")
    with pytest.raises(MessageUnreadable, match="not JSON"):
        selector("body:$.a")(Message(body=b"<a/>"))
    assert text_of(uuid.UUID(int=1)) == "00000000-0000-0000-0000-000000000001"
    assert decode(encode_message(body={"a": 1})).body == json.dumps({"a": 1}).encode()
