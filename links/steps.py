"""The steps of the hot path that take several calls into the engine. Each is one call of C where the compiled part is
there (``_steps.c``); the functions here are its twins, and say what it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import cproton_ffi
from cproton_ffi import ffi

from links import engine
from store.compiled import compiled

if TYPE_CHECKING:
    from types import ModuleType

#: An event, its kind, and the delivery and the link that it is about, where it is a delivery or a flow.
Event = tuple[engine.Pointer, int, engine.Pointer | None, engine.Pointer | None]

#: Octets of a message that is taken at once, and fewer.
_MOST_OCTETS: Final = engine.MESSAGE_ROOM

_POINTERS = tuple(ffi.typeof(f"pn_{name}_t *") for name in ("collector", "event", "link", "delivery"))

_tag_octets = ffi.new("char[32]")
_tag_view = memoryview(ffi.buffer(_tag_octets))
_tag = ffi.new("pn_bytes_t*")
_tag.start = _tag_octets
_tag_by_value = _tag[0]


def _following_in_python(events: engine.Pointer, pops: bool) -> Event | None:
    """The event on top of the collector that is there to be handled; None: no more. ``pops``: the one before it is
    handled.
    """
    while True:
        if pops:
            engine.collector_pop(events)
        event = engine.collector_peek(events)
        if not event:
            return None
        kind = engine.event_type(event)
        if kind == engine.DELIVERY:
            delivery = engine.event_delivery(event)
            return event, kind, delivery, engine.delivery_link(delivery)
        if kind == engine.LINK_FLOW:
            return event, kind, None, engine.event_link(event)
        if kind != engine.TRANSPORT:
            return event, kind, None, None
        pops = True


def _received_in_python(
    link: engine.Pointer, delivery: engine.Pointer, most: int
) -> tuple[bytes, int, bool, bytes | None] | None:
    """A message that is there whole, of at most so many octets, is taken from the link, which goes on to the next: its
    octets, its state, whether it is settled, and of a transactional state the txn-id, where it is as long as ours.

    None: it is not such, and nothing was taken; or the link had it before.
    """
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
    """What the peer has said of a delivery: its state, whether it is settled, and the fields of a transactional state,
    an encoded list; None where they are long, or no AMQP value.
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
    """Settle a delivery that the peer has decided; where it has not settled it, say with which outcome."""
    if not engine.delivery_settled(delivery):
        engine.delivery_update(delivery, code)
    engine.delivery_settle(delivery)


def outgoing_delivery(link: engine.Pointer, tag: bytes) -> engine.Pointer:
    """A new delivery; ``tag`` of at most 32 octets."""
    size = len(tag)
    _tag_view[:size] = tag
    _tag.size = size
    return engine.delivery(link, _tag_by_value)


def _send_whole_in_python(link: engine.Pointer, tag: bytes, octets: bytes) -> engine.Pointer:
    """A new delivery with all its octets. ``tag``: at most 32 octets."""
    delivery = outgoing_delivery(link, tag)
    engine.link_send(link, octets, len(octets))
    engine.link_advance(link)
    return delivery


def _bound() -> ModuleType | None:
    """The compiled module, once it has shown that it understands the pointers of the binding; None: the twins run."""
    module = compiled("links._steps")
    if module is None:
        return None
    try:
        module.bind(cproton_ffi.__file__, _POINTERS, (engine.DELIVERY, engine.LINK_FLOW, engine.TRANSPORT))
    except ImportError:
        return None
    pointer = ffi.cast(_POINTERS[-1], 0x1234_5678_9ABC)
    found, number = module.same(pointer)
    return module if (found, ffi.typeof(found), number) == (pointer, _POINTERS[-1], 0x1234_5678_9ABC) else None


_steps = _bound()
following = _following_in_python if _steps is None else _steps.following
received = _received_in_python if _steps is None else _steps.received
said = _said_in_python if _steps is None else _steps.said
answer = _answer_in_python if _steps is None else _steps.answer
end = _end_in_python if _steps is None else _steps.end
send_whole = _send_whole_in_python if _steps is None else _steps.send_whole
