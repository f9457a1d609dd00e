"""A link's name that is attached again on the same session (part 2, section 2.6.1). The engine would close the
connection: it has to know that the first link is gone before it gets the second.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Protocol

from coordinator.codec.encoding import encode_boolean, encode_list, encode_uint
from coordinator.errors import Condition, Refusal
from links import engine
from links.link import Refused
from links.performatives import DETACH, FLOW, TRANSFER, Performative

if TYPE_CHECKING:
    from links.endpoints import Endpoints
    from links.ends import Channel, End

_FRAME = Struct(">IBBH")
#: the field of each that is the handle
_PLACES = {TRANSFER: 0, FLOW: 4, DETACH: 0}


class Carrier(Protocol):
    """The connection whose links these are."""

    transport: engine.Pointer
    endpoints: Endpoints


def robbed(channel: Channel, attach: Performative) -> int | None:
    """The handle of the link that has this name, if there is one."""
    name, sends, handle = attach.value(0), attach.value(2) is False, attach.number(1)
    before = channel.named.get((sends, name)) if isinstance(name, str) else None
    return None if before == handle else before


def take(connection: Carrier, number: int, channel: Channel, end: End, handle: int) -> bytes:
    """End the first link. Returns what tells the engine so; nothing: it has posts that are not answered yet."""
    link = connection.endpoints.links.get(end.pointer)
    if link is not None and link.open and not isinstance(link, Refused):
        link.refuse(Refusal(Condition.STOLEN, "the link was attached again, on the same session"))
        engine.transport_pending(connection.transport)  # the frame that says so, while there is the link
        if link.open:
            return b""
    end.stolen = True
    body = b"\x00\x53" + bytes((DETACH,)) + encode_list([encode_uint(handle), encode_boolean(True)])
    return _FRAME.pack(8 + len(body), 2, 0, number) + body


def is_of_stolen(channel: Channel, found: Performative) -> bool:
    """Whether the frame is of a link that was stolen, and means nothing. Its detach gives its handle back.

    :raises Refusal: it is a transfer. The engine has no link to count it for, and closes the connection at the next.
    """
    place = _PLACES.get(found.code)
    if place is None or not found.has(place):
        return False
    handle = found.number(place) or 0
    end = channel.links.get(handle)
    if end is None or not end.stolen:
        return False
    if found.code == TRANSFER:
        raise Refusal(Condition.ILLEGAL_STATE, "a transfer on a link whose name was attached again on the same session")
    if found.code == DETACH:
        del channel.links[handle]
    return True
