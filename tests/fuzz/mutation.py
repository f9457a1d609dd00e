"""Cases made of what real clients have sent (``seeds/``): flipped, cut, spliced, repeated, and written in pieces."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.fuzz.cases import Case

SEEDS = Path(__file__).parent / "seeds"

_ODD_OCTETS = bytes((0x00, 0x01, 0x7F, 0x80, 0xFF, 0x40, 0x45, 0x56, 0x70, 0xA0, 0xB0, 0xC0, 0xC1, 0xD0, 0xD1, 0xF0))
_ODD_SIZES = (0, 1, 7, 8, 9, 511, 512, 65535, 65536, 65537, 1 << 20, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
#: of a case, so that a repeated large frame does not make all the octets of a run
_MOST_OCTETS = 64 * 1024
_MOST_UNITS = 400


def units(stream: bytes) -> Iterator[bytes]:
    """Protocol headers and frames; what is left at the end where the last is not whole."""
    at = 0
    while at < len(stream):
        size = 8 if stream[at : at + 4] == b"AMQP" else max(8, int.from_bytes(stream[at : at + 4], "big"))
        yield stream[at : at + size]
        at += size


def is_frame(unit: bytes) -> bool:
    return not unit.startswith(b"AMQP")


class Mutation:
    """``case()`` makes the next one."""

    def __init__(self, random: Random) -> None:
        self._random = random
        paths = sorted(SEEDS.glob("*.bin"))
        assert paths, "there are no seeds; python -m tests.fuzz.record makes them"
        self._seeds = [list(units(path.read_bytes())) for path in paths]

    def case(self) -> Case:
        random = self._random
        found = list(random.choice(self._seeds))
        stage = random.choice(_STAGES)
        for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
            found = _MUTATIONS[stage](random, found, self._seeds)
            stage = random.choice(_STAGES) if random.random() < 0.3 else stage
        kept: list[bytes] = []
        size = 0
        for unit in found[:_MOST_UNITS]:
            size += len(unit)
            if size > _MOST_OCTETS:
                break
            kept.append(unit)
        writes, frames = _written(random, kept)
        return Case("mutation", stage, writes, frames, abrupt=random.random() < 0.1)


def _place(random: Random, found: list[bytes]) -> int:
    """More often beyond the opening, where most happens."""
    if len(found) > 4 and random.random() < 0.8:
        return random.randrange(4, len(found))
    return random.randrange(len(found)) if found else 0


def _flipped(random: Random, found: list[bytes], _seeds: list[list[bytes]]) -> list[bytes]:
    """Some bits, in the bodies of one to three units."""
    for _ in range(random.choice((1, 1, 2, 3))):
        if not found:
            break
        at = _place(random, found)
        octets = bytearray(found[at])
        low = 8 if len(octets) > 8 and random.random() < 0.9 else 0
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            where = random.randrange(low, len(octets))
            if random.random() < 0.5:
                octets[where] ^= 1 << random.randrange(8)
            else:
                octets[where] = random.choice(_ODD_OCTETS)
        found[at] = bytes(octets)
    return found


def _resized(random: Random, found: list[bytes], _seeds: list[list[bytes]]) -> list[bytes]:
    """The frame's size, its data offset, its type or its channel."""
    at = _place(random, found)
    if found and len(found[at]) >= 8:
        size, offset, kind, channel = struct.unpack_from(">IBBH", found[at])
        which = random.randrange(4)
        size = random.choice((*_ODD_SIZES, size - 1, size + 1)) & 0xFFFFFFFF if which == 0 else size
        offset = random.randrange(256) if which == 1 else offset
        kind = random.randrange(256) if which == 2 else kind
        channel = random.choice((1, 2, 1023, 1024, 65535)) if which == 3 else channel
        found[at] = struct.pack(">IBBH", size, offset, kind, channel) + found[at][8:]
    return found


def _inner_sizes(random: Random, found: list[bytes], _seeds: list[list[bytes]]) -> list[bytes]:
    """A size or count within a frame: of a list, a map, an array, a string or a binary."""
    at = _place(random, found)
    if found:
        octets = bytearray(found[at])
        places = [
            place + 1 for place, octet in enumerate(octets[:-5]) if place >= 8 and octet >= 0xA0 and octet & 0xF < 4
        ]
        if places:
            place = random.choice(places)
            if octets[place - 1] & 0x10:
                octets[place : place + 4] = struct.pack(">I", random.choice(_ODD_SIZES))
            else:
                octets[place] = random.choice((0, 1, octets[place] - 1 & 0xFF, octets[place] + 1 & 0xFF, 0x7F, 0xFF))
        found[at] = bytes(octets)
    return found


def _cut(random: Random, found: list[bytes], _seeds: list[list[bytes]]) -> list[bytes]:
    """A frame shortened, its size made to fit; or the stream ends within a frame."""
    at = _place(random, found)
    if found and len(found[at]) > 9:
        kept = found[at][: random.randrange(8, len(found[at]))]
        if random.random() < 0.3:
            return [*found[:at], kept]
        found[at] = struct.pack(">I", len(kept)) + kept[4:]
    return found


def _grown(random: Random, found: list[bytes], _seeds: list[list[bytes]]) -> list[bytes]:
    """Octets put in, the frame's size made to fit."""
    at = _place(random, found)
    if found and len(found[at]) > 8:
        place = random.randrange(8, len(found[at]) + 1)
        more = random.choice((random.randbytes(random.randrange(1, 20)), found[at][8:place]))
        octets = found[at][:place] + more + found[at][place:]
        found[at] = struct.pack(">I", len(octets)) + octets[4:]
    return found


def _spliced(random: Random, found: list[bytes], seeds: list[list[bytes]]) -> list[bytes]:
    """The beginning of one conversation, the end of another; or frames of one in the midst of another."""
    other = random.choice(seeds)
    at, start = random.randrange(len(found) + 1), random.randrange(len(other) + 1)
    if random.random() < 0.5:
        return found[:at] + other[start:]
    return found[:at] + other[start : start + random.randrange(1, 8)] + found[at:]


def _repeated(random: Random, found: list[bytes], _seeds: list[list[bytes]]) -> list[bytes]:
    """One frame, or some, many times over."""
    at = _place(random, found)
    until = at + random.choice((1, 1, 2, 5))
    times = random.choice((1, 2, 10, 50, 100))
    return found[:until] + found[at:until] * times + found[until:]


def _reordered(random: Random, found: list[bytes], _seeds: list[list[bytes]]) -> list[bytes]:
    """Frames that change places, or are left out."""
    for _ in range(random.choice((1, 1, 2))):
        if len(found) > 1:
            one, other = _place(random, found), _place(random, found)
            if random.random() < 0.5:
                found[one], found[other] = found[other], found[one]
            else:
                del found[one]
    return found


def _unchanged(_random: Random, found: list[bytes], _seeds: list[list[bytes]]) -> list[bytes]:
    return found


_MUTATIONS = {
    "bits": _flipped,
    "frame header": _resized,
    "sizes": _inner_sizes,
    "cut": _cut,
    "grown": _grown,
    "spliced": _spliced,
    "repeated": _repeated,
    "reordered": _reordered,
    "unchanged": _unchanged,
}
_STAGES = ("bits", "bits", "bits", "frame header", "sizes", "sizes", "cut", "grown", "spliced", "spliced", "repeated",
           "repeated", "repeated", "reordered", "reordered", "unchanged")  # fmt: skip


#: begin and attach: a client waits for the answer before it sends more
_ANSWERED = (b"\x00\x53\x11", b"\x00\x53\x12")


def _written(random: Random, found: list[bytes]) -> tuple[list[bytes], list[int]]:
    """All at once, some units at a time, or cut at places that have nothing to do with frames."""
    how = random.random()
    frames = [int(is_frame(unit)) for unit in found]
    if how < 0.15:
        return [b"".join(found)], [sum(frames)]
    if how < 0.3:
        stream = b"".join(found)
        places = sorted(random.randrange(len(stream) + 1) for _ in range(random.choice((1, 3, 6))))
        edges = [0, *places, len(stream)]
        writes = [stream[start:end] for start, end in itertools.pairwise(edges)]
        return writes, [0] * (len(writes) - 1) + [sum(frames)]
    writes, counts = [], []
    at = 0
    while at < len(found):
        # the first is the opening, which a client sends before it has received more than a header
        until = at + (random.choice((1, 2, 3)) if at == 0 else random.choice((1, 2, 4, 8, 20)))
        waits = next((place for place in range(at, min(until, len(found))) if found[place][8:11] in _ANSWERED), None)
        until = until if waits is None else waits + 1
        writes.append(b"".join(found[at:until]))
        counts.append(sum(frames[at:until]))
        if waits is not None and random.random() < 0.7:
            writes.append(b"")
            counts.append(0)
        at = until
    return writes, counts
