"""The queues in use, by their consumer groups: found while a known address, a link, or a transaction refers to them.

mypyc does not compile this file: a compiled class takes no weak reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.group.queues import Queue


class _Anchor:
    """Refers to a queue, which refers back. The weak reference is to the anchor: a queue compiled by mypyc does not
    support one.
    """

    __slots__ = ("__weakref__", "queue")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue


class Known:
    """Maps the ids of consumer groups to their queues, and keeps no queue alive."""

    def __init__(self) -> None:
        self._anchors: WeakValueDictionary[int, _Anchor] = WeakValueDictionary()

    def __iter__(self) -> Iterator[Queue]:
        """Iterate over the queues present at the beginning."""
        return iter([anchor.queue for anchor in list(self._anchors.values())])

    def get(self, group_id: int) -> Queue | None:
        anchor = self._anchors.get(group_id)
        return anchor.queue if anchor is not None else None

    def add(self, queue: Queue) -> None:
        anchor = queue.anchor = _Anchor(queue)
        self._anchors[queue.group_id] = anchor

    def remove(self, queue: Queue) -> None:
        """Remove a queue: from now on it is not found, even while it is in use."""
        self._anchors.pop(queue.group_id, None)
