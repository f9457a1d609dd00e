"""An address is a node of the store, with its queues and links at this instance."""

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
        """Detach the link with the refusal: its address was removed, or another instance has the link now."""


class Address:
    """A node of this store. ``queue``: the queue of its default consumer group; None for a topic.

    ``fans``: each message has an entry for each of several groups: on a topic, or a queue with groups other than the
    default one (D1).
    """

    __slots__ = (
        "check_terms", "delayed", "dynamic", "fans", "fifo", "gone", "groups", "id", "name", "noted", "own_policies",
        "particular", "policies", "queue", "subscriptions", "topic", "transactional", "users",
    )  # fmt: skip

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
        #: the policies of groups that have their own, by group id
        self.own_policies = own_policies
        #: copied from its policies for the hot path
        self.fifo = policies.fifo
        self.set_kind(kind)
        #: the check terms of transactions whose first message is posted to it (H7)
        self.check_terms = OwnCheckTerms()
        self.queue: Queue | None = None
        self.fans = topic
        #: the number of its groups, as far as is known: a message costs as many rows
        self.groups = 1
        #: groups other than the default one that have a consumer here
        self.subscriptions: list[Queue] = []
        #: its links, which are refused when it is removed; an address with links is not forgotten
        self.users: set[User] = set()
        #: whether it was removed
        self.gone = False
        #: the monotonic time at which its use was last noted in the store, or checked there
        self.noted = time.monotonic()

    def set_kind(self, kind: str) -> None:
        """Set the kind (H1), which applies from the next post on. Kind fifo never changes."""
        #: whether it accepts posts only in transactions, and makes these checkable
        self.transactional = kind == "transaction"
        #: whether it accepts only posts that name a delivery time or delay
        self.delayed = kind == "delay"
        #: whether each post needs a check of the kind
        self.particular = self.fifo or self.transactional or self.delayed

    @property
    def queues(self) -> list[Queue]:
        """The queues of its groups that are known here."""
        return [queue for queue in (self.queue, *self.subscriptions) if queue is not None]

    def policies_of(self, group_id: int) -> Policies:
        """Return the policies of one of its groups: its own override those of the address."""
        own = self.own_policies.get(group_id)
        return self.policies if own is None else own.over(self.policies)

    def set_policies(self, policies: Policies, own_policies: Mapping[int, OwnPolicies]) -> None:
        """Set the policies, which apply to outcomes decided after this call."""
        self.policies, self.own_policies = policies, own_policies
        for queue in self.queues:
            queue.set_policies(self.policies_of(queue.group_id))


def check_target(name: str) -> None:
    """Check that clients may post to the address ``name``, whether it exists or not.

    :raises Refusal: the address keeps dead letters, which the service alone posts, each with its op.
    """
    if keeps_dead_letters(name):
        its = "it is" if name == UNANSWERED else f"names that begin with {DEAD_LETTER_PREFIX} are"
        text = f"the address {shown(name)} takes no posts of clients; {its} the service's own"
        raise Refusal(Condition.NOT_ALLOWED, text)


def resource_deleted(address: Address) -> Refusal:
    """Return the refusal with which links of a removed address end."""
    return Refusal(Condition.RESOURCE_DELETED, f"the address {shown(address.name)} was removed")
