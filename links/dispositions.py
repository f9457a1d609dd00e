"""Large delivery states, seen before the engine has them.

The engine copies a disposition's state to each delivery it names: one frame of 54 kB for 10,000 deliveries is half a
gigabyte before anything of it is reported, and 14 times as much once it is read and its values are small. It keeps that
memory for the next delivery in the same place, settled or not.
"""

from __future__ import annotations

from struct import Struct

from coordinator.errors import Condition, Refusal
from links import frames

#: octets of a state times the deliveries it is said of
MOST_OCTETS = 1 << 20
#: octets of a frame whose state is not counted: as many as an acceptance in a transaction has, with both numbers and
#: all descriptors in full. Each octet more may be a value, which takes 80 in the engine.
_LITTLE = 80
#: octets of a transfer besides its message: its tag and a transactional-state take fewer than 100
MOST_OF_TRANSFER = 1024

_SIZE = Struct(">I")
#: what may stand before a frame's body (part 2, section 2.3.1), and the fields of a disposition that are looked at
_HEAD = 4 * 255 + 48
#: a disposition's descriptor as a number, small or not (part 2, section 2.7.6)
_DESCRIPTORS = (b"\x00\x53\x15", b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x15")
_TRANSFERS = (b"\x00\x53\x14", b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x14")
_LISTS = {0xC0: 3, 0xD0: 9}
_LARGE_LIST = 0xD0
#: octets of a frame, and of one up to its descriptor
_SMALLEST, _UP_TO_DESCRIPTOR = 8, 11
_ROLES = {0x41: 1, 0x42: 1, 0x56: 2}
#: octets of a delivery number by its constructor
_NUMBERS = {0x43: 0, 0x52: 1, 0x70: 4}
_NULL = 0x40
#: deliveries that a disposition may name whose fields are of other types: the engine passes over what it does not
#: understand, and takes it for 0
_UNKNOWN = 1 << 32


class Dispositions:
    """Of what one peer sends, from its protocol header on."""

    __slots__ = ("_begun", "_large_left", "_left", "largest", "refused")

    def __init__(self) -> None:
        #: octets of the current frame that are still to come
        self._left = 8
        #: the beginning of a frame, while it is too short to be looked at
        self._begun = b""
        #: octets of the largest disposition among the frames looked at last; 0: none of them is large
        self.largest = 0
        #: octets of a large disposition that are still to come
        self._large_left = 0
        #: the engine gets nothing more of this peer
        self.refused = False

    def look(self, octets: memoryview) -> None:
        """Look at the next octets.

        :raises Refusal: one of them says too much: neither these octets nor any later ones may go to the engine.
        """
        large_end = self._large_left
        if not large_end:
            self.largest = 0
        there = octets if not self._begun else memoryview(self._begun + octets)
        end, head = len(there), _HEAD
        last = end - _UP_TO_DESCRIPTOR
        at = frames.small(there, self._left, _LITTLE, head)
        while at <= last:
            (size,) = _SIZE.unpack_from(there, at)
            if size < _SMALLEST:  # the engine says what is wrong
                self._left, self._begun = end, b""
                return
            if at + min(size, head) > end:
                break
            if self._is_large(bytes(there[at : at + min(size, head)]).ljust(head, b"\0"), size):
                large_end = at + size
            at = frames.small(there, at + size, _LITTLE, head)
        self._left = max(0, at - end)
        self._large_left = max(0, large_end - end)
        self._begun = bytes(there[at:])

    def also(self, frame: bytes) -> None:
        """Look at a frame that the engine gets in place of one that came.

        :raises Refusal: as above.
        """
        if len(frame) > _LITTLE:
            self._is_large(frame[:_HEAD].ljust(_HEAD, b"\0"), len(frame))

    def _is_large(self, head: bytes, size: int) -> bool:
        """Whether the frame of ``size`` octets that begins with ``head`` is a disposition.

        :raises Refusal: it says too much.
        """
        disposition = _fields(head, _DESCRIPTORS)
        named = _deliveries(head, disposition) if disposition else 0
        if named * size > MOST_OCTETS:
            text = f"a disposition of {size} bytes for many deliveries: say it of fewer at once, or say less"
        elif named and size > _HEAD and not _by_receiver(head, disposition):
            text = f"a disposition of {size} bytes by a sender: say less in its state"
        elif not named and _of_transfer(head) > MOST_OF_TRANSFER:
            text = f"a transfer with more than {MOST_OF_TRANSFER} bytes besides its message: say less in its state"
        else:
            if named:
                self.largest = max(self.largest, size)
            return named > 0
        self.refused = True
        raise Refusal(Condition.RESOURCE_LIMIT_EXCEEDED, text)


def _fields(head: bytes, descriptors: tuple[bytes, ...]) -> int:
    """Where the list of the performative's fields begins; 0: it has none of these descriptors."""
    at = 4 * head[4]
    for descriptor in descriptors:
        if head.startswith(descriptor, at):
            return at + len(descriptor)
    return 0


def _by_receiver(head: bytes, at: int) -> bool:
    """Whether the disposition whose fields begin at ``at`` is by a receiver."""
    at += _LISTS.get(head[at], 0)
    return head[at] == 0x41 or head[at : at + 2] == b"\x56\x01"


def _of_transfer(head: bytes) -> int:
    """Octets of a transfer's fields, without its message; 0 where it is another frame, or they are few."""
    at = _fields(head, _TRANSFERS)
    return int(_SIZE.unpack_from(head, at + 1)[0]) if at and head[at] == _LARGE_LIST else 0


def _deliveries(head: bytes, at: int) -> int:
    """How many the disposition names whose fields begin at ``at``."""
    at += _LISTS.get(head[at], 0)
    at += _ROLES.get(head[at], 0)
    numbers: list[int] = []
    for _ in range(2):
        if head[at] == _NULL and numbers:  # no last: it is the first
            return 1
        size = _NUMBERS.get(head[at])
        if size is None:
            return _UNKNOWN
        numbers.append(int.from_bytes(head[at + 1 : at + 1 + size], "big"))
        at += 1 + size
    first, last = numbers
    return (last - first) % (1 << 32) + 1
