"""Keep the octets of a large message, until the store has them, in an unnamed temporary file instead of memory.

The file has no name, so nothing remains of it however the process ends. It is created in the folder that ``TMPDIR``
names, else in ``/var/tmp``, which unlike ``/tmp`` is on a disk on all systems.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from mmap import ACCESS_READ, MADV_DONTNEED, mmap

#: A message: in memory, or in a file whose octets are read when they are used, and not kept in memory.
Octets = bytes | mmap

#: Larger messages are written to the store, and read from it, piece by piece.
LARGE = PIECE = 1 << 20
#: an incomplete message may be dropped in favour of others when nothing was added to it for so long
SILENT_SECONDS = 5.0
#: Octets of a large message that are loaded with its entry.
HEAD = 1 << 16


def pieces(message: Octets) -> Iterator[bytes]:
    """Yield pieces of :data:`PIECE` octets; one at a time is in memory."""
    for at in range(0, len(message), PIECE):
        yield message[at : at + PIECE]
        if isinstance(message, mmap):
            message.madvise(MADV_DONTNEED, at, PIECE)


class Room:
    """Limits the octets of all files of this process to ``most``.

    ``make_room`` is called with the octets that are requested and exceed the limit; it may close files of complete
    messages. Files of incomplete messages are dropped in favour of others: first those to which nothing was added for
    a while, then, after ``make_room``, those of the owner with the most octets in such files.
    """

    __slots__ = ("_begun", "_make_room", "_most", "_used")

    def __init__(self, most: int, make_room: Callable[[int], None]) -> None:
        self._make_room = make_room
        self._most = most
        self._used = 0
        #: files of incomplete messages, the oldest first
        self._begun: dict[Spool, None] = {}

    def take(self, octets: int, spool: Spool) -> None:
        """Reserve room for the file of an incomplete message. OSError if there is none."""
        if self.short_of(octets):
            self._end_silent(octets)
        if self.short_of(octets):
            self._make_room(octets)
        if self.short_of(octets):
            self._end_largest(octets, spool)
        if self.short_of(octets):
            raise NoRoom(errno.ENOSPC, "large messages hold as much of the disk as they may (limits.spool_bytes)")
        self._used += octets
        self._begun.setdefault(spool)

    def forget(self, spool: Spool) -> None:
        """Forget a file whose message is complete, or given up: it is not dropped any more."""
        self._begun.pop(spool, None)

    def _end_silent(self, octets: int) -> None:
        latest = time.monotonic() - SILENT_SECONDS
        for spool in [each for each in self._begun if each.added <= latest]:
            if self.short_of(octets):
                self._end(spool)

    def _end_largest(self, octets: int, asking: Spool) -> None:
        held: Counter[object] = Counter({asking.owner: 0})
        for spool in self._begun:
            held[spool.owner] += spool.taken
        while self.short_of(octets):
            ((owner, _),) = held.most_common(1)
            if owner is asking.owner:
                return
            largest = max((spool for spool in self._begun if spool.owner is owner), key=lambda spool: spool.taken)
            held[owner] -= largest.taken
            self._end(largest)

    def _end(self, spool: Spool) -> None:
        self.forget(spool)
        spool.gives_way()

    def short_of(self, octets: int) -> bool:
        return self._used + octets > self._most

    def give_back(self, octets: int) -> None:
        self._used -= octets


class NoRoom(OSError):
    """All files together have as many octets as they may."""


class Spool:
    """Holds one message in a file, which is written once and then read. OSError if there is no room for it.

    It counts as :data:`PIECE` octets at least, because a small file uses a descriptor, too.
    """

    __slots__ = ("_file", "_room", "_size", "added", "gives_way", "owner", "taken")

    def __init__(self, first: bytes | bytearray, room: Room, owner: object, gives_way: Callable[[], None]) -> None:
        """Create the file and write ``first``.

        ``owner``: the connection whose message it is. ``gives_way``: called when other messages need its room; it must
        close the file.
        """
        self.owner = owner
        self.gives_way = gives_way
        #: when octets were last added, by the monotonic clock
        self.added = time.monotonic()
        #: octets that it counts as
        self.taken = 0
        room.take(PIECE, self)
        self._room = room
        self.taken = PIECE
        try:
            self._open(first)
        except OSError:
            self._give_back()
            raise

    def _give_back(self) -> None:
        self._room.forget(self)
        self._room.give_back(self.taken)
        self.taken = 0

    def _open(self, first: bytes | bytearray) -> None:
        self._file = tempfile.TemporaryFile(buffering=0, dir=os.environ.get("TMPDIR", "/var/tmp"))  # noqa: S108, SIM115
        self._size = 0
        try:
            self.write(first)
        except OSError:
            self._file.close()
            raise

    def write(self, octets: bytes | bytearray | memoryview) -> None:
        rest = memoryview(octets)
        self.added = time.monotonic()
        self._size += len(rest)
        if self._size > self.taken:
            self._room.take(self._size - self.taken, self)
            self.taken = self._size
        while rest:
            rest = rest[self._file.write(rest) :]

    def finish(self) -> Octets:
        """Return the message. A large one stays in the file, which lives as long as the returned object."""
        try:
            if self._size > LARGE:
                message = mmap(self._file.fileno(), self._size, access=ACCESS_READ)
                weakref.finalize(message, self._room.give_back, self.taken)
                self.taken = 0
                return message
            self._file.seek(0)
            return self._file.read(self._size)
        finally:
            self.close()

    def close(self) -> None:
        self._give_back()
        self._file.close()
