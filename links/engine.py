"""The engine is Proton's, called by the binding of python-qpid-proton (``cproton_ffi``) in this file and
links/steps.py.

The hot path binds C functions once and passes C pointers; a call costs about 0.1 us, a wrapper object ten times that.
A pointer is valid as long as its connection or link: code that keeps one checks that object's ``open`` flag first.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import cproton_ffi
import structlog
from cproton_ffi import ffi, lib
from proton._data import obj2dat

from coordinator.errors import Condition, Refusal
from store.codec.encoding import DecodeError, decode
from store.codec.values import Map, Symbol

log = structlog.get_logger(__name__)

#: A pointer into the engine.
Pointer = Any

NULL = ffi.NULL

#: the library itself, for functions that its binding omits
_library = ctypes.CDLL(cproton_ffi.__file__)
_library.pn_session_remote_incoming_window.argtypes = _library.pn_delivery_buffered.argtypes = (ctypes.c_void_p,)
_library.pn_session_remote_incoming_window.restype = ctypes.c_uint32
_library.pn_delivery_buffered.restype = ctypes.c_bool

# events
CONNECTION_REMOTE_OPEN = lib.PN_CONNECTION_REMOTE_OPEN
CONNECTION_REMOTE_CLOSE = lib.PN_CONNECTION_REMOTE_CLOSE
SESSION_REMOTE_OPEN = lib.PN_SESSION_REMOTE_OPEN
SESSION_REMOTE_CLOSE = lib.PN_SESSION_REMOTE_CLOSE
LINK_REMOTE_OPEN = lib.PN_LINK_REMOTE_OPEN
LINK_REMOTE_CLOSE = lib.PN_LINK_REMOTE_CLOSE
LINK_REMOTE_DETACH = lib.PN_LINK_REMOTE_DETACH
LINK_FLOW = lib.PN_LINK_FLOW
DELIVERY = lib.PN_DELIVERY
TRANSPORT = lib.PN_TRANSPORT
TRANSPORT_ERROR = lib.PN_TRANSPORT_ERROR

# delivery states (part 3, section 3.4; part 4, section 4.5)
ACCEPTED: Final = 0x24
REJECTED: Final = 0x25
RELEASED: Final = 0x26
MODIFIED: Final = 0x27
DECLARED: Final = 0x33
TRANSACTIONAL: Final = 0x34

# endpoints
LOCAL_UNINIT = lib.PN_LOCAL_UNINIT
REMOTE_ACTIVE, REMOTE_CLOSED = lib.PN_REMOTE_ACTIVE, lib.PN_REMOTE_CLOSED

# termini
COORDINATOR = lib.PN_COORDINATOR
SOURCE, TARGET, UNSPECIFIED = lib.PN_SOURCE, lib.PN_TARGET, lib.PN_UNSPECIFIED
DIST_MODE_COPY, DIST_MODE_MOVE = lib.PN_DIST_MODE_COPY, lib.PN_DIST_MODE_MOVE
SND_SETTLED = lib.PN_SND_SETTLED
RCV_SECOND = lib.PN_RCV_SECOND

EXPIRE_WITH_LINK, EXPIRE_NEVER = lib.PN_EXPIRE_WITH_LINK, lib.PN_EXPIRE_NEVER
NOT_DURABLE, DURABLE_CONFIGURATION = lib.PN_NONDURABLE, lib.PN_CONFIGURATION

EOS = lib.PN_EOS

# the collector
collector = lib.pn_collector
collector_peek = lib.pn_collector_peek
collector_pop = lib.pn_collector_pop
event_type = lib.pn_event_type
event_session = lib.pn_event_session
event_link = lib.pn_event_link
event_delivery = lib.pn_event_delivery
event_transport = lib.pn_event_transport

# transports
transport_push = lib.pn_transport_push
transport_capacity = lib.pn_transport_capacity
transport_pending = lib.pn_transport_pending
transport_peek = lib.pn_transport_peek
transport_pop = lib.pn_transport_pop
transport_tick = lib.pn_transport_tick
transport_condition = lib.pn_transport_condition
transport_close_tail = lib.pn_transport_close_tail
transport_close_head = lib.pn_transport_close_head
transport_unbind = lib.pn_transport_unbind
transport_set_idle_timeout = lib.pn_transport_set_idle_timeout
transport_remote_max_frame = lib.pn_transport_get_remote_max_frame
transport_remote_idle_timeout = lib.pn_transport_get_remote_idle_timeout
transport_frames_in = lib.pn_transport_get_frames_input
transport_frames_out = lib.pn_transport_get_frames_output
decref = lib.pn_decref

# connections and sessions
connection_open = lib.pn_connection_open
connection_close = lib.pn_connection_close
connection_release = lib.pn_connection_release
connection_condition = lib.pn_connection_condition
connection_state = lib.pn_connection_state
connection_remote_desired_capabilities = lib.pn_connection_remote_desired_capabilities
connection_remote_properties = lib.pn_connection_remote_properties
session_state = lib.pn_session_state
session_open = lib.pn_session_open
session_close = lib.pn_session_close
session_free = lib.pn_session_free
session_condition = lib.pn_session_condition
session_outgoing_bytes = lib.pn_session_outgoing_bytes


def session_window(session: Pointer) -> int:
    """Return how many transfers the peer's window still allows, without those that the engine has put into frames."""
    return int(_library.pn_session_remote_incoming_window(_address(session)))


def delivery_buffered(delivery: Pointer) -> bool:
    """Whether the engine has not put all of the delivery into frames yet."""
    return bool(_library.pn_delivery_buffered(_address(delivery)))


def _address(pointer: Pointer) -> int:
    return int(ffi.cast("uintptr_t", pointer))


# links
link_open = lib.pn_link_open
link_close = lib.pn_link_close
link_detach = lib.pn_link_detach
link_free = lib.pn_link_free
link_session = lib.pn_link_session
link_is_receiver = lib.pn_link_is_receiver
link_source = lib.pn_link_source
link_target = lib.pn_link_target
link_remote_source = lib.pn_link_remote_source
link_remote_target = lib.pn_link_remote_target
link_condition = lib.pn_link_condition
link_credit = lib.pn_link_credit
link_queued = lib.pn_link_queued
link_unsettled = lib.pn_link_unsettled
link_drained = lib.pn_link_drained
link_get_drain = lib.pn_link_get_drain
link_flow = lib.pn_link_flow
link_advance = lib.pn_link_advance
link_send = lib.pn_link_send
link_recv = lib.pn_link_recv
link_current = lib.pn_link_current
link_remote_snd_settle_mode = lib.pn_link_remote_snd_settle_mode
link_remote_rcv_settle_mode = lib.pn_link_remote_rcv_settle_mode
link_set_snd_settle_mode = lib.pn_link_set_snd_settle_mode
link_set_rcv_settle_mode = lib.pn_link_set_rcv_settle_mode
link_set_max_message_size = lib.pn_link_set_max_message_size
link_remote_max_message_size = lib.pn_link_remote_max_message_size
link_remote_properties = lib.pn_link_remote_properties

# termini
terminus_get_type = lib.pn_terminus_get_type
terminus_set_type = lib.pn_terminus_set_type
terminus_copy = lib.pn_terminus_copy
terminus_is_dynamic = lib.pn_terminus_is_dynamic
terminus_capabilities = lib.pn_terminus_capabilities
terminus_outcomes = lib.pn_terminus_outcomes
terminus_set_durability = lib.pn_terminus_set_durability
terminus_set_timeout = lib.pn_terminus_set_timeout
terminus_properties = lib.pn_terminus_properties
terminus_expiry_policy = lib.pn_terminus_get_expiry_policy
terminus_set_expiry_policy = lib.pn_terminus_set_expiry_policy
terminus_filter = lib.pn_terminus_filter
terminus_distribution_mode = lib.pn_terminus_get_distribution_mode
terminus_set_distribution_mode = lib.pn_terminus_set_distribution_mode

# deliveries
delivery = lib.pn_delivery
delivery_link = lib.pn_delivery_link
delivery_partial = lib.pn_delivery_partial
delivery_pending = lib.pn_delivery_pending
delivery_aborted = lib.pn_delivery_aborted
delivery_settled = lib.pn_delivery_settled
delivery_settle = lib.pn_delivery_settle
delivery_abort = lib.pn_delivery_abort
delivery_update = lib.pn_delivery_update
delivery_local = lib.pn_delivery_local
delivery_remote = lib.pn_delivery_remote
delivery_remote_state = lib.pn_delivery_remote_state
disposition_data = lib.pn_disposition_data
disposition_condition = lib.pn_disposition_condition
disposition_is_failed = lib.pn_disposition_is_failed
disposition_is_undeliverable = lib.pn_disposition_is_undeliverable
disposition_annotations = lib.pn_disposition_annotations
data_decode = lib.pn_data_decode
data_encode = lib.pn_data_encode
data_encoded_size = lib.pn_data_encoded_size

#: the values of a terminus that may be of any size
_VALUES = (terminus_filter, terminus_capabilities, terminus_outcomes, terminus_properties)

READ_ROOM = 1 << 18
_read_octets = bytearray(READ_ROOM)
#: buffers for the input and output of one socket in one turn
read_view = memoryview(_read_octets)
read_buffer = ffi.from_buffer("char[]", _read_octets)
_write_octets = bytearray(READ_ROOM)
write_view = memoryview(_write_octets)
write_buffer = ffi.from_buffer("char[]", _write_octets)

MESSAGE_ROOM = 1 << 20
_message_octets = bytearray(MESSAGE_ROOM)
message_buffer = ffi.from_buffer("char[]", _message_octets)
message_view = memoryview(_message_octets)

_STATE_ROOM = 512
_state_octets = bytearray(_STATE_ROOM)
_state_buffer = ffi.from_buffer("char[]", _state_octets)


def buffer_of(octets: bytes) -> Pointer:
    """Return a pointer to the octets, which is valid as long as it is kept."""
    return ffi.from_buffer("char[]", octets)


def encoded(data: Pointer) -> bytes:
    """Encode a ``pn_data_t`` as AMQP octets; empty if it is empty or NULL.

    :raises DecodeError: the peer's octets were not a value: Proton keeps the part that it could decode. Neither that
        part nor a copy may be sent: Proton would use the error of its own encoder as a size.
    """
    if not data:
        return b""
    short = encoded_short(data)
    if short is not None:
        return short
    room = data_encoded_size(data)
    if room > 0:
        buffer = ffi.new("char[]", room)
        size = data_encode(data, buffer, room)
        if size >= 0:
            return bytes(ffi.buffer(buffer, size))
    raise DecodeError("what the engine has read of it is no AMQP value")


def encoded_short(data: Pointer) -> bytes | None:
    """Encode a ``pn_data_t`` of at most 512 octets; None: it is longer, or not a value."""
    size = data_encode(data, _state_buffer, _STATE_ROOM)
    return bytes(_state_octets[:size]) if size >= 0 else None


def set_state(pointer: Pointer, code: int, octets: bytes) -> None:
    """Set a delivery's local state and send it. ``octets``: the encoded list of the state's fields."""
    data_decode(disposition_data(delivery_local(pointer)), octets, len(octets))
    delivery_update(pointer, code)


def replace_state(pointer: Pointer, code: int, octets: bytes) -> None:
    """Set a delivery's local state in place of an earlier one, and send it."""
    lib.pn_data_clear(disposition_data(delivery_local(pointer)))
    set_state(pointer, code, octets)


def discard(pointer: Pointer) -> None:
    """Release a delivery on a link that the service has closed, and free its octets."""
    if lib.pn_link_is_receiver(delivery_link(pointer)):
        delivery_update(pointer, RELEASED)
        delivery_settle(pointer)


#: octets of any value that the engine has decoded, however small
_VALUE_OCTETS = 80


def octets_of_values(pointer: Pointer) -> int:
    """Return the octets that the engine keeps for the values of a remote modified or transactional state once
    decoded.
    """
    state, remote = delivery_remote_state(pointer), delivery_remote(pointer)
    if state not in (MODIFIED, TRANSACTIONAL):
        return 0
    data = disposition_annotations(remote) if state == MODIFIED else disposition_data(remote)
    lib.pn_data_rewind(data)
    values = 0
    while True:
        if lib.pn_data_next(data):
            values += 1
            lib.pn_data_enter(data)
        elif not lib.pn_data_exit(data):
            break
    lib.pn_data_rewind(data)
    return _VALUE_OCTETS * values


def forget_modified(pointer: Pointer) -> None:
    """Reset the fields of a remote ``modified``: Proton keeps them for a later one that omits them."""
    remote = delivery_remote(pointer)
    lib.pn_disposition_set_failed(remote, False)
    lib.pn_disposition_set_undeliverable(remote, False)
    lib.pn_data_clear(disposition_annotations(remote))


def set_rejected(pointer: Pointer, condition: str, description: str, info: dict[object, object]) -> None:
    error = disposition_condition(delivery_local(pointer))
    set_condition(error, condition, description)
    if info:
        set_condition_info(error, info)
    delivery_update(pointer, REJECTED)


def tag_of(pointer: Pointer) -> bytes:
    found = lib.pn_delivery_tag(pointer)
    return bytes(ffi.buffer(found.start, found.size))


#: The most octets of a description on the wire. Proton respects the peer's max-frame-size in transfers only; a
#: description
#: of 300 octets fits the smallest frame (512; part 2, section 2.8.19), in any performative.
_LONGEST_DESCRIPTION = 300


def description_of(text: str) -> str:
    """Return ``text`` cut to fit a frame; the log has the whole text."""
    octets = text.replace("\0", "").encode()
    if len(octets) <= _LONGEST_DESCRIPTION:
        return octets.decode()
    return octets[: _LONGEST_DESCRIPTION - 3].decode(errors="ignore") + "\N{HORIZONTAL ELLIPSIS}"


def set_condition(pointer: Pointer, name: str, description: str) -> None:
    """Set a condition. ``description`` may contain text of the peer; it is cut to fit a small frame."""
    lib.pn_condition_set_name(pointer, name.encode())
    lib.pn_condition_set_description(pointer, description_of(description).encode())


#: the most octets of a detach with an error, without its info
ERROR_ROOM = 2 * _LONGEST_DESCRIPTION


def set_condition_info(pointer: Pointer, info: dict[object, object], most: int | None = None) -> None:
    """Set the info map of the error; keys are symbols. ``most``: octets beyond which there is none; None: no bound."""
    data = lib.pn_condition_info(pointer)
    put(info, data)
    if most is not None and data_encoded_size(data) > most:
        lib.pn_data_clear(data)


def is_set(pointer: Pointer) -> bool:
    return bool(lib.pn_condition_is_set(pointer))


def condition_of(pointer: Pointer) -> str:
    """Return ``name: description`` of a condition; empty if it is not set."""
    if not lib.pn_condition_is_set(pointer):
        return ""
    name = _text(lib.pn_condition_get_name(pointer))
    description = _text(lib.pn_condition_get_description(pointer))
    return f"{name}: {description}" if description else name


def _text(pointer: Pointer) -> str:
    return "" if pointer == NULL else bytes(ffi.string(pointer)).decode("utf-8", "replace")


def put(value: object, data: Pointer) -> None:
    lib.pn_data_clear(data)
    obj2dat(value, data)  # type: ignore[no-untyped-call]


def put_octets(octets: bytes, data: Pointer) -> None:
    """Set the data to one encoded value, or to nothing."""
    lib.pn_data_clear(data)
    if octets:
        data_decode(data, octets, len(octets))


def value(data: Pointer, name: str) -> Any:
    """Return the value that a peer has sent, as a ``pn_data_t``; None if it is empty. Proton's own conversion to Python
    objects raises exceptions of various kinds: at a binary as a map's key, a string that is not UTF-8, a character
    beyond Unicode.

    :raises Refusal: the value is malformed; ``name`` says which one it is.
    """
    try:
        octets = encoded(data)
        return decode(octets)[0] if octets else None
    except DecodeError as error:
        raise Refusal(Condition.DECODE_ERROR, f"{name}: {error}") from None


def symbols(data: Pointer, name: str) -> list[str]:
    """Return the symbols of a value that is one symbol or an array of symbols."""
    found = value(data, name)
    return [str(each) for each in (found if type(found) is list else [found]) if isinstance(each, Symbol)]


def properties(data: Pointer, name: str) -> dict[str, object]:
    """Return the properties that the peer has set for a connection or a link."""
    found = value(data, name)
    if not isinstance(found, Map):
        return {}
    return {str(key): each for key, each in found if isinstance(key, Symbol)}


def address_of(terminus: Pointer) -> str | None:
    """Return the address of a terminus; None if it is null. Octets that are not UTF-8 become escapes."""
    pointer = lib.pn_terminus_get_address(terminus)
    return None if pointer == NULL else bytes(ffi.string(pointer)).decode("utf-8", "backslashreplace")


def set_address(terminus: Pointer, address: str | None) -> None:
    lib.pn_terminus_set_address(terminus, NULL if address is None else address.encode())


def link_is_named(pointer: Pointer) -> bool:
    return bool(lib.pn_link_name(pointer) != NULL)


#: octets of an attach without its names, addresses and variable values
_ATTACH_ROOM = 150


def link_name(pointer: Pointer) -> str:
    return _text(lib.pn_link_name(pointer))


@ffi.callback("void(pn_transport_t *, const char *)")  # type: ignore[untyped-decorator]
def _said(_transport: Pointer, message: Pointer) -> None:
    """Log a message that Proton itself would otherwise write to standard error (S7)."""
    log.info("the engine says", what=_text(message))


def answer_size(pointer: Pointer) -> int:
    """Return an upper bound of the octets of our attach, which is not written yet."""
    size = _ATTACH_ROOM + len(ffi.string(lib.pn_link_name(pointer)))
    for terminus in (link_source(pointer), link_target(pointer)):
        address = lib.pn_terminus_get_address(terminus)
        size += 0 if address == NULL else len(ffi.string(address))
        size += sum(max(0, data_encoded_size(of(terminus))) for of in _VALUES)
    return size


def new_connection(
    events: Pointer, *, max_frame: int, channel_max: int, idle_timeout_ms: int
) -> tuple[Pointer, Pointer]:
    """Create a server's transport and connection, bound; without Proton's SASL (see ``links/greeting.py``)."""
    transport = lib.pn_transport()
    lib.pn_transport_set_server(transport)
    lib.pn_transport_set_tracer(transport, _said)
    lib.pn_transport_require_auth(transport, False)
    connection = lib.pn_connection()
    lib.pn_connection_collect(connection, events)
    lib.pn_transport_set_max_frame(transport, max_frame)
    lib.pn_transport_set_channel_max(transport, channel_max)
    lib.pn_transport_set_idle_timeout(transport, idle_timeout_ms)
    lib.pn_transport_bind(transport, connection)
    return transport, connection


def remote_container(connection: Pointer) -> str:
    return _text(lib.pn_connection_remote_container(connection))


def describe_container(connection: Pointer, container: str, offered: object, properties: object) -> None:
    """Set the fields of our open frame."""
    lib.pn_connection_set_container(connection, container.encode())
    put(offered, lib.pn_connection_offered_capabilities(connection))
    put(properties, lib.pn_connection_properties(connection))
