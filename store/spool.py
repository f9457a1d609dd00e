"""The octets of a large message between its first frame and the store: in an unnamed temporary file, not in memory.

The file has no name, so that nothing is left of it however the process ends. It is made in the folder that ``TMPDIR``
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

#: A message: in memory, or in a file (its octets are read as they are looked at, and not kept).
Octets = bytes | mmap

#: Larger messages are written to the store, and read from it, piece by piece.
LARGE = PIECE = 1 << 20
#: when nothing was added for so long to a message that is not complete, it gives way to others
SILENT_SECONDS = 5.0
#: Of a large message, what comes with its entry.
HEAD = 1 << 16


def pieces(message: Octets) -> Iterator[bytes]:
    """Of :data:`PIECE` octets; only one is in memory."""
    for at in range(0, len(message), PIECE):
        yield message[at : at + PIECE]
        if isinstance(message, mmap):
            message.madvise(MADV_DONTNEED, at, PIECE)


class Room:
    """Octets of all files of this process: at most ``most``. ``make_room``: called with what is asked for and not
    there, it may have files of complete messages let go.

    Files of messages that are not complete give way to others: first those to which nothing was added for a while,
    and, when complete ones have let go of what they may, those of the owner who has the most in them.
    """

    __slots__ = ("_begun", "_make_room", "_most", "_used")

    def __init__(self, most: int, make_room: Callable[[int], None]) -> None:
        self._make_room = make_room
        self._most = most
        self._used = 0
        #: files of messages that are not complete, the oldest first
        self._begun: dict[Spool, None] = {}

    def take(self, octets: int, spool: Spool) -> None:
        """For a file of a message that is not complete. OSError where there is no room."""
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
        """Its message is complete, or given up."""
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
    """The files have as much as they may."""


class Spool:
    """A file that is written once, then read. OSError where there is no room for it.

    It takes room as if it had :data:`PIECE` octets at least: a small file is a descriptor, too.
    """

    __slots__ = ("_file", "_room", "_size", "added", "gives_way", "owner", "taken")

    def __init__(self, first: bytes | bytearray, room: Room, owner: object, gives_way: Callable[[], None]) -> None:
        """``owner``: who writes it. ``gives_way``: called when others need its room; it closes the file."""
        self.owner = owner
        self.gives_way = gives_way
        #: by the monotonic clock
        self.added = time.monotonic()
        #: octets of the room
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
        """All that was written; a large one stays in the file, which lives as long as what is returned."""
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
