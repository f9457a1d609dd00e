"""What is passed over of the frames that a peer sends, and of those that the service has sent: nearly all of them. Each
function is one call of C where the compiled part is there (``_frames.c``); those here are its twins, and say what it
does.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from links.performatives import ATTACH, BEGIN, DETACH, END, TRANSFER
from store.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    #: The octets of a plain frame that stand for its channel, and of a transfer those for its handle.
    Key = tuple[bytes, bytes | None]
    #: By channel: the highest delivery that its dispositions name.
    Told = dict["Channel", int]


class Channel(Protocol):
    """A session of the peer's."""

    #: the ids of the next transfer, and of the next delivery
    received: int
    delivery: int | None


class Session(Protocol):
    """One of ours."""

    #: how many transfers
    sent: int


_SIZE = Struct(">I").unpack_from
#: a frame's size, channel, and descriptor, where its header has 8 octets
_HEAD = Struct(">I2xH2xB")
_EMPTY = 8
_BARE = 2
_NOTED = frozenset((BEGIN, ATTACH, DETACH, END))

# -- plain frames

#: dots, and what is likeliest first: half as dear as with repetitions
_UINT = rb"(?:\x70....|\x52.|\x43)"
#: a list, up to the last octet of its count
_FEW, _MANY = rb"\xc0.", rb"\xd0....\x00\x00\x00"
_TAG = rb"\xa0(?:" + b"|".join(re.escape(bytes((size,))) + b"." * size for size in range(33)) + rb")"
#: four fields, five, six, seven or eight, or more
_COUNT = rb"(?:(\x04)|(\x05)|(\x06)|([\x07\x08])|[\x09-\x0b])"
#: no rcv-settle-mode, and a state without a symbol, or none and resume=false
_STATE = rb"\x40(?(5)(?!\x00[\xa3\xb3])|\x40[\x40\x42])"
#: the message-format 0; then settled, more=false and those, as far as the count says that they are there
_REST = rb"(?:\x43|\x52\x00|\x70\x00\x00\x00\x00)(?(2)|[\x40-\x42](?(3)|[\x40\x42](?(4)|" + _STATE + rb")))"
_HANDLE = rb"(\x43|\x52.|\x70....)"
_TRANSFER = rb"\x14(?:" + _FEW + rb"|" + _MANY + rb")" + _COUNT + _HANDLE + rb"(" + _UINT + rb")" + _TAG + _REST
#: a state whose descriptor is a symbol, or a rejected with an error, which may have one
_NAMED = rb"\x00(?:[\xa3\xb3]|\x53\x25[\xc0\xd0])"
#: of a disposition by a receiver: its count, the first delivery and, as far as the count says that they are there, the
#: last one, settled and the state
_OF_MANY = rb"(?:(\x02)|(\x03)|(\x04)|[\x05\x06])\x41(" + _UINT + rb")"
_TO_LAST = rb"(?(8)|(\x40|" + _UINT + rb")(?(9)|[\x40-\x42](?(10)|(?!" + _NAMED + rb"))))"
_DISPOSITION = rb"\x15(?:" + _FEW + rb"|" + _MANY + rb")" + _OF_MANY + _TO_LAST
_plain = re.compile(rb"....\x02\x00(..)\x00\x53(?:" + _TRANSFER + rb"|" + _DISPOSITION + rb")", re.DOTALL).match
#: groups of it: the channel; the handle and the delivery of a transfer; the deliveries of a disposition
_WANTED = (1, 6, 7, 11, 12)
_NULL = b"\x40"
_IDS = 1 << 32


def _plain_in_python(octets: bytes, at: int, channels: Mapping[Key, Channel], told: Told) -> int:
    """Pass over plain frames of a peer: where the first begins that is not plain. ``received`` and ``delivery`` of
    each one's channel are one more for each transfer.

    Plain are transfers of one frame, of a link that has a channel, with all that is mandatory, of its next delivery,
    which is not resumed; and whole dispositions by a receiver, of a session that has a channel, which name deliveries
    above all in ``told``. No descriptor of theirs is a symbol.
    """
    end, number_of = len(octets), int.from_bytes
    while (found := _plain(octets, at)) is not None:
        (size,) = _SIZE(octets, at)
        if size < _EMPTY:  # the engine says what is wrong
            break
        number, handle, delivery, first, last = found.group(*_WANTED)
        channel = channels.get((number, handle))
        if channel is None:
            break
        if first is None:
            if (begun := number_of(delivery[1:], "big")) != channel.delivery:
                break
            channel.delivery = (begun + 1) % _IDS
            channel.received += 1
        else:
            lowest = highest = number_of(first[1:], "big")
            if last is not None and last != _NULL:
                highest = number_of(last[1:], "big")
            if at + size > end or not told.get(channel, -1) < lowest <= highest:
                break
            told[channel] = highest
        at += size
    return at


def _small_in_python(octets: bytes | memoryview, at: int, little: int, head: int) -> int:
    """Pass over frames of a peer whose states are small: where the first begins that may have a large one, or is cut
    off before its descriptor, or smaller than a frame can be.

    Such are frames of at most ``little`` octets, and transfers in their usual form of at most ``head``.
    """
    last = len(octets) - _HEAD.size
    while at <= last:
        (size,) = _SIZE(octets, at)
        if size < _EMPTY or size > head:
            break
        # transfers in their usual form need a look only where their fields may be large
        if size > little and not (octets[at + 4] == _BARE and octets[at + 10] == TRANSFER):
            break
        at += size
    return at


def _unnoted_in_python(octets: bytes | memoryview, at: int, sessions: Mapping[int, Session]) -> int:
    """Pass over frames of ours: where the first begins that says something of a session or a link, or is cut off before
    its descriptor. ``sent`` of each transfer's session is one more.
    """
    last, head = len(octets) - _HEAD.size, _HEAD.unpack_from
    while at <= last:
        size, channel, code = head(octets, at)
        if size < _EMPTY:
            break
        if size > _EMPTY:
            if code in _NOTED:
                break
            if code == TRANSFER:
                sessions[channel].sent += 1
        at += size
    return at


_frames = compiled("links._frames")
plain: Callable[[bytes, int, Mapping[Key, Channel], Told], int] = _plain_in_python if _frames is None else _frames.plain
small: Callable[[bytes | memoryview, int, int, int], int] = _small_in_python if _frames is None else _frames.small
unnoted: Callable[[bytes | memoryview, int, Mapping[int, Session]], int] = (
    _unnoted_in_python if _frames is None else _frames.unnoted
)
