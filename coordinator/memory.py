"""Memory that clients make this worker hold is counted by part; each part has a bound and a remedy.

Six parts have equal shares of ``limits.memory_bytes``; a full part stops no other:

* units that wait for the store: posters get no credit, and their sockets are not read;
* posts on the relay that wait for an address: their connections are not read;
* incomplete messages: they move to files, which have a bound of their own (``limits.spool_bytes``);
* undecided transactions: the largest are refused, and drop their messages;
* deliveries that peers have not read or settled: connections with more than a fair share get no further ones;
* windows of queues: they load less from the store.

Compiled selectors may have a quarter of a share (attaches that need more are refused), and so may indexes of queues
(they cover less), known addresses (those used least are forgotten), and undecided transactions themselves (declares of
connections with more than a fair number are refused). Connections, links and undecided transactions are bounded by
number, too (``limits.connections`` and others).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.bounds import Bounds
    from store.loop import Loop

#: Memory that a post takes in addition to its octets.
POST_OCTETS = 200
#: Memory that an entry takes in addition to its message.
ENTRY_OCTETS = 500
#: Memory that an undecided transaction takes in addition to its work, roughly.
TRANSACTION_OCTETS = 1000
#: Memory that an address and its queue take, roughly.
ADDRESS_OCTETS = 10_000
#: Bounds of the octets that one connection may leave unread or unsettled, while all together leave too many.
MOST_FAIR, LEAST_FAIR = 1 << 18, 1 << 14
#: the undecided transactions that each connection may have, while all together have too many
LEAST_TRANSACTIONS = 16

#: between checks whether the process has much freed memory
_LOOK_SECONDS = 1.0

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


class Account:
    """Counts the octets of each part, and computes the bounds."""

    __slots__ = (
        "connections", "indexes", "most", "most_transactions", "most_unfinished", "parked", "selectors",
        "transactions", "unread", "window_bytes", "window_room", "windows",
    )  # fmt: skip

    def __init__(self, bounds: Bounds, most: int) -> None:
        """``most``: the most octets of all parts together."""
        #: the most octets of each part
        self.most = max(1, most // 6)
        #: the number of undecided transactions from which on each connection may have only a fair number
        self.most_transactions = self.most // 4 // TRANSACTION_OCTETS
        #: the most octets in memory of incomplete messages
        self.most_unfinished = min(bounds.unfinished_bytes, self.most)
        #: how many connections the worker has, whose peers may leave octets unread
        self.connections = 0
        #: the most octets of the windows of one queue
        self.window_bytes = min(bounds.window_bytes, self.share)
        #: octets of posts on the relay whose address is being looked up
        self.parked = 0
        #: octets of the indexes of queues
        self.indexes = 0
        #: octets of compiled selectors of consumers and browsers
        self.selectors = 0
        #: octets of messages and annotations of undecided transactions
        self.transactions = 0
        #: octets of deliveries that peers have not read or settled
        self.unread = 0
        #: octets of messages in windows, and of those kept for deliveries under way
        self.windows = 0
        #: the most octets of one queue's window and deliveries under way; 0 while all queues together have too many
        self.window_room = self.window_bytes

    @property
    def share(self) -> int:
        """The most that one batch, one window or one connection may have of a part."""
        return self.most // 4

    @property
    def fair_share(self) -> int:
        """The octets that one connection may leave unread or unsettled, while all together leave too many."""
        return max(LEAST_FAIR, min(MOST_FAIR, self.most // max(1, self.connections)))

    def count_windows(self, octets: int) -> None:
        """Count so many more octets of a queue; below 0: fewer."""
        self.windows += octets
        self.window_room = 0 if self.windows_full else self.window_bytes

    @property
    def windows_full(self) -> bool:
        return self.windows > self.most

    @property
    def fair_transactions(self) -> int:
        """The number of undecided transactions that one connection may have while there are too many."""
        return max(LEAST_TRANSACTIONS, self.most_transactions // max(1, self.connections))

    @property
    def most_addresses(self) -> int:
        """The number of addresses that may be in memory: a quarter of a part's octets."""
        return max(16, self.most // 4 // ADDRESS_OCTETS)


class GivingBack:
    """Returns freed memory to the system whenever the worker has grown by a part. The C library would keep it, in
    pieces between memory in use.
    """

    def __init__(self, loop: Loop, memory: Account) -> None:
        self._loop = loop
        self._enough = resident() + memory.most
        self._check()

    def _check(self) -> None:
        self._loop.call_later(_LOOK_SECONDS, self._check)
        if resident() > self._enough:
            give_back()


def give_back() -> None:
    """Return freed memory to the system, if the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident() -> int:
    """Return the octets of memory that this process uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def default_bytes(workers: int) -> int:
    """Return the default of ``limits.memory_bytes`` for one of so many workers: a quarter of the machine's memory, or
    of the cgroup's if that is less, divided among them.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_cgroup_limits()]) // 4 // workers


def _cgroup_limits() -> list[int]:
    """Return the limits of the process's cgroup and its parents (version 2), or of its memory controller (version
    1).
    """
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
