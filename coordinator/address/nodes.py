"""An address, as the links and the queues of this instance see it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from coordinator.address.addresses import DEAD_LETTER_PREFIX, UNANSWERED, keeps_dead_letters, shown
from coordinator.checkable import OwnCheckTerms
from coordinator.errors import Condition, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.group.policies import OwnPolicies, Policies
    from coordinator.group.queues import Queue


class User(Protocol):
    """A link that uses an address, or that is being attached to it."""

    def refuse(self, refusal: Refusal) -> None:
        """Detach it: the address was removed, or another instance has the link now."""


class Address:
    """A node of this store. ``queue``: the default group of a queue; None for a topic.

    ``fans``: each message has an entry for each of several groups: on a topic, or a queue with groups other than the
    default one (D1).
    """

    __slots__ = (
        "check_terms",
        "delayed",
        "dynamic",
        "fans",
        "fifo",
        "gone",
        "groups",
        "id",
        "name",
        "noted",
        "own_policies",
        "particular",
        "policies",
        "queue",
        "subscriptions",
        "topic",
        "transactional",
        "users",
    )

    def __init__(
        self,
        address_id: int,
        name: str,
        *,
        topic: bool,
        dynamic: bool,
        policies: Policies,
        own_policies: Mapping[int, OwnPolicies],
        kind: str = "normal",
    ) -> None:
        self.id = address_id
        self.name = name
        self.topic = topic
        self.dynamic = dynamic
        self.policies = policies
        #: of its groups that have some, by their ids
        self.own_policies = own_policies
        #: from its policies, copied for the hot path
        self.fifo = policies.fifo
        self.set_kind(kind)
        #: of transactions whose first message goes to it (H7)
        self.check_terms = OwnCheckTerms()
        self.queue: Queue | None = None
        self.fans = topic
        #: how many groups it has, as far as is known: the rows that a message costs
        self.groups = 1
        #: groups other than the default one that have a consumer here
        self.subscriptions: list[Queue] = []
        #: they are refused when it is removed; while it has any it is not forgotten
        self.users: set[User] = set()
        #: whether it was removed
        self.gone = False
        #: when its use was last noted in the store, or last checked there
        self.noted = time.monotonic()

    def set_kind(self, kind: str) -> None:
        """What it takes (H1); it counts from the next post on. Whether it is of kind fifo never changes."""
        #: posts in transactions alone, and makes these checkable
        self.transactional = kind == "transaction"
        #: posts that say when they are to be delivered alone
        self.delayed = kind == "delay"
        #: each post needs a look at its kind
        self.particular = self.fifo or self.transactional or self.delayed

    @property
    def queues(self) -> list[Queue]:
        """Those of its groups that are known here."""
        return [queue for queue in (self.queue, *self.subscriptions) if queue is not None]

    def policies_of(self, group_id: int) -> Policies:
        """Those of a group of it: its own before those of the address."""
        own = self.own_policies.get(group_id)
        return self.policies if own is None else own.over(self.policies)

    def set_policies(self, policies: Policies, own_policies: Mapping[int, OwnPolicies]) -> None:
        """They count from the next outcome on."""
        self.policies, self.own_policies = policies, own_policies
        for queue in self.queues:
            queue.policies = self.policies_of(queue.group_id)


def look_at_target(name: str) -> None:
    """Whether clients may post to the address ``name``, whether it is there or not.

    :raises Refusal: it keeps what the service puts aside: each message there is as the service says, and has its op.
    """
    if keeps_dead_letters(name):
        its = "it is" if name == UNANSWERED else f"names that begin with {DEAD_LETTER_PREFIX} are"
        text = f"the address {shown(name)} takes no posts of clients; {its} the service's own"
        raise Refusal(Condition.NOT_ALLOWED, text)


def resource_deleted(address: Address) -> Refusal:
    """The refusal with which links of a removed address end."""
    return Refusal(Condition.RESOURCE_DELETED, f"the address {shown(address.name)} was removed")
