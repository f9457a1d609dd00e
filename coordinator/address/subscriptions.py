"""Subscriptions are consumer groups other than the default one: links join them; the last one may remove them (D1)."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from coordinator.address.addresses import shown
from coordinator.address.directory import drop_entries, remove_behind
from coordinator.address.nodes import resource_deleted
from coordinator.errors import Condition, Refusal
from store.errors import Conflict, StoreError
from store.questions import consumer_groups

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.address.addresses import Group
    from coordinator.address.nodes import Address
    from coordinator.group.queues import Queue
    from coordinator.group.serving import Queues
    from coordinator.instance import Instance

#: seconds between checks whether a group must still wait for transactions that retire its deliveries
_UNDECIDED_SECONDS = 0.5
#: seconds between attempts to remove a group that an application's commit has locked
_HELD_SECONDS = 0.2
#: how long an attach waits for the ended group of its name to be removed; and the seconds between checks
_LONGEST_WAIT_SECONDS = 5.0
_LOOK_SECONDS = 0.1


class Joining:
    """Keeps the address in use while a link joins a group of it."""

    __slots__ = ("refusal",)

    def __init__(self) -> None:
        self.refusal: Refusal | None = None

    def refuse(self, refusal: Refusal) -> None:
        self.refusal = refusal


class Subscriptions:
    """Creates, finds and removes the consumer groups that links of this instance use."""

    def __init__(self, instance: Instance, queues: Queues) -> None:
        self._instance = instance
        self._queues = queues
        #: how many links are about to join each group (address, name)
        self._joining: Counter[tuple[int, str]] = Counter()
        #: ids of groups (address, name) that have ended and may still be in the store: an application's commit may have
        #: locked them
        self._ending: dict[tuple[int, str], int] = {}

    def join(
        self,
        address: Address,
        group: Group,
        joined: Callable[[Queue | Refusal], None],
        absent: Refusal | None = None,
        user: str | None = None,
    ) -> None:
        """Find or create a consumer group other than the default one. ``absent``: the refusal if it does not exist and
        is not to be created; None: create it. ``user``: the user of the link.

        A group of that name that has just ended is never joined: its messages were for another subscription.
        """
        key = (address.id, group.name)
        until = time.monotonic() + _LONGEST_WAIT_SECONDS
        self._joining[key] += 1
        joining = Joining()
        address.users.add(joining)

        def made(group_id: int | StoreError | None) -> None:
            if group_id is None:  # another instance has just created it: now it can be found
                make()
                return
            ending = key in self._ending or consumer_groups.is_ending(group_id)
            if ending and joining.refusal is None and time.monotonic() < until:
                self._instance.loop.call_later(_LOOK_SECONDS, make)
                return
            self._joining[key] -= 1
            if not self._joining[key]:
                del self._joining[key]
            address.users.discard(joining)
            if joining.refusal is not None or isinstance(group_id, Conflict):
                joined(joining.refusal or resource_deleted(address))
            elif isinstance(group_id, StoreError):
                joined(Refusal(Condition.INTERNAL_ERROR, "the store could not make the consumer group"))
            elif ending:
                joined(_being_removed(address))
            elif consumer_groups.is_others(group_id):
                joined(_others(address))
            elif consumer_groups.is_full(group_id):
                joined(absent or _too_many(address, most))
            else:
                joined(self._joined(address, group, group_id))

        most = self._instance.bounds.groups_per_address if absent is None else 0
        instance = 0 if group.lasting else self._instance.instance_id

        def make() -> None:
            asked = self._instance.queries
            consumer_groups.make(asked, address.id, group.name, instance, most, made, user=user, owned=group.owned)

        make()

    def _joined(self, address: Address, group: Group, group_id: int) -> Queue:
        queue = self._queues.queue(group_id, address.id, group.name, address.policies_of(group_id))
        if queue not in address.subscriptions:
            address.subscriptions.append(queue)
            address.groups = max(address.groups, len(address.subscriptions) + (not address.topic))
        address.fans = True
        return queue

    def find(
        self, name: str, after: int, user: str | None, found: Callable[[tuple[int, str] | StoreError | None], None]
    ) -> None:
        """Find the group and the topic of the next lasting subscription of this name that is not another user's and has
        not ended; None if there is no further one. ``after``: the group of the one found before, or 0.
        """

        def looked_up(answer: tuple[int, str] | StoreError | None) -> None:
            if isinstance(answer, tuple) and answer[0] in self._ending.values():
                self.find(name, answer[0], user, found)
            else:
                found(answer)

        consumer_groups.subscription_of(self._instance.queries, name, after, looked_up, user=user)

    def remove(self, address: Address, queue: Queue, *, lasting: bool = False) -> None:
        """Remove the group with its entries, once all transactions that retire its deliveries are decided. ``lasting``:
        the group does not end with its links.
        """
        if queue.consumers or queue.searches or (address.id, queue.name) in self._joining:
            return  # other links still share it, or are about to
        if any(entry.txn is not None for entry in queue.held.values()):
            self._instance.loop.call_later(_UNDECIDED_SECONDS, lambda: self.remove(address, queue, lasting=lasting))
            return
        if queue in address.subscriptions:
            address.subscriptions.remove(queue)
        self._queues.by_group.remove(queue)
        key = address.id, queue.name
        self._ending[key] = queue.group_id
        remove_behind(self._instance, lambda: self._remove(queue, key, lasting=lasting))

    def _remove(self, queue: Queue, key: tuple[int, str], *, lasting: bool, held: bool = False) -> None:
        """Remove the group from the store, and retry for as long as an application's commit has it locked. ``held``: it
        was locked before.
        """

        def removed(gone: bool | StoreError) -> None:
            if gone is False:
                again = partial(self._remove, queue, key, lasting=lasting, held=True)
                self._instance.loop.call_later(_HELD_SECONDS, again)
                return
            if lasting and held:
                consumer_groups.remember(self._instance.queries, queue.group_id)
            self._ending.pop(key, None)
            if gone is True:
                drop_entries(self._instance, [queue.group_id])

        consumer_groups.remove(self._instance.queries, queue.group_id, self._instance.instance_id, removed)


def _being_removed(address: Address) -> Refusal:
    text = (
        f"the subscription of this name to {shown(address.name)} has ended, and could not be removed yet: a "
        "transaction that posts there is being committed, or the database refuses; attach again"
    )
    return Refusal(Condition.RESOURCE_LOCKED, text)


def _others(address: Address) -> Refusal:
    text = f"the subscription of this name to {shown(address.name)} is another user's: expected another container-id"
    return Refusal(Condition.UNAUTHORIZED_ACCESS, f"{text}, or another name of the link")


def _too_many(address: Address, most: int) -> Refusal:
    text = f"an address has at most {most} consumer groups, and {shown(address.name)} has as many: remove some first"
    return Refusal(Condition.RESOURCE_LIMIT_EXCEEDED, text)
