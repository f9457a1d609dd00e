"""The child's side of :mod:`coordinator.process.children`: what it was handed, and its socket to the supervisor."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Mapping
from typing import Any

from store.processes import die_with_parent


class Supervising:
    """The socket to the supervisor."""

    def __init__(self, pair: socket.socket) -> None:
        self._pair = pair
        self._unread = b""

    def fileno(self) -> int:
        return self._pair.fileno()

    def tell(self, **words: object) -> None:
        self._pair.sendall(json.dumps(words).encode() + b"\n")

    def hear(self) -> list[Mapping[str, Any]]:
        """What the supervisor has said since the last call; waits until it says something. Empty: the supervisor has
        ended.
        """
        lines: list[bytes] = []
        while not lines:
            octets = self._pair.recv(65536)
            if not octets:
                return []
            *lines, self._unread = (self._unread + octets).split(b"\n")
        return [json.loads(line) for line in lines]


def take(memory: int) -> tuple[dict[str, Any], Supervising]:
    """Read the file in memory, once. This process dies with its supervisor from now on."""
    with os.fdopen(memory, "rb") as stream:
        stream.seek(0)
        handed: dict[str, Any] = json.load(stream)
    die_with_parent(signal.SIGKILL, int(handed["parent"]))
    pair = socket.socket(fileno=int(handed["supervisor"]))
    pair.set_inheritable(False)
    return handed, Supervising(pair)
