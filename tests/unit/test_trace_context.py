"""The trace that a message names (``store/codec/trace_context.py``)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.codec.encoding import MOST_PAIRS, DecodeError
from store.codec.trace_context import UNSAMPLED, TraceContext, glance, read_trace, with_trace
from tests.wire.messages import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    Header,
    Message,
    Properties,
    data,
    section,
)
from tests.wire.types import Symbol
from tests.wire.values import VALUES

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, PLAIN = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"


def annotated(**given: Any) -> bytes:
    return section(MESSAGE_ANNOTATIONS, {Symbol(name): value for name, value in given.items()})


def with_properties(**given: Any) -> bytes:
    return section(APPLICATION_PROPERTIES, given)


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (b"", None),
        (data(b"x"), None),
        (data(SAMPLED.encode()), None),
        (data(b"traceparent\xa1\x37" + SAMPLED.encode()), None),
        (with_properties(traceparent=SAMPLED) + data(b"x"), TraceContext(TRACE, SPAN, True)),
        (with_properties(traceparent=PLAIN) + data(b"x"), TraceContext(TRACE, SPAN, False)),
        (annotated(traceparent=Symbol(SAMPLED)) + data(b"x"), TraceContext(TRACE, SPAN, True)),
        (annotated(traceparent=SAMPLED, tracestate="a=1,b=2"), TraceContext(TRACE, SPAN, True, "a=1,b=2")),
        (annotated(traceparent=SAMPLED, tracestate="a=\n"), TraceContext(TRACE, SPAN, True)),
        (annotated(traceparent=SAMPLED, tracestate=b"a=1"), TraceContext(TRACE, SPAN, True)),
        (annotated(traceparent="00-1") + with_properties(traceparent=SAMPLED), TraceContext(TRACE, SPAN, True)),
        (annotated(traceparent=f"01-{TRACE}-{SPAN}-03-more"), TraceContext(TRACE, SPAN, True)),
        (annotated(traceparent=f"{SAMPLED}-more"), None),
        (annotated(traceparent=f"{SAMPLED}\n"), None),
        (annotated(traceparent=f"01-{TRACE}-{SPAN}-01more"), None),
        (with_properties(traceparent=SAMPLED)[:-1], None),
    ],
)
def test_it_is_read_where_it_is_right(message: bytes, found: TraceContext | None) -> None:
    assert read_trace(message) == found


@pytest.mark.parametrize("text", [PLAIN, f"00-{TRACE}-{SPAN}-02"])
def test_at_a_glance_most_are_not_sampled(text: str) -> None:
    assert glance(with_properties(traceparent=text) + data(b"x")) is UNSAMPLED
    assert glance(data(bytes(1 << 17)) + with_properties(traceparent=text)) is None
    assert glance(data(b"x")) is None


@given(
    st.dictionaries(st.sampled_from(("traceparent", "tracestate", "other")), st.one_of(VALUES, st.just(SAMPLED))),
    st.sampled_from((MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES)),
    st.binary(max_size=80),
)
def test_a_glance_says_what_a_look_says(values: dict[str, Any], code: int, body: bytes) -> None:
    """But for what is not sampled, and what is no message."""
    key = Symbol if code == MESSAGE_ANNOTATIONS else str
    message = section(code, {key(name): value for name, value in values.items()}) + data(body)
    seen, read = glance(message), read_trace(message)
    assert (seen is not None and seen.sampled) == (read is not None and read.sampled)
    glance(message[: len(body)])
    glance(body + message)


@pytest.mark.parametrize("before", [b"", Header(durable=True).encoded(), annotated(mine="1")])
def test_a_message_gets_a_trace(before: bytes) -> None:
    bare = Properties(message_id="m").encoded() + data(b"x")
    marked = with_trace(before + bare, TRACE, SPAN)
    assert glance(marked) == TraceContext(TRACE, SPAN, True)
    assert Message(marked).bare == bare
    assert Message(marked).annotations == {**Message(before + bare).annotations, "traceparent": SAMPLED}
    assert Message(marked).header == Message(before + bare).header


def test_none_gets_more_annotations_than_it_may() -> None:
    full = section(MESSAGE_ANNOTATIONS, {Symbol(f"{number}"): None for number in range(MOST_PAIRS)})
    with pytest.raises(DecodeError, match="at most"):
        with_trace(full + data(b"x"), TRACE, SPAN)
