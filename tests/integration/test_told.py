"""What is kept aside says in its octets where it came from (``store/sql/messages.sql``), as dead letters do (H10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.address.dead_letters import letter
from store.codec.encoding import MOST_PAIRS, encode_string, encode_symbol, encode_uint
from tests.wire import types
from tests.wire.messages import MESSAGE_ANNOTATIONS, Message, data, section
from tests.wire.types import Symbol
from tests.wire.values import VALUES

pytestmark = pytest.mark.rule("H10")

STORY = [
    encode_symbol("x-opt-original-address") + encode_string("ö" * 200),
    encode_symbol("x-opt-check-count") + encode_uint(15),
]
TOLD = {"x-opt-original-address": "ö" * 200, "x-opt-check-count": 15}
_SYMBOLS = {0x70: "amqp:header:list", 0x71: "amqp:delivery-annotations:map", 0x72: "amqp:message-annotations:map"}

_KEYS = st.sampled_from(["x-opt-mine", "x" * 300, *TOLD]).flatmap(lambda name: st.sampled_from([name, Symbol(name)]))
_ANNOTATIONS = st.none() | st.dictionaries(_KEYS, VALUES, max_size=4)
_HEADERS = st.sampled_from([None, [], [True, types.UByte(9)]])


@pytest.fixture(scope="module")
def connection(module_database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        yield connection


def told(connection: psycopg.Connection[Any], message: bytes) -> bytes:
    given = [message, b"".join(STORY), len(STORY)]
    row = connection.execute("select coordinator.told(%s, %s, %s)", given).fetchone()
    assert row is not None
    return bytes(row[0])


def as_letter(message: bytes) -> bytes:
    made = letter(message, b"", STORY)
    return made.prefix + message[made.start :]


@st.composite
def fronts(draw: st.DrawFn) -> bytes:
    """The sections before a bare message, each with a descriptor of any form."""
    found = b""
    for code, strategy in ((0x70, _HEADERS), (0x71, _ANNOTATIONS), (0x72, _ANNOTATIONS)):
        value = draw(strategy)
        if value is not None:
            kind = draw(st.sampled_from([b"\x53%c" % code, b"\x80" + code.to_bytes(8, "big"), b"\x70\0\0\0%c" % code,
                                         types.encode(Symbol(_SYMBOLS[code])),
                                         types.encode(Symbol(_SYMBOLS[code]), large=True)]))  # fmt: skip
            found += b"\0" + kind + types.encode(value, large=draw(st.booleans()))
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fronts(), st.sampled_from([b"", data(b"body"), b"\0\xa3\x10amqp:data:binary\xa0\1x", data(b"x" * 5000)]))
def test_it_is_what_a_letter_would_be(connection: psycopg.Connection[Any], front: bytes, body: bytes) -> None:
    found = told(connection, front + body)
    assert found == as_letter(front + body)
    assert found.endswith(body)


@pytest.mark.parametrize(
    "octets", [b"x", b"\0", b"\0\x53\x72\xc1", b"\0\x53\x70\xd0\xff\xff\xff\xff\0", b"\0\x53\x72\xa0\0"]
)
def test_what_cannot_be_read_is_the_body(connection: psycopg.Connection[Any], octets: bytes) -> None:
    assert told(connection, octets) == as_letter(octets)
    assert Message(told(connection, octets)).annotations == TOLD


#: Of a message with more of its own, only the story is left (store/sql/messages.sql).
_MOST_LOOKED_AT = 100


def test_of_annotations_that_are_too_many_the_story_is_left(connection: psycopg.Connection[Any]) -> None:
    """None of many is looked for: 10,000 messages of one transaction may have as many."""
    most = MOST_PAIRS
    for count, name, kept in (
        (most - len(STORY), "x-opt-mine", most - len(STORY)),
        (most - len(STORY) + 1, "x-opt-mine", 0),
        (_MOST_LOOKED_AT - 1, "x-opt-check-count", _MOST_LOOKED_AT - 1),
        (_MOST_LOOKED_AT, "x-opt-check-count", 0),
    ):
        own = {Symbol(f"x-opt-{number}"): None for number in range(count - (name not in TOLD))}
        octets = section(MESSAGE_ANNOTATIONS, {**own, Symbol(name): None}, large=True) + data(b"1")
        found = Message(told(connection, octets))
        assert found.annotations.items() >= TOLD.items()
        assert len(found.annotations) == kept + len(STORY)
        assert found.bare == data(b"1")
