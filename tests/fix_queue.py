"""A queue by itself: consumers that count, and as much of an instance as it asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from coordinator.bounds import Bounds
from coordinator.group.entries import Entry
from coordinator.group.fifo import FifoQueue
from coordinator.group.policies import Policies
from coordinator.group.queues import Queue
from coordinator.memory import Account
from coordinator.outcomes import Outcome


class Consumer:
    """Counts how often it is asked for its room."""

    default_outcome: Outcome | None = None
    connection: object = None
    has_decided = transactional = False

    def __init__(self, key: int, room: int) -> None:
        self.key = key
        self.has = room
        self.asked = 0
        self.draining = self.waits = self.shut = False
        self.got: list[int] = []

    @property
    def room(self) -> int:
        self.asked += 1
        return self.has

    def send(self, entry: Entry) -> bool:
        self.got.append(entry.id)
        self.has -= 1
        return True

    def redirect(self, place: str) -> None:
        pass

    def drained(self) -> None:
        self.draining = False
        self.has = 0

    def retired(self, entry: Entry, outcome: Any) -> None:
        raise AssertionError

    def enlisted(self, entry: Entry, txn_id: bytes, outcome: Outcome) -> None:
        raise AssertionError

    def left(self, entry: Entry) -> None:
        raise AssertionError

    def unretired(self, entry: Entry, description: str) -> None:
        raise AssertionError


class Instance:
    """As much of one as a queue asks for."""

    def __init__(self, peers: int) -> None:
        self.instance_id = 1
        self.peers, self.here = peers, None
        self.bounds = Bounds()
        self.memory = Account(self.bounds, 1 << 30)
        self.ids = SimpleNamespace(last=0)
        self.loop = SimpleNamespace(call_later=lambda seconds, callback: None)


class Home:
    """As much of the queues of an instance as one of them asks for."""

    def __init__(self) -> None:
        self.dirty: list[Queue] = []
        self.holding: set[Queue] = set()
        self.sharing: set[Queue] = set()
        self.entered: set[Queue] = set()
        self.failed = lambda: None
        self.later = lambda available: None


def queue_of(consumers: list[Consumer], *, peers: int = 0, kind: type[Queue] = Queue) -> Queue:
    instance: Any = Instance(peers)
    policies = Policies(max_attempts=16, on_expiry="drop", fifo=issubclass(kind, FifoQueue), dead_letters=False)
    home: Any = Home()
    queue = kind(instance, home, 1, 1, "q", policies)
    for consumer in consumers:
        queue.add(consumer)
    for window in queue.windows:  # the store has nothing
        window.more, window.bound = False, None
    queue.entered = True
    queue.pump()
    return queue
