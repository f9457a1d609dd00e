"""The octets of a large message between its first frame and the store: in an unnamed temporary file, not in memory.

The file has no name, so that nothing is left of it whoever ends and however. It is made in the folder that ``TMPDIR``
names, else in ``/var/tmp``, which unlike ``/tmp`` is on a disk on all systems.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
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


class Spool:
    """A file that is written once, then read. OSError where there is no room for it."""

    __slots__ = ("_file", "_size")

    def __init__(self, first: bytes | bytearray) -> None:
        self._file = tempfile.TemporaryFile(buffering=0, dir=os.environ.get("TMPDIR", "/var/tmp"))  # noqa: S108, SIM115
        self._size = 0
        try:
            self.write(first)
        except OSError:
            self.close()
            raise

    def write(self, octets: bytes | bytearray | memoryview) -> None:
        rest = memoryview(octets)
        self._size += len(rest)
        while rest:
            rest = rest[self._file.write(rest) :]

    def finish(self) -> Octets:
        """All that was written; a large one stays in the file, which lives as long as what is returned."""
        try:
            if self._size > LARGE:
                return mmap(self._file.fileno(), self._size, access=ACCESS_READ)
            self._file.seek(0)
            return self._file.read(self._size)
        finally:
            self.close()

    def close(self) -> None:
        self._file.close()
