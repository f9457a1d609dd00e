"""What clients make this worker hold in memory: counted by part, each with a bound and a remedy of its own.

Six parts share ``limits.memory_bytes`` alike, so that one that is full stops none of the others:

* what waits for the store: posters wait (their credit stops, their sockets are not read);
* posts of the relay that wait for an address: the connections that have some wait;
* messages that are not complete: they go on in files, which have a bound of their own (``limits.spool_bytes``);
* undecided transactions: the largest are refused, and let go of their messages;
* what peers have not read or settled: consumers of connections that hold more than a fair share wait;
* windows of queues: they take less from the store.

Beside these, compiled selectors may have a quarter of a part (attaches that need more are refused), and as much the
addresses that are known (those used least are forgotten). Connections, links and undecided transactions have numbers
of their own (``limits.connections`` and its like).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.settings import LimitSettings
    from store.loop import Loop

#: Memory that a post takes besides its octets.
POST_OCTETS = 200
#: Memory that an entry in hand takes besides its message.
ENTRY_OCTETS = 500
#: Memory that an address and its queue take, about.
ADDRESS_OCTETS = 5000

#: how often the worker looks whether it has much that it does not use
_LOOK_SECONDS = 1.0

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


class Account:
    """Octets by part, and the most of each."""

    __slots__ = ("most", "most_unfinished", "parked", "selectors", "transactions", "unread", "window_bytes", "windows")

    def __init__(self, limits: LimitSettings, most: int) -> None:
        """``most``: of all parts together."""
        #: of each part
        self.most = max(1, most // 6)
        #: of messages that are not complete
        self.most_unfinished = min(int(limits.unfinished_bytes), self.most)
        #: of the windows of one queue
        self.window_bytes = min(int(limits.window_bytes), self.share)
        #: posts of the relay whose address is looked up
        self.parked = 0
        #: compiled selectors of consumers and browsers
        self.selectors = 0
        #: messages and annotations of undecided transactions
        self.transactions = 0
        #: what peers have not read
        self.unread = 0
        #: messages in windows, and those kept for deliveries under way
        self.windows = 0

    @property
    def share(self) -> int:
        """Of a part: the most of one batch, one window, or one connection."""
        return self.most // 4

    @property
    def windows_full(self) -> bool:
        return self.windows > self.most

    @property
    def most_addresses(self) -> int:
        """That are known in memory: they may have a quarter as much as a part."""
        return max(16, self.most // 4 // ADDRESS_OCTETS)


class GivingBack:
    """What was freed goes back to the system, once the worker has grown by a part of its memory: the C library keeps
    it otherwise, in pieces between what is used.
    """

    def __init__(self, loop: Loop, memory: Account) -> None:
        self._loop = loop
        self._enough = resident() + memory.most
        self._look()

    def _look(self) -> None:
        self._loop.call_later(_LOOK_SECONDS, self._look)
        if resident() > self._enough:
            give_back()


def give_back() -> None:
    """To the system, what was freed; nothing where the C library has no way to."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident() -> int:
    """Octets of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def default_bytes(workers: int) -> int:
    """Of one of so many workers: a quarter of the machine's memory, or of the cgroup's where that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_cgroup_limits()]) // 4 // workers


def _cgroup_limits() -> list[int]:
    """Those of the process's cgroup and of the ones above it (version 2), or of its memory controller (version 1)."""
    limits: list[int] = []
    try:
        lines = _OWN_CGROUP.read_text().splitlines()
    except OSError:
        return limits
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if controllers and "memory" not in names:
            continue
        root, file = (_CGROUPS / "memory", "memory.limit_in_bytes") if controllers else (_CGROUPS, "memory.max")
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):
            if folder.is_relative_to(root):
                limits += _limit(folder / file)
    return limits


def _limit(file: Path) -> list[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return []
    return [int(text)] if text.isdecimal() else []
