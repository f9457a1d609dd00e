"""Steps of the hot path combine several calls into the engine. Each is one call of C if the compiled part is there
(``_steps.c``); the functions here are its twins, and specify it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import cproton_ffi
from cproton_ffi import ffi

from links import engine
from store.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from links.link import Link


#: Messages of fewer octets can be received in one step.
_MOST_OCTETS: Final = engine.MESSAGE_ROOM

_POINTERS = tuple(ffi.typeof(f"pn_{name}_t *") for name in ("collector", "event", "link", "delivery", "session"))

_tag_octets = ffi.new("char[32]")
_tag_view = memoryview(ffi.buffer(_tag_octets))
_tag = ffi.new("pn_bytes_t*")
_tag.start = _tag_octets
_tag_by_value = _tag[0]


def _drain_in_python(
    events: engine.Pointer, links: Mapping[engine.Pointer, Link], pops: bool
) -> tuple[engine.Pointer, int] | bool:
    """Handle deliveries and flows of these links, one after the other, up to another event: return that and its kind.
    It stays on top of the collector, and so does an event whose handling raises. ``pops``: the event on top was
    handled.

    A link advances to its next delivery after a whole message. True: no more events; there were some, and the links
    themselves request all writes.
    """
    handled, quiet = False, True
    while True:
        if pops:
            engine.collector_pop(events)
        pops = True
        event = engine.collector_peek(events)
        if not event:
            return handled and quiet
        kind = engine.event_type(event)
        if kind == engine.DELIVERY:
            delivery = engine.event_delivery(event)
            pointer = engine.delivery_link(delivery)
            link = links.get(pointer)
            if link is None:
                return event, kind
            whole = None if link.takes < 0 else _received(pointer, delivery, link.takes)
            said = link.on_delivery(delivery) if whole is None else link.complete(delivery, *whole)
            handled, quiet = True, quiet and said is True
        elif kind == engine.LINK_FLOW:
            link = links.get(engine.event_link(event))
            if link is None:
                return event, kind
            link.on_flow()
        elif kind != engine.TRANSPORT:
            return event, kind


def _received(
    link: engine.Pointer, delivery: engine.Pointer, most: int
) -> tuple[bytes, int, bool, bytes | None] | None:
    """Receive a whole message; None: it is incomplete, or larger than ``most``, or the link has had it before."""
    if (
        delivery != engine.link_current(link)
        or engine.delivery_partial(delivery)
        or engine.delivery_aborted(delivery)
        or (size := engine.delivery_pending(delivery)) > most
        or size >= _MOST_OCTETS
    ):
        return None
    state = engine.delivery_remote_state(delivery)
    txn_id = None
    if state == engine.TRANSACTIONAL:
        fields = _fields(delivery)
        # Proton encodes a list32: a binary of 16 octets is at 11 to 27
        if fields is not None and len(fields) >= 27 and fields[9:11] == b"\xa0\x10":
            txn_id = fields[11:27]
    message = b""
    if size:
        engine.link_recv(link, engine.message_buffer, size)
        message = bytes(engine.message_view[:size])
    settled = bool(engine.delivery_settled(delivery))
    engine.link_advance(link)
    return message, state, settled, txn_id


def _said_in_python(delivery: engine.Pointer) -> tuple[int, bool, bytes | None]:
    """Return the peer's state of a delivery, whether it is settled, and the encoded list of a transactional state's
    fields; None if they are long, or not an AMQP value.
    """
    state = engine.delivery_remote_state(delivery)
    fields = _fields(delivery) if state == engine.TRANSACTIONAL else None
    return state, bool(engine.delivery_settled(delivery)), fields


def _fields(delivery: engine.Pointer) -> bytes | None:
    return engine.encoded_short(engine.disposition_data(engine.delivery_remote(delivery)))


def _answer_in_python(delivery: engine.Pointer, code: int, fields: bytes, settles: bool) -> None:
    """Set a delivery's local state and send it. ``fields``: an encoded list."""
    engine.set_state(delivery, code, fields)
    if settles:
        engine.delivery_settle(delivery)


def _end_in_python(delivery: engine.Pointer, code: int) -> None:
    """Settle a delivery that the peer has decided; if the peer has not settled it, send the outcome."""
    if not engine.delivery_settled(delivery):
        engine.delivery_update(delivery, code)
    engine.delivery_settle(delivery)


def outgoing_delivery(link: engine.Pointer, tag: bytes) -> engine.Pointer:
    """Create a delivery; ``tag``: at most 32 octets."""
    size = len(tag)
    _tag_view[:size] = tag
    _tag.size = size
    return engine.delivery(link, _tag_by_value)


def _send_whole_in_python(link: engine.Pointer, tag: bytes, octets: bytes) -> engine.Pointer:
    """Create a delivery, and send all its octets. ``tag``: at most 32 octets."""
    delivery = outgoing_delivery(link, tag)
    engine.link_send(link, octets, len(octets))
    engine.link_advance(link)
    return delivery


def _bound() -> ModuleType | None:
    """Return the compiled module, after a check that it reads the binding's pointers; None: the twins run."""
    module = compiled("links._steps")
    if module is None:
        return None
    try:
        module.bind(cproton_ffi.__file__, _POINTERS, (engine.DELIVERY, engine.LINK_FLOW, engine.TRANSPORT))
    except ImportError:
        return None
    pointer = ffi.cast(_POINTERS[3], 0x1234_5678_9ABC)
    found, number = module.same(pointer)
    return module if (found, ffi.typeof(found), number) == (pointer, _POINTERS[3], 0x1234_5678_9ABC) else None


_steps = _bound()
drain = _drain_in_python if _steps is None else _steps.drain
said = _said_in_python if _steps is None else _steps.said
answer = _answer_in_python if _steps is None else _steps.answer
end = _end_in_python if _steps is None else _steps.end
window = engine.session_window if _steps is None else _steps.window
send_whole = _send_whole_in_python if _steps is None else _steps.send_whole
