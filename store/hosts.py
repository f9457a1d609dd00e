"""Choose among the hosts of a database URL: the one that answered last comes first, a silent one gives way to others.

Which host answered last is in memory that a process shares with its forks, so that all processes of a service know it:
a machine that is dark, and first in the URL, delays one of them, once.
"""

from __future__ import annotations

import mmap
import struct
import time
from hashlib import blake2b

from psycopg.conninfo import conninfo_to_dict, make_conninfo

#: a mark of the host, and the monotonic time of its answer
_NOTE = struct.Struct("8sd")


class _Answered:
    """Remembers the host that answered last, and when. Forks share it once it has been used."""

    def __init__(self) -> None:
        #: created at its first use: by the supervisor, before it forks
        self._memory: mmap.mmap | None = None

    def note(self, mark: bytes) -> None:
        _NOTE.pack_into(self._shared(), 0, mark, time.monotonic())

    def last(self) -> tuple[bytes, float]:
        """Return mark and time; the time is 0 before the first answer."""
        mark, at = _NOTE.unpack_from(self._shared())
        return mark, at

    def _shared(self) -> mmap.mmap:
        if self._memory is None:
            self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        return self._memory


_ANSWERED = _Answered()


class Hosts:
    """The hosts of ``conninfo``, for one connection that is made again and again. One host is always the same one."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        given = conninfo_to_dict(conninfo)
        lists = {name: str(given.get(name) or "").split(",") for name in ("host", "hostaddr", "port")}
        self._several = {name: each for name, each in lists.items() if len(each) > 1}
        self._number = max(map(len, lists.values()))
        hosts, addresses, ports = (each * self._number if len(each) == 1 else each for each in lists.values())
        #: host and port, as libpq names those of a connection; an empty port is the default one
        self._places = [(host or address, port) for host, address, port in zip(hosts, addresses, ports, strict=False)]
        self._marks = [blake2b(":".join(each).encode(), digest_size=8).digest() for each in self._places]
        self._at = 0
        #: by host: when the last attempt began, or its last connection was given up
        self._tried = [0.0] * self._number

    def __len__(self) -> int:
        return self._number

    @property
    def current(self) -> str:
        """The chosen host with its port, for a log."""
        return ":".join(filter(None, self._places[self._at])) or "localhost"

    def choose(self) -> str:
        """Return the conninfo of one host, for an attempt that begins now."""
        last = self._last()
        if last is not None and last[1] > self._tried[last[0]]:
            self._at = last[0]
        self._tried[self._at] = time.monotonic()
        chosen = {name: each[self._at] for name, each in self._several.items()}
        return make_conninfo(self._conninfo, **chosen)

    def answered(self) -> None:
        """Note that the chosen host has answered, and can be used."""
        if self._number > 1:
            _ANSWERED.note(self._marks[self._at])

    def give_up(self) -> None:
        """Have the next attempt begin with another host, unless this one answers another connection meanwhile."""
        self._tried[self._at] = time.monotonic()
        self._at = (self._at + 1) % self._number

    def overtaken(self) -> bool:
        """Whether another host has answered since the attempt at the chosen one began."""
        last = self._last()
        return last is not None and last[0] != self._at and last[1] > self._tried[self._at]

    def in_turn(self) -> list[str]:
        """Return the conninfo for several attempts in a row, each of which begins with another host.

        libpq itself tries no other host if the first accepts the connection, or never answers.
        """
        last = self._last()
        first = 0 if last is None else last[0]
        turns = [(first + number) % self._number for number in range(self._number)]
        return [
            make_conninfo(
                self._conninfo, **{name: ",".join(each[turn:] + each[:turn]) for name, each in self._several.items()}
            )
            for turn in turns
        ]

    def answered_at(self, host: str, port: int) -> None:
        """Note that the host with this name and port, as libpq has chosen it, can be used."""
        same = (number for number, each in enumerate(self._places) if each in ((host, str(port)), (host, "")))
        self._at = next(same, self._at)
        self.answered()

    def _last(self) -> tuple[int, float] | None:
        """Return the host that answered last, and when; None: no host of these."""
        if self._number == 1:
            return None
        mark, at = _ANSWERED.last()
        return (self._marks.index(mark), at) if mark in self._marks else None
