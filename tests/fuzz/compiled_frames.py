"""The compiled part of ``links/frames.py`` under the same frames as its twins in Python."""

from __future__ import annotations

from random import Random
from typing import Any

from links import frames
from links.channels import Channel
from tests.fuzz.mutation import SEEDS, is_frame, units

_ODD = bytes.fromhex("00 01 02 04 05 06 07 08 0b 0c 10 14 15 20 21 40 41 42 43 52 53 56 70 7f 80 a0 b0 c0 d0 ff")
_STATES = (
    b"", b"\x00", b"\x00\x53\x24\x45", b"\x00\x53\x25\x45", b"\x00\x53\x25\xc0\x01\x00", b"\x00\x53\x25\xd0",
    b"\x00\xa3\x01a\x45",
    b"\x00\xb3\x00\x00\x00\x01a\x45",
)  # fmt: skip
#: a delivery-tag of 1, 32 and 33 octets (one too long), and the message-format
_TAGGED = (b"\xa0\x01t\x43", b"\xa0\x01t\x43", b"\xa0\x20" + bytes(32) + b"\x52\x00", b"\xa0\x21" + bytes(33) + b"\x43")


class Session:
    """A session of ours, as far as it is counted."""

    def __init__(self) -> None:
        self.sent = 0


class Frames:
    """``stream()``: some frames, whole and broken, most of them plain."""

    def __init__(self, random: Random) -> None:
        self._random = random
        recorded = [unit for path in sorted(SEEDS.glob("*.bin")) for unit in units(path.read_bytes()) if is_frame(unit)]
        self._recorded = [unit for unit in recorded if len(unit) < 2000]

    def stream(self) -> bytes:
        random = self._random
        found = b"".join(self._frame() for _ in range(random.choice((1, 2, 3, 8))))
        while random.random() < 0.6:
            found = self._changed(found)
        return found

    def _frame(self) -> bytes:
        random = self._random
        which = random.random()
        if which < 0.3:
            return random.choice(self._recorded)
        if which < 0.35:
            return b"\x00\x00\x00\x08\x02\x00\x00\x00"
        if which < 0.5:
            said = random.choice((b"", self._number() + random.choice((b"\x40", b"\x41", b"\x43")) + self._state()))
            first = random.choice((b"\x41", b"\x41", b"\x42")) + self._number()
            body = b"\x00\x53\x15" + self._list(random.randrange(8), first + said)
        else:
            fields = self._number() + self._number() + random.choice(_TAGGED)
            more = random.choice(
                (
                    b"",
                    b"\x41",
                    b"\x41\x42",
                    b"\x41\x42\x40",
                    b"\x40\x40\x40" + self._state(),
                    b"\x41\x42\x40\x40\x42",
                    b"\x41\x42\x40\x40\x41\x40",
                )
            )
            body = b"\x00\x53\x14" + self._list(4 + min(len(more), random.choice((4, 5, 7))), fields + more)
            body += bytes(random.choice((0, 1, 80, 300)))
        channel = random.choice((b"\x00\x00", b"\x00\x00", b"\x00\x01", b"\x01\x00"))
        return (8 + len(body)).to_bytes(4, "big") + b"\x02\x00" + channel + body

    def _state(self) -> bytes:
        return self._random.choice(_STATES)

    def _number(self) -> bytes:
        return self._random.choice(
            (b"\x43", b"\x52\x01", b"\x52\x02", b"\x70\x00\x00\x00\x01", b"\x70\xff\xff\xff\xff", b"\x40")
        )

    def _list(self, count: int, fields: bytes) -> bytes:
        if self._random.random() < 0.5:
            return b"\xc0" + bytes((len(fields) + 1, count)) + fields
        size = self._random.choice((len(fields) + 4, len(fields) + 4, 1023, 1024, 1 << 17))
        return b"\xd0" + size.to_bytes(4, "big") + count.to_bytes(4, "big") + fields

    def _changed(self, octets: bytes) -> bytes:
        random = self._random
        at = random.randrange(len(octets)) if octets else 0
        which = random.randrange(4)
        if which == 0:
            return octets[:at]
        if which == 1:
            return octets[:at] + octets[at + random.randrange(4) :]
        return octets[:at] + bytes((random.choice(_ODD),)) + octets[at + 1 :]


def differs(module: Any, random: Random, made: Frames) -> str:
    """What the compiled part says otherwise than its twins of the next stream; empty: nothing."""
    octets = made.stream()
    at = random.choice((0, 0, 0, 0, 1, len(octets), len(octets) + 9))
    highest = random.choice((0, 1, 0xFFFF_FFFE, 1 << 32))
    said = []
    for form in (module.plain, frames._plain_in_python):
        each_of = {number: Channel(7) for number in (b"\x00\x00", b"\x00\x01")}
        for channel in each_of.values():
            channel.delivery = 1
        channels = {(number, handle): channel for number, channel in each_of.items() for handle in (*_HANDLES, None)}
        told: frames.Named = {each_of[b"\x00\x00"]: highest}
        passed = form(octets, at, channels, told)
        said.append((passed, [(each.received, each.delivery, told.get(each)) for each in each_of.values()]))
    if said[0] != said[1]:
        return f"plain frames of {octets!r} from {at}: {said[0]} compiled, {said[1]} in Python"
    rewrites = random.random() < 0.5
    unnoted = [_unnoted(form, octets, at, rewrites) for form in (module.unnoted, frames._unnoted_in_python)]
    if unnoted[0] != unnoted[1]:
        return f"frames of ours, {octets!r} from {at}: {unnoted[0]} compiled, {unnoted[1]} in Python"
    return ""


_HANDLES = (b"\x43", b"\x52\x01", b"\x70\x00\x00\x00\x01")


def _unnoted(form: Any, octets: bytes, at: int, rewrites: bool) -> object:
    sessions = {0: Session(), 1: Session()}
    try:
        return form(memoryview(octets), at, sessions, rewrites), [each.sent for each in sessions.values()]
    except KeyError as error:
        return str(error)
