"""Consumer groups beside the default one of an address: joined by links, and removed with the last (rule D1)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from coordinator.address.directory import resource_deleted
from coordinator.address.removal import drop_entries
from coordinator.errors import Condition, Refusal
from store import queries
from store.errors import Conflict, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.address.directory import Address
    from coordinator.address.groups import Group
    from coordinator.group.queues import Queue
    from coordinator.group.serving import Queues
    from coordinator.instance import Instance
    from store.asking import Row

#: how long a group waits for the transactions that retire its deliveries, before it is looked at again
_UNDECIDED_SECONDS = 0.5


class Joining:
    """Uses the address of a group that is about to be joined."""

    __slots__ = ("refusal",)

    def __init__(self) -> None:
        self.refusal: Refusal | None = None

    def refuse(self, refusal: Refusal) -> None:
        self.refusal = refusal


class Subscriptions:
    """Those of this instance's links."""

    def __init__(self, instance: Instance, queues: Queues) -> None:
        self._instance = instance
        self._queues = queues
        #: groups (address, name) that links are about to join
        self._joining: Counter[tuple[int, str]] = Counter()

    def join(self, address: Address, group: Group, joined: Callable[[Queue | Refusal], None]) -> None:
        """Find or make a consumer group beside the default one."""
        key = (address.id, group.name)
        self._joining[key] += 1
        joining = Joining()
        address.users.add(joining)

        def made(rows: list[Row] | StoreError) -> None:
            if rows == []:  # another instance has made it in the same moment: now it can be seen
                ask()
                return
            self._joining[key] -= 1
            if not self._joining[key]:
                del self._joining[key]
            address.users.discard(joining)
            if joining.refusal is not None or isinstance(rows, Conflict):
                joined(joining.refusal or resource_deleted(address))
            elif isinstance(rows, StoreError):
                joined(Refusal(Condition.INTERNAL_ERROR, "the store could not make the consumer group"))
            else:
                joined(self._joined(address, group, rows[0][0]))

        owner = bytes(4) if group.lasting else self._instance.lease_octets
        parameters = [address.id.to_bytes(4, "big"), group.name.encode(), owner]

        def ask() -> None:
            self._instance.queries.ask(queries.MAKE_GROUP, parameters, made)

        ask()

    def _joined(self, address: Address, group: Group, group_id: int) -> Queue:
        queue = self._queues.queue(
            group_id,
            address.id,
            group.name,
            max_attempts=address.max_attempts,
            on_expiry=address.on_expiry,
            dead_letters=False,
            fifo=address.fifo,
        )
        if queue not in address.subscriptions:
            address.subscriptions.append(queue)
            address.groups = max(address.groups, len(address.subscriptions))
        address.fans = True
        return queue

    def find(self, name: str, found: Callable[[str | StoreError | None], None]) -> None:
        """The topic that a lasting subscription is for; None where there is no such subscription."""

        def answered(rows: list[Row] | StoreError) -> None:
            found(rows if isinstance(rows, StoreError) else rows[0][0] if rows else None)

        self._instance.queries.ask(queries.FIND_SUBSCRIPTION, [name.encode()], answered)

    def remove(self, address: Address, queue: Queue) -> None:
        """The group goes, with what it was to get; but not before transactions that retire its deliveries are
        decided.
        """
        if queue.consumers or queue.searches or (address.id, queue.name) in self._joining:
            return  # others share it still, or are about to
        if any(entry.txn is not None for entry in queue.held.values()):
            self._instance.loop.call_later(_UNDECIDED_SECONDS, lambda: self.remove(address, queue))
            return
        if queue in address.subscriptions:
            address.subscriptions.remove(queue)
        self._queues.by_group.pop(queue.group_id, None)

        def gone(rows: list[Row] | StoreError) -> None:
            if isinstance(rows, list):
                drop_entries(self._instance, [queue.group_id])

        self._instance.queries.ask(queries.REMOVE_GROUP, [queue.group_id.to_bytes(4, "big")], gone)
