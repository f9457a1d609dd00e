"""What a book reads of stored messages: held against a decoder of all of them, and given octets that are no message."""

from __future__ import annotations

import json
import re
import struct
import uuid
from decimal import Decimal
from typing import Any

import proton
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark.messages import Message, selector, text_of
from spark.picking import LONGEST_KEY, picker
from store.codec.encoding import DecodeError
from tests.fix_store_rows import encode_message
from tests.picked import NO_TEXT, found, read_json, says
from tests.tables import all_cases
from tests.wire import types
from tests.wire.messages import APPLICATION_PROPERTIES, SEQUENCE, VALUE, Header, Properties, data, section
from tests.wire.values import VALUES

pytestmark = pytest.mark.rule("R20", "R25")

TEXT = st.text(max_size=20)
NAMES = st.text(st.characters(exclude_characters=".[]", exclude_categories=["Cs"]), min_size=1, max_size=10)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
WIDE = st.booleans()


def _in_pieces(body: bytes, cut: int) -> bytes:
    """As two data sections, or one."""
    return data(body) if cut >= len(body) else data(body[:cut]) + data(body[cut:])


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=len(repr(value)) % 2 == 0).encode()


BODIES = st.one_of(
    st.builds(lambda body, cut: _in_pieces(_json(body), cut), JSON, st.integers(0, 40)),
    st.builds(lambda body, large: section(VALUE, _json(body).decode(), large=large), JSON, WIDE),
    st.builds(lambda body, large: section(VALUE, body, large=large), VALUES, WIDE),
    st.builds(lambda body, large: section(VALUE, body, large=large), st.dictionaries(NAMES, VALUES, max_size=5), WIDE),
    st.lists(st.lists(VALUES, max_size=4).map(lambda items: section(SEQUENCE, items)), max_size=3).map(b"".join),
)
MESSAGES = st.builds(
    lambda *sections: b"".join(sections),
    st.sampled_from([b"", Header(durable=True).encoded(), section(0x72, {types.Symbol("x-opt"): types.UByte(1)})]),
    st.one_of(st.just(b""), (TEXT | st.uuids()).map(lambda name: Properties(message_id=name).encoded())),
    st.one_of(
        st.just(b""),
        st.builds(
            lambda named, large: section(APPLICATION_PROPERTIES, named, large=large),
            st.dictionaries(NAMES, VALUES, max_size=5),
            WIDE,
        ),
    ),
    BODIES,
    st.sampled_from([b"", section(0x78, {types.Symbol("sum"): b"x"})]),
)


def _sources(message: bytes) -> list[str]:
    """Of each name that stands anywhere in ``message``: its property, and what it is in the body."""
    sources = ["message-id", "body:$", "body:$[0]", "body:$[1]", "property:absent", "body:$.absent"]
    names: set[str] = set()
    at = 0
    while at < len(message):
        value, at = types.decode(message, at)
        _gather(value, names)
    for name in sorted(names)[:6]:
        sources += [f"property:{name}", f"body:$.{name}", f"body:$[0].{name}", f"body:$.{name}[1]"]
    return sources


def _gather(value: Any, names: set[str]) -> None:
    if isinstance(value, types.Described):
        _gather(value.value, names)
    elif isinstance(value, list):
        for each in value:
            _gather(each, names)
    elif isinstance(value, dict):
        names.update(str(key) for key in value if isinstance(key, str) and key and not set(key) & set(".[]"))
        for each in value.values():
            _gather(each, names)
    elif type(value) in (str, bytes):
        try:
            _gather(json.loads(value), names) if value[:1] in ("{", "[", b"{", b"[") else None
        except ValueError:
            return


def _agrees(message: bytes, source: str) -> None:
    expected = found(message, source)
    text, error = _picked(message, source)
    if error is None:
        assert says(text, expected), f"{source}: {text!r}, and there is {expected!r}"
    else:
        assert expected is NO_TEXT or "there twice" in error, f"{source}: {error}, and there is {expected!r}"


def _picked(message: bytes, source: str) -> tuple[str | None, str | None]:
    """The text, and why there is none."""
    try:
        return selector(source)(Message(message)), None
    except DecodeError as error:
        return None, str(error)


@given(MESSAGES)
def test_what_is_picked_is_there(message: bytes) -> None:
    for source in _sources(message):
        _agrees(message, source)


@given(MESSAGES, st.data())
def test_a_message_that_is_broken_is_unreadable_at_worst(message: bytes, draw: st.DataObject) -> None:
    """Nothing else is raised; and where all of it can be decoded still, it says what is there."""
    broken = bytearray(message or b"\0")
    for _ in range(draw.draw(st.integers(0, 3))):
        broken[draw.draw(st.integers(0, len(broken) - 1))] = draw.draw(st.integers(0, 255))
    octets = bytes(broken[: draw.draw(st.integers(len(broken) // 2, len(broken)))])
    for source in _sources(message):
        try:
            found(octets, source)
        except (ValueError, OverflowError, struct.error):
            _picked(octets, source)
        else:
            _agrees(octets, source)


@given(st.binary(max_size=100))
def test_any_octets_are_a_message_or_unreadable(octets: bytes) -> None:
    for source in ("message-id", "property:a", "body:$", "body:$.a", "body:$[0].a"):
        for beginning in (b"", b"\x00\x53\x77", b"\x00\x53\x74\xc1", b"\x00\x53\x76\xf0"):
            _picked(beginning + octets, source)


@given(st.one_of(JSON.map(_json), st.binary(max_size=20)), st.data())
@example(b'{"a": 1, "a": 1}', None)
@example(b"1e99999999999999999999", None)
@example(b'"\\ud800"', None)
@example(b"\xef\xbb\xbf1", None)
def test_json_is_as_the_standard_library_reads_it(body: bytes, draw: st.DataObject | None) -> None:
    """Changed at one place, most are no JSON."""
    if draw is not None and body and draw.draw(st.booleans()):
        changed = bytearray(body)
        changed[draw.draw(st.integers(0, len(body) - 1))] = draw.draw(st.integers(0, 255))
        body = bytes(changed)
    picked = selector("body:$.a")
    try:
        expected = read_json(body)
    except ArithmeticError:
        # the library's decimals have bounds
        return
    except ValueError:
        with pytest.raises(DecodeError, match="the body is not JSON"):
            picked(Message(data(body)))
    else:
        value = expected.get("a") if isinstance(expected, dict) else None
        assert isinstance(value, list | dict) or says(picked(Message(data(body))), value)


def _bid(number: Decimal, octets: int) -> bytes:
    """IEEE 754's decimal in the binary integer encoding (its section 3.5.2)."""
    width, bias = {4: (8, 101), 8: (10, 398), 16: (14, 6176)}[octets]
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    coefficient, size = int("".join(map(str, digits))), 8 * octets - 1 - width
    if coefficient < 1 << size:
        rest = (exponent + bias) << size | coefficient
    else:
        rest = 0b11 << (8 * octets - 3) | (exponent + bias) << (size - 2) | coefficient & ((1 << (size - 2)) - 1)
    return (sign << (8 * octets - 1) | rest).to_bytes(octets, "big")


@given(st.data(), st.sampled_from([(4, 7, -101, 90), (8, 16, -398, 369), (16, 34, -6176, 6111)]))
def test_an_amount_that_is_a_decimal_is_exact(draw: st.DataObject, width: tuple[int, int, int, int]) -> None:
    octets, digits, lowest, highest = width
    coefficient = draw.draw(st.integers(0, 10**digits - 1))
    exponent = draw.draw(st.integers(lowest, highest))
    number = Decimal((draw.draw(st.integers(0, 1)), tuple(map(int, str(coefficient))), exponent))
    message = section(VALUE, types.Decimal(_bid(number, octets)))
    assert selector("body:$")(Message(message)) == str(number)


@all_cases(
    ("value", "text"),
    [
        ("31c0000000000001", "1"),  # as other implementations write it
        ("b1a00000000004d2", "-123.4"),
        ("6cb8967f", "9999999"),
        ("30400000000000000000000000000001", "1"),
        ("7800000000000000", "Infinity"),
        ("f8000000", "-Infinity"),
        ("7c000000", "NaN"),
        ("6cb89680", "0"),  # a digit too many stands for nothing
    ],
)
def test_decimals_are_read(value: str, text: str) -> None:
    octets = bytes.fromhex(value)
    code = {4: b"\x74", 8: b"\x84", 16: b"\x94"}[len(octets)]
    assert text_of(code + octets, 0) == text


@all_cases(
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
    message = encode_message(message_id="m-1", properties={"order": "A-17", "count": 3}, body=json.loads(body))
    assert selector(source)(Message(message.partition(b"\x00\x53\x75")[0] + data(body))) == text


@all_cases(
    ("body", "text"),
    [
        ("A-17", "A-17"),
        ("17", "17"),
        ('"A-17"', "A-17"),
        ("1e5", "1e5"),
        (b"A-17", "A-17"),
        (types.Long(17), "17"),
        (types.Float(12.1), "12.1"),
        (types.Float(3.4028234663852886e38), "3.4028235e+38"),
        (types.Float(-3.4028230607370965e38), "-3.402823e+38"),
        (types.Float("-inf"), "-inf"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (types.Symbol("A"), "A"),
        (None, None),
    ],
)
def test_a_body_may_be_one_value(body: Any, text: str | None) -> None:
    assert selector("body:$")(Message(section(VALUE, body))) == text
    if isinstance(body, str | bytes):
        assert selector("body:$")(Message(data(body if isinstance(body, bytes) else body.encode()))) == text


INSIDE = {
    "flags": types.Array(0x56, [True, False]),
    "tags": types.Array(0xA3, [types.Symbol("a"), types.Symbol("bc")], types.ULong(7)),
    "lines": types.Array(0xD1, [{"id": types.Long(1)}, {"id": types.Long(2)}]),
    "amounts": [types.Int(5), types.Described(types.Symbol("eur"), [types.Int(6), types.Int(7)])],
}


@all_cases(
    ("path", "text"),
    [
        ("$.flags[1]", "false"),
        ("$.tags[1]", "bc"),
        ("$.tags[2]", None),
        ("$.lines[1].id", "2"),
        ("$.amounts[1][1]", "7"),
        ("$.amounts[2]", None),
        ("$.amounts.x", None),
    ],
)
def test_lists_and_arrays_are_gone_into(path: str, text: str | None) -> None:
    assert selector(f"body:{path}")(Message(section(VALUE, INSIDE))) == text
    whole = section(SEQUENCE, [None, None]) + section(SEQUENCE, [INSIDE], large=True)
    assert selector(f"body:{path.replace('$', '$[2]')}")(Message(whole)) == text


def test_what_proton_encodes_is_picked() -> None:
    body = {"order": {"id": 7, "amount": proton.decimal64(0x31A00000000004D2), "tags": proton.Array(None, 7, 1, 2)}}
    octets = proton.Message(id="m", properties={"n": proton.symbol("x")}, body=body, inferred=False).encode()
    message = Message(bytes(octets))
    sources = ("message-id", "property:n", "body:$.order.id", "body:$.order.amount")
    assert [selector(source)(message) for source in sources] == ["m", "x", "7", "123.4"]


@all_cases("source", ["", "txn", "property:", "body:", "body:amount", "body:$amount", "body:$.a[x]", "subject"])
def test_other_selectors_are_refused(source: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        selector(source)


def _deep(depth: int) -> bytes:
    octets = b"\x40"
    for _ in range(depth):
        octets = b"\xd0" + (len(octets) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x01" + octets
    return b"\x00\x53\x77" + octets


#: Bodies without the value at ``$.id``, and what is said of them.
HOSTILE = {
    "no JSON": (data(b"<a/>"), "the body is not JSON"),
    "cut off": (data(b'{"id": "A-1'), "the body is not JSON"),
    "a name twice": (data(b'{"id": "A-1", "id": "A-2"}'), "not JSON: .*duplicate key"),
    "half a character": (data(b'{"id": "\\ud800"}'), "the body is not JSON"),
    "not UTF-8": (data(b'{"id": "\xff"}'), "the body is not JSON"),
    "no number": (data(b'{"id": NaN}'), "the body is not JSON"),
    "a long number": (data(b'{"id": ' + b"1" * 5000 + b"}"), "the body is not JSON: number out of range"),
    "an object": (data(b'{"id": {}}'), "an object is not a single value"),
    "deep JSON": (data(b'{"id":' * 5000 + b"1" + b"}" * 5000), "not JSON: recursion limit"),
    "a long key": (data(json.dumps({"id": "x" * 5000}).encode()), f"5000 characters, at most {LONGEST_KEY}"),
    "a map with a key twice": (section(VALUE, types.Raw(b"\xc1\x0b\x04\xa1\x02id\x40\xa3\x02id\x40")), "there twice"),
    "a map with a key alone": (section(VALUE, types.Raw(b"\xc1\x05\x01\xa1\x02id")), "cut off|midst"),
    "a map that ends elsewhere": (section(VALUE, types.Raw(b"\xc1\x09\x02\xa1\x02id\xb1\0\0\0")), "cut off"),
    "a map that ends within a value": (
        section(VALUE, types.Raw(b"\xc1\x06\x02\xa1\x02id\x83")),
        "ends elsewhere",
    ),
    "a map of very many": (section(VALUE, types.Raw(b"\xd1\0\0\0\x04\xff\xff\xff\xff")), "a map of 4294967295"),
    "a size beyond the end": (b"\x00\x53\x77\xd1\xff\xff\xff\xff", "beyond the 8 octets"),
    "no type": (b"\x00\x53\x77\x01", "no AMQP type has the code 0x01"),
    "text that is none": (section(VALUE, {"id": types.Raw(b"\xa1\x01\xff")}), "not utf-8"),
    "a list": (section(VALUE, {"id": [True]}), "not a single value"),
    "descriptors alone": (b"\x00" * 5000, "a value of type 0x00 at octet 1"),
    "two kinds of body": (data(b"{}") + section(VALUE, None), "out of its place"),
    "no section": (b"x", "a section was expected"),
    "nothing that is known": (section(0x79, None), "none of a message's"),
}


def test_what_cannot_be_read_is_said_of_each_message_and_of_no_other() -> None:
    """In a batch, as Spark gives them, between others."""
    good = section(VALUE, {"id": "A-1"})
    messages = [each for octets, _ in HOSTILE.values() for each in (good, octets)] * 30
    rows = picker("body:$.id", ["body:$.id"])(pa.array(messages, pa.binary())).to_pylist()
    assert [row["key"] for row in rows[::2]] == ["A-1"] * (30 * len(HOSTILE))
    for number, (name, (_, expected)) in enumerate([*HOSTILE.items()] * 30):
        row = rows[2 * number + 1]
        assert (row["key"], len(row["picked"])) == (None, 1), name
        assert re.search(expected, row["problem"]), f"{name}: {row['problem']}"
        assert row["picked"] == [f"unreadable: {row['problem']}"]


def test_what_no_book_names_is_passed_over() -> None:
    """Lists as deep as may be, and text that is none, elsewhere in the message."""
    octets = section(APPLICATION_PROPERTIES, {"x": types.Raw(b"\xa1\x01\xff"), "id": "A-1"}) + _deep(5000)
    assert selector("property:id")(Message(octets)) == "A-1"
    with pytest.raises(DecodeError, match="not a single value"):
        selector("body:$[0][0]")(Message(octets))
