"""The compiled part under the same octets as its twins in Python, and under the sanitizers.

:func:`play` gives both messages and frames of the grammar and of real clients, whole and broken, and looks for what
they do not answer alike; :func:`sanitized` compiles the C with ASan and UBSan, in which a second Python does the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random
from typing import Any

from store import arrays
from store.codec import encoding, message
from store.codec.encoding import DecodeError
from store.compiled import MODULES, compiled
from tests.fuzz.compiled_frames import Frames
from tests.fuzz.compiled_frames import differs as frames_differ
from tests.fuzz.grammar import Grammar
from tests.fuzz.mutation import SEEDS, is_frame, units
from tests.wire import messages, types
from tests.wire.types import Byte, Symbol, Timestamp, UInt, ULong

ROOT = Path(__file__).resolve().parent.parent.parent
_SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1")
#: messages that are changed for the next inputs
_MOST_KEPT = 1000
_ODD_SIZES = (0, 1, 2, 3, 4, 5, 8, 0x7F, 0x80, 0xFE, 0xFF)
#: constructors and descriptors, which an octet drawn at random seldom is
_CODES = bytes.fromhex(
    "00 40 41 43 45 50 52 53 55 56 60 70 71 72 73 74 75 76 77 78 80 83 98 a0 a1 a3 b0 b1 b3 c0 c1 d0 d1 e0 f0"
)


class Differs(AssertionError):
    """The compiled part and its twin do not say the same of ``octets``."""


def shapes() -> dict[str, bytes]:
    """Messages as clients send them: what the compiled part is there for."""
    body = messages.data(b"x" * 256)
    durable = messages.Header(durable=True).encoded()
    annotations = {Symbol("x-opt-jms-msg-type"): Byte(5), Symbol("x-opt-jms-dest"): Byte(0)}
    properties = messages.Properties(message_id="ID:5870cfb3-6e32:1:1:1-7", to="orders", creation_time=Timestamp(7))
    jms = durable + messages.section(messages.MESSAGE_ANNOTATIONS, annotations) + properties.encoded()
    text = messages.section(messages.VALUE, "y" * 256)
    return {
        "bare": body,
        "durable": durable + body,
        "jms": jms + text,
        "jms with properties": jms + messages.section(messages.APPLICATION_PROPERTIES, {"a": "b", "n": UInt(3)}) + text,
        "all that is told": messages.Header(durable=True, priority=7, ttl=UInt(60_000)).encoded()
        + messages.Properties(absolute_expiry_time=Timestamp(1 << 41), group_id="g-1").encoded()
        + body,
    }


class Inputs:
    """``messages()``: for ever, the same for the same seed; a few in ten are as a client sends them."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._grammar = Grammar(random)
        self._real = [*shapes().values(), *_told(), *_recorded()]
        self._kept = list(self._real)

    def messages(self) -> Iterator[bytes]:
        random, kept = self._random, self._kept
        while True:
            which = random.random()
            if which < 0.02:
                octets = self._grammar.message()
            elif which < 0.2:
                octets = random.choice(self._real)
            elif which < 0.25:
                octets = self._short()
            else:
                octets = random.choice(kept)
                for _ in range(random.choice((1, 1, 1, 2, 4))):
                    octets = self._changed(octets)
            if len(kept) < _MOST_KEPT:
                kept.append(octets)
            elif which < 0.02 or random.random() < 0.05:
                kept[random.randrange(len(kept))] = octets if random.random() < 0.7 else random.choice(self._real)
            yield octets

    def _short(self) -> bytes:
        """A section whose value is as short as it says, or shorter than a list or map can be; it is the last."""
        random = self._random
        constructor = random.choice((0xA0, 0xA1, 0xB0, 0xC0, 0xC0, 0xC1, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0))
        size = random.randrange(10)
        value = bytes((constructor,)) + size.to_bytes(4 if constructor & 0x10 else 1, "big")
        within = bytes(random.choice(_CODES) if random.random() < 0.5 else random.randrange(3) for _ in range(size))
        before = random.choice((b"", b"", messages.Header(durable=True).encoded()))
        return before + bytes((0x00, 0x53, random.randrange(0x70, 0x79))) + value + within

    def _changed(self, octets: bytes) -> bytes:
        random = self._random
        if not octets:
            return octets
        at = random.randrange(len(octets))
        which = random.randrange(8)
        if which < 3:
            changed = bytes((random.choice(_CODES) if which else random.randrange(256),))
            return octets[:at] + changed + octets[at + 1 :]
        if which == 3:
            return octets[:at] + bytes((random.choice(_ODD_SIZES),)) + octets[at + 1 :]
        if which == 4:
            return octets[:at]
        if which == 5:
            return octets[:at] + random.choice((b"\x40", b"\x00\x53\x75\xa0\x00", b"\xff\xff\xff\xff")) + octets[at:]
        if which == 6:
            return octets[:at] + octets[at + random.randrange(1, 8) :]
        other = random.choice(self._kept)
        return octets[:at] + other[random.randrange(len(other) + 1) :]


def _both_sizes(code: int, value: Any) -> Iterator[bytes]:
    for large in (False, True):
        yield bytes((0x00, 0x53, code)) + types.encode(value, large=large)


def _told() -> Iterator[bytes]:
    """What a message says of its own delivery, each at its edges."""
    body = messages.data(b"x")
    for key in (message.DELIVERY_TIME, message.DELIVERY_DELAY, "x-opt-delivery-count", "x-opt"):
        yield from (each + body for each in _both_sizes(messages.MESSAGE_ANNOTATIONS, {Symbol(key): ULong(5)}))
    for name in (message.PRODUCER_GROUP, *message.CHECKS, "check", "producer"):
        yield from (each + body for each in _both_sizes(messages.APPLICATION_PROPERTIES, {name: "5"}))
    for size in (255, 256):
        yield messages.Properties(group_id="g" * size).encoded() + body
    yield messages.Properties(group_id="ü").encoded() + body
    for field, value in enumerate((UInt(5), UInt(256), ULong(1 << 32), UInt(5), ULong(1 << 32), None)):
        yield messages.section(messages.Header.CODE, [None] * field + [value]) + body
    yield messages.section(messages.Properties.CODE, [None] * 14) + body
    yield messages.section(messages.DATA, b"x") * 100
    yield messages.section(messages.DATA, b"x") * 101


def _recorded() -> Iterator[bytes]:
    """The messages of the transfers that real clients have sent."""
    for path in sorted(SEEDS.glob("*.bin")):
        for unit in units(path.read_bytes()):
            if is_frame(unit) and unit[8:11] == b"\x00\x53\x14":
                yield unit[encoding.skip(unit, 8) :]


def told_by_twin(octets: bytes) -> message.Facts | None:
    """None: it is refused."""
    try:
        return message._facts(octets, message.sections(octets))
    except DecodeError:
        return None


def play(modules: dict[str, Any], seed: int, count: int) -> int:
    """How many of ``count`` messages the compiled part has taken; of frames there are a fourth, of arrays a tenth.

    :raises Differs: it does not say what the twin says
    """
    scan: Callable[[bytes], tuple[Any, ...] | None] = modules["store.codec._scan"].scan
    random = Random(seed)
    found = Inputs(random).messages()
    made = Frames(random)
    taken = 0
    for number in range(count):
        if number % 10 == 0:
            _pack(modules["store._packing"], random, seed)
        if number % 4 == 0 and (differs := frames_differ(modules["links._frames"], random, made)):
            raise Differs(f"of seed {seed}: {differs}")
        octets = next(found)
        said = scan(octets)
        if said is None:
            continue
        taken += 1
        told = message._facts_of(*said) if said else message.NO_FACTS
        if told != (expected := told_by_twin(octets)):
            raise Differs(f"message {number} of seed {seed}, {octets!r}: {told} compiled, {expected} in Python")
    return taken


_NUMBERS = (0, 1, -1, *(sign * (1 << bits) - less for bits in (15, 31, 63) for sign in (1, -1) for less in (0, 1)))
_ODD: tuple[Any, ...] = (None, "x", 1.5, b"x", [], 1 << 64)
_OCTETS: tuple[Any, ...] = (
    b"",
    b"x",
    bytes(16),
    bytes(255),
    bytes(4096),
    "text",
    None,
    bytearray(b"x"),
    memoryview(b"yz"),
    [],
)
_FIXED = ((arrays.INT8, 8, "iq"), (arrays.INT4, 4, "ii"), (arrays.INT2, 2, "ih"), (arrays.BOOL, 1, "i?"))


def _pack(packing: Any, random: Random, seed: int) -> None:
    """Lists of numbers and of octets that fit, mostly; what the compiled part does not take, it leaves to the twin."""
    count = random.choice((0, 1, 2, 3, 10, 100))
    made: bytes | None
    values: Any
    if random.random() < 0.5:
        oid, width, code = random.choice(_FIXED)
        fitting = [each for each in _NUMBERS if -(1 << 8 * width - 1) <= each < 1 << 8 * width - 1 or width == 1]
        drawn: list[Any] = random.choices((True, False) if width == 1 and random.random() < 0.8 else fitting, k=count)
        if random.random() < 0.2 and drawn:
            drawn[random.randrange(count)] = random.choice((*_NUMBERS, *_ODD, True))
        values = tuple(drawn) if random.random() < 0.05 else drawn
        made = packing.fixed(values, oid, width)
        expected = None if made is None else arrays._fixed_in_python(values, oid, width, code)
    else:
        values = random.choices(_OCTETS[: len(_OCTETS) if random.random() < 0.1 else 5], k=count)
        made = packing.varying(values, arrays.BYTEA)
        expected = None if made is None else arrays._varying_in_python(values, arrays.BYTEA)
    if made != expected:
        raise Differs(f"an array of seed {seed}, {values!r}: {made!r} compiled, {expected!r} in Python")


# -- under the sanitizers


def sanitized(seed: int, count: int) -> str:
    """The C compiled anew, in a Python of its own; what that one has printed.

    :raises subprocess.CalledProcessError: something was found: what, is on the standard error
    """
    with tempfile.TemporaryDirectory() as folder:
        for module in MODULES:
            source = ROOT / (module.replace(".", "/") + ".c")
            include = f"-I{sysconfig.get_path('include')}"
            made = Path(folder, f"{module}.so")
            subprocess.run(["cc", *_SANITIZERS, "-shared", "-fPIC", include, "-o", made, source], check=True)
        said = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
        environment = os.environ | {
            "LD_PRELOAD": said.stdout.strip(),
            "PYTHONMALLOC": "malloc",
            # Python keeps what it was given until it ends
            "ASAN_OPTIONS": "detect_leaks=0",
        }
        command = [sys.executable, "-m", "tests.fuzz.compiled", folder, str(seed), str(count)]
        return subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def _from(folder: Path) -> dict[str, Any]:
    modules = {}
    for name in MODULES:
        spec = spec_from_file_location(name, folder / f"{name}.so")
        assert spec is not None
        assert spec.loader is not None
        modules[name] = module_from_spec(spec)
        spec.loader.exec_module(modules[name])
    return modules


def installed() -> dict[str, Any] | None:
    """None: the compiled part is not there, or not wanted."""
    found = {name: compiled(name) for name in MODULES}
    return None if None in found.values() else found


def said_of(modules: dict[str, Any], seed: int, count: int) -> str:
    return f"{count:,} inputs of seed {seed}, {play(modules, seed, count):,} taken, none differs"


def main() -> None:
    """Of a Python under the sanitizers: the folder of the modules, the seed, the number of inputs."""
    folder, seed, count = sys.argv[1:]
    sys.stdout.write(said_of(_from(Path(folder)), int(seed), int(count)))


if __name__ == "__main__":
    main()
