"""What clients make this worker hold in memory: counted by part, each with a bound and a remedy of its own.

The parts share ``limits.memory_bytes`` in quarters, so that one that is full stops none of the others:

* what waits for the store, or for its address: posters wait (their credit stops, their sockets are not read);
* undecided transactions: the largest are refused, and let go of their messages;
* what peers have not read or settled: consumers of connections that hold more than a fair share wait;
* windows of queues: they take less from the store.
"""

from __future__ import annotations

import os
from pathlib import Path

#: Memory that a post takes besides its octets.
POST_OCTETS = 200

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


class Account:
    """Octets by part, and the most of each."""

    __slots__ = ("most", "parked", "transactions", "unread", "windows")

    def __init__(self, most: int) -> None:
        """``most``: of all parts together."""
        #: of each part
        self.most = max(1, most // 4)
        #: posts of the relay whose address is looked up
        self.parked = 0
        #: messages of undecided transactions
        self.transactions = 0
        #: what peers have not read
        self.unread = 0
        #: messages in windows, and those kept for deliveries under way
        self.windows = 0


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
