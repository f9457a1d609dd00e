"""The octets of a large message between its first frame and the store: in an unnamed temporary file, not in memory.

The file has no name, so that nothing is left of it whoever ends and however. It is made in the folder that ``TMPDIR``
names, else in ``/var/tmp``, which unlike ``/tmp`` is on a disk on all systems.
"""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from mmap import ACCESS_READ, MADV_DONTNEED, mmap

#: A message: in memory, or in a file (its octets are read as they are looked at, and not kept).
Octets = bytes | mmap

#: Larger messages are written to the store, and read from it, piece by piece.
LARGE = PIECE = 1 << 20
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
    there, it may have files let go.
    """

    __slots__ = ("_make_room", "_most", "_used")

    def __init__(self, most: int, make_room: Callable[[int], None]) -> None:
        self._make_room = make_room
        self._most = most
        self._used = 0

    def take(self, octets: int) -> None:
        """OSError where there is no room."""
        if self.short_of(octets):
            self._make_room(octets)
        if self.short_of(octets):
            raise NoRoom(errno.ENOSPC, "large messages hold as much of the disk as they may (limits.spool_bytes)")
        self._used += octets

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

    __slots__ = ("_file", "_room", "_size", "_taken")

    def __init__(self, first: bytes | bytearray, room: Room) -> None:
        room.take(PIECE)
        self._room = room
        self._taken = PIECE
        try:
            self._open(first)
        except OSError:
            self._give_back()
            raise

    def _give_back(self) -> None:
        self._room.give_back(self._taken)
        self._taken = 0

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
        self._size += len(rest)
        if self._size > self._taken:
            self._room.take(self._size - self._taken)
            self._taken = self._size
        while rest:
            rest = rest[self._file.write(rest) :]

    def finish(self) -> Octets:
        """All that was written; a large one stays in the file, which lives as long as what is returned."""
        try:
            if self._size > LARGE:
                message = mmap(self._file.fileno(), self._size, access=ACCESS_READ)
                weakref.finalize(message, self._room.give_back, self._taken)
                self._taken = 0
                return message
            self._file.seek(0)
            return self._file.read(self._size)
        finally:
            self.close()

    def close(self) -> None:
        self._give_back()
        self._file.close()
