"""Which of a store's servers has been left behind.

A primary that was lost, and comes back beside the standby that took its place, takes connections and writes as before;
but what it says is of a past that the store has left. A promotion begins a new timeline, with a higher number, so a
server on a lower one than another is such a server.

What was seen is in memory that a process shares with all that it forks: a service knows it as one.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from typing import NamedTuple

from store.errors import ONLY_READS, from_sqlstate

#: The server's system and timeline, as texts; no timeline: it is a standby. Any role may ask.
ASK = """select system_identifier::text,
      case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_lsn()), 8) end
      from pg_control_system()"""

_NOTE = struct.Struct("qI")


class Timeline(NamedTuple):
    """``system``: what all servers have in common that were copied from one; only their timelines can be compared."""

    system: int
    number: int


def read(row: Sequence[bytes | str | None]) -> Timeline | None:
    """The answer to :data:`ASK`; None: a standby."""
    system, number = row
    return None if system is None or number is None else Timeline(int(system), int(number, 16))


class Seen:
    """The highest timeline that this process, or one with which it shares, has seen of the system it saw last."""

    def __init__(self) -> None:
        #: made when it is first needed: by the supervisor, before it forks
        self._memory: mmap.mmap | None = None

    def above(self, at: Timeline | None) -> int:
        """The timeline on which another server was seen, if ``at`` was left behind; else 0, and ``at`` is seen."""
        if at is None:
            return 0
        if self._memory is None:
            self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        seen = Timeline(*_NOTE.unpack_from(self._memory))
        if seen.system != at.system or seen.number < at.number:
            _NOTE.pack_into(self._memory, 0, *at)
            return 0
        return seen.number if seen.number > at.number else 0


SEEN = Seen()


def unfit(at: Timeline | None, host: str, port: int | str) -> str:
    """Why the service does not work with the server of a new connection; empty: it does."""
    return old_primary(at, host, port) if at is not None else str(from_sqlstate(ONLY_READS))


def old_primary(at: Timeline | None, host: str, port: int | str) -> str:
    """What is to be done about a server that was left behind; empty: it was not."""
    above = SEEN.above(at)
    if at is None or not above:
        return ""
    return f"{host}:{port} is an old primary, on timeline {at.number}, and another server was seen on {above}: stop it"
