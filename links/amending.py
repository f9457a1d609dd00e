"""What the service says in a begin or an attach, and the engine cannot be told: such frames are written anew on their
way out (part 2, sections 2.7.2 and 2.7.3; part 3, section 3.5.3). All other frames are left alone.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from coordinator.codec.encoding import encode_list, encode_uint, skip
from links import performatives
from links.performatives import ATTACH, BEGIN, starts_of

if TYPE_CHECKING:
    from collections.abc import Callable

_HEAD = Struct(">I2xH2xB")
_SIZE = Struct(">I")
_PROTOCOL_HEADER, _EMPTY = 8, 8
_PROTOCOL = b"AMQP"
_BODY = 8
_HANDLE_MAX = 4
_NAME, _ROLE, _SOURCE = 0, 2, 5
_DEFAULT_OUTCOME = 8
_MOST_FIELDS = 16
_NULL = b"\x40"


class Amending:
    """Of one connection. ``due``: frames are to be written that say more than the engine knows."""

    __slots__ = ("_defaults", "_handle_max", "due")

    def __init__(self, handle_max: int) -> None:
        self._handle_max = handle_max
        #: default-outcomes as they are encoded, by the link's name and whether the service receives on it
        self._defaults: dict[tuple[str, bool], bytes] = {}
        self.due = False

    def begins(self) -> None:
        """A begin is to be written."""
        self.due = True

    def attaches(self, name: str, receives: bool, default_outcome: bytes) -> None:
        """An attach is to be written whose source has this default-outcome."""
        self._defaults[name, receives] = default_outcome
        self.due = True

    def amended(self, octets: bytes) -> bytes:
        """All that the engine has to write: whole frames, behind the protocol header at the very beginning."""
        pieces = []
        begun, at = 0, _PROTOCOL_HEADER if octets.startswith(_PROTOCOL) else 0
        while at < len(octets):
            (size,) = _SIZE.unpack_from(octets, at)
            if size > _EMPTY:
                _, _, code = _HEAD.unpack_from(octets, at)
                change = _CHANGES.get(code)
                if change is not None:
                    pieces += [octets[begun:at], change(self, octets[at : at + size])]
                    begun = at + size
            at += size
        self._defaults.clear()
        self.due = False
        return b"".join((*pieces, octets[begun:]))

    def _begin(self, frame: bytes) -> bytes:
        fields = _fields(frame, _BODY)
        return _frame(frame, _put(fields, _HANDLE_MAX, encode_uint(self._handle_max)))

    def _attach(self, frame: bytes) -> bytes:
        found = performatives.read(frame, _BODY)
        assert found is not None
        default = self._defaults.get((str(found.value(_NAME)), found.value(_ROLE) is True))
        if default is None or not found.has(_SOURCE):
            return frame
        at = found.starts[_SOURCE]
        body = skip(frame, at + 1)
        source = frame[at:body] + encode_list(_put(_fields(frame, at), _DEFAULT_OUTCOME, default))
        return _frame(frame, _put(_fields(frame, _BODY), _SOURCE, source))


_CHANGES: dict[int, Callable[[Amending, bytes], bytes]] = {BEGIN: Amending._begin, ATTACH: Amending._attach}


def _fields(octets: bytes, at: int) -> list[bytes]:
    """Of the described list at ``at``, as they are encoded."""
    starts = starts_of(octets, skip(octets, at + 1), _MOST_FIELDS)
    return [octets[each : skip(octets, each)] for each in starts]


def _put(fields: list[bytes], place: int, value: bytes) -> list[bytes]:
    fields += [_NULL] * (place + 1 - len(fields))
    fields[place] = value
    return fields


def _frame(before: bytes, fields: list[bytes]) -> bytes:
    """The same frame with other fields."""
    body = before[_BODY : skip(before, _BODY + 1)] + encode_list(fields)
    return _SIZE.pack(_BODY + len(body)) + before[_SIZE.size : _BODY] + body
