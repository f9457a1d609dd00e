"""An instance gives the rules their environment: identity, loop, store, bounds.

It depends on no rule, so that a rule can use it in place of the whole service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.codec.selectors import Selectors, TurnShare
from coordinator.memory import Account, default_bytes
from store.asking import Queries
from store.commit.group_commit import GroupCommit, Limits
from store.ids import HalfIds, UuidV7

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.bounds import Bounds
    from coordinator.settings import Settings
    from coordinator.traces import Traces
    from store.loop import Loop
    from store.recovery import Registration


class Instance:
    """The environment of one instance. ``peers``: how many other instances are alive. ``disk_low``: the database's disk
    is nearly full. ``traces``: makes spans; None: there is no collector.
    """

    __slots__ = (
        "bounds", "commit", "disk_low", "here", "ids", "instance_id", "loop", "memory", "peers", "queries", "selecting",
        "selectors", "traces", "transaction_limits", "uuids",
    )  # fmt: skip

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        bounds: Bounds,
        url: str,
        registration: Registration,
        *,
        given_up: Callable[[], None],
        notified: Callable[[str, str], None],
        connected: Callable[[], None],
    ) -> None:
        """``given_up``: called when the store reports that another instance has declared this one dead. ``notified``
        and ``connected``: see :class:`store.asking.Queries`.
        """
        self.loop = loop
        self.bounds = bounds
        self.transaction_limits = settings.transaction
        self.instance_id = instance_id = registration.instance_id
        #: where clients reach this service, if consumers are sent to the service that holds their group
        self.here = settings.addresses.here
        self.ids = HalfIds(registration.slot, registration.highest_id)
        self.uuids = UuidV7()
        self.peers = 0
        self.disk_low = False
        self.traces: Traces | None = None
        self.memory = Account(bounds, settings.limits.memory_bytes or default_bytes(settings.workers))
        self.commit = GroupCommit(loop, url, instance_id, _batch_limits(bounds, self.memory), given_up)
        self.queries = Queries(loop, url, instance_id, notified, connected)
        self.selectors = Selectors(self.memory)
        #: the time that selectors may use in one turn
        self.selecting = TurnShare()


def _batch_limits(bounds: Bounds, memory: Account) -> Limits:
    return Limits(
        messages=bounds.batch_messages,
        octets=min(bounds.batch_bytes, memory.share),
        waiting_octets=min(bounds.waiting_bytes, memory.most),
    )
