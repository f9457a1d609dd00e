"""Broadcast: links that each get every message, and none of it twice for an outcome (rule D1).

**Decision.** A link of a broadcast has a consumer group of its own, as a subscription to a topic has, also on a queue.
What a transaction commits has an entry for it, however late and in whichever order transactions commit: a position in
the ids of messages would pass what is committed late. The group lasts as long as the link, or as its terminus
(expiry-policy ``never``). An entry costs a row, which goes in the batch of its outcome, under one op for all that the
batch accepts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from coordinator.outcomes import ACCEPTED
from coordinator.printable import printable
from links.consuming import Subscribing

if TYPE_CHECKING:
    from coordinator.address.groups import Group
    from coordinator.address.nodes import Address
    from coordinator.group.entries import Entry
    from coordinator.group.queues import Queue
    from coordinator.outcomes import Outcome
    from links import engine
    from links.filters import Filters
    from links.link import Carrier

log = structlog.get_logger(__name__)

#: outcomes of one link that are logged: the first so many, and then one in so many
_LOGGED = 100
_LONGEST_ERROR = 200


class Broadcasting(Subscribing):
    """Whatever outcome a delivery gets, its message is done with: one that is not accepted is logged, once. A link must
    not fill the log: of very many one in a hundred is, which says how many there were.
    """

    __slots__ = ("_failed",)

    def __init__(
        self,
        connection: Carrier,
        pointer: engine.Pointer,
        address: Address,
        queue: Queue,
        group: Group,
        honoured: Filters,
    ) -> None:
        self._failed = 0
        super().__init__(connection, pointer, address, queue, group, honoured)
        self.default_outcome = ACCEPTED

    def _default_outcome(self, asked: Outcome) -> Outcome:
        return ACCEPTED

    def _means(self, entry: Entry, outcome: Outcome | None) -> Outcome | None:
        if outcome is None:
            return None
        if outcome is ACCEPTED:
            return ACCEPTED
        self._failed += 1
        if self._failed <= _LOGGED or self._failed % _LOGGED == 0:
            log.warning(
                "broadcast not accepted",
                address=printable(self._address.name, _LONGEST_ERROR),
                link=printable(self.name, _LONGEST_ERROR),
                half=entry.half_id,
                number=self._failed,
                outcome=outcome.kind.name.lower(),
                error=printable(outcome.error, _LONGEST_ERROR),
            )
        return ACCEPTED
