"""What a stored message says is text for people, whatever it is (S7)."""

from __future__ import annotations

import pytest

from coordinator.contents import contents
from store.codec.encoding import encode_binary, encode_list, encode_map, encode_string, encode_uint

pytestmark = pytest.mark.rule("S7")

_NULL = b"\x40"


def _section(code: int, value: bytes) -> bytes:
    return bytes((0x00, 0x53, code)) + value


def _data(octets: bytes) -> bytes:
    return _section(0x75, encode_binary(octets))


@pytest.mark.parametrize(
    ("octets", "name", "text"),
    [
        (b'{"a": [1.10, "\xc3\xbc"]}', "JSON", '{"a": [1.10, "ü"]}'),
        ("tea ü".encode(), "text", "tea ü"),
        (b"\xff\x00\x01", "octets", "ff 00 01"),
        (b"", "text", ""),
        (b"[" * 5000, "text", "[" * 5000),
        (b'{"a": NaN', "text", '{"a": NaN'),
    ],
)
def test_data_is_told_as_it_came(octets: bytes, name: str, text: str) -> None:
    assert contents(_data(octets), whole=True) == [(f"data, {name}", text)]


def test_sections_have_their_names_and_fields_theirs() -> None:
    header = _section(0x70, encode_list([b"\x41", b"\x50\x07"]))
    properties = _section(0x73, encode_list([encode_string("m-1"), _NULL, encode_string("orders")]))
    of_application = _section(0x74, encode_map([encode_string("n") + encode_uint(7)]))
    value = _section(0x77, encode_list([encode_string("x"), encode_binary(b"\x01"), encode_map([])]))
    assert contents(header + properties + of_application + value, whole=True) == [
        ("header", "durable: True\npriority: 7"),
        ("properties", "message-id: m-1\nto: orders"),
        ("application-properties", "n: 7"),
        ("amqp-value", "[x, 01, {}]"),
    ]


def test_of_a_large_message_the_beginning_is_shown() -> None:
    properties = _section(0x73, encode_list([encode_string("m-1")]))
    cut = (properties + _data(b"x" * 300))[:-100]
    shown = ("properties", "message-id: m-1")
    assert contents(cut, whole=False) == [shown, ("body", "it is too large to be shown")]
    name, why = contents(cut, whole=True)[-1]
    assert (name, "beyond the" in why) == ("what follows cannot be read", True)


def test_of_many_sections_the_first_are_shown() -> None:
    told = contents(_data(b"x") * 250, whole=True)
    assert (len(told), told[-1]) == (101, ("what follows", "150 sections more"))


def test_the_longest_body_is_shown_whole() -> None:
    for body, name, text in (
        (b"x" * 65_000, "data, text", "x" * 65_000),
        (b"\xff" * 65_000, "data, octets", " ".join(["ff"] * 65_000)),
    ):
        assert contents(_data(body), whole=True) == [(name, text)]


def test_what_is_cut_says_so_in_its_name() -> None:
    ((name, text),) = contents(_section(0x76, encode_list([b"\x42"] * 65_000)), whole=True)
    assert (name, len(text)) == ("amqp-sequence, the first 400,000 of 455,000 characters", 400_000)


def test_a_line_end_in_a_value_begins_no_line() -> None:
    pair = encode_string("a") + encode_string("1\nx-admin: true")
    properties = _section(0x73, encode_list([_NULL, _NULL, encode_string("x\r\u2028y")]))
    assert contents(properties + _section(0x74, encode_map([pair])), whole=True) == [
        ("properties", "to: x\\r\\u2028y"),
        ("application-properties", "a: 1\\nx-admin: true"),
    ]


def test_a_text_that_is_the_body_keeps_its_lines() -> None:
    assert contents(_section(0x77, encode_string("1\n2")), whole=True) == [("amqp-value", "1\n2")]
    assert contents(_section(0x77, encode_list([encode_string("1\n2")])), whole=True) == [("amqp-value", "[1\\n2]")]
