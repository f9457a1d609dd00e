"""Links on which messages go out: the answer to the attach, and how a delivery is made (rules P5 to P8)."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from coordinator import message as messages
from coordinator.entries import now_micros
from coordinator.errors import Condition
from links import container, engine
from links.link import Link, answer_terminus

if TYPE_CHECKING:
    from coordinator.directory import Address
    from coordinator.entries import Entry
    from coordinator.outcomes import Outcome
    from coordinator.queues import Queue
    from links.connection import Connection
    from links.filters import Filters

_keys = count(1)

#: octets a session may have waiting to be written before its consumers stop
MOST_BACKLOG = 1 << 20


class Outgoing(Link):
    """What consumers and browsers share."""

    __slots__ = ("_address", "_queue", "_store_prefix", "credit", "default_outcome", "draining", "key", "presettled")

    def __init__(
        self,
        connection: Connection,
        pointer: engine.Pointer,
        address: Address,
        queue: Queue,
        honoured: Filters,
        *,
        lasts: bool = False,
    ) -> None:
        """``lasts``: the source stays when the link is detached."""
        super().__init__(connection, pointer)
        self.key = next(_keys)
        self._address = address
        self._queue = queue
        self._store_prefix = connection.service.store_id.encode() + b":"
        self.presettled = engine.link_remote_snd_settle_mode(pointer) == engine.SND_SETTLED
        #: Proton 0.40 drops the source's default-outcome, so that T28's own default holds
        self.default_outcome: Outcome | None = None
        source = engine.link_source(pointer)
        answer_terminus(source, engine.link_remote_source(pointer), lasts=lasts)
        engine.terminus_set_type(source, engine.SOURCE)  # none where a subscription is asked for by the link's name
        engine.set_address(source, engine.address_of(engine.link_remote_source(pointer)) or address.name)
        # P8: filters that are not known are left out of the answer
        engine.put_octets(honoured.answer(), engine.terminus_filter(source))
        engine.put(container.symbols(container.OUTCOMES), engine.terminus_outcomes(source))
        engine.terminus_copy(engine.link_target(pointer), engine.link_remote_target(pointer))
        engine.link_set_snd_settle_mode(pointer, engine.link_remote_snd_settle_mode(pointer))
        engine.link_set_rcv_settle_mode(pointer, engine.link_remote_rcv_settle_mode(pointer))
        engine.link_set_max_message_size(pointer, int(connection.service.limits.max_message_size_bytes))
        engine.link_open(pointer)
        self.credit = max(0, engine.link_credit(pointer))
        self.draining = bool(engine.link_get_drain(pointer))
        connection.mark()

    def on_flow(self) -> None:
        self.credit = max(0, engine.link_credit(self.pointer))
        self.draining = bool(engine.link_get_drain(self.pointer))
        self._queue.touch()
        self.connection.mark()

    def refuse_transfer(self) -> bool:
        """Whether the peer has sent a transfer on this link, of which it is the receiver; it ends the connection."""
        if engine.link_current(self.pointer) == engine.NULL:  # ours are complete as soon as they are made
            return False
        self.connection.force_close(Condition.NOT_ALLOWED, f"a transfer from the receiver of the link {self.name!r}")
        return True

    def drained(self) -> None:
        engine.link_drained(self.pointer)
        self.credit = 0
        self.draining = False
        self.connection.mark()

    def _deliver(self, entry: Entry) -> engine.Pointer:
        octets = entry.message
        assert octets is not None
        if entry.attempts or entry.expires or entry.acquired or entry.annotations:
            left = max(1, (entry.expires - now_micros()) // 1000) if entry.expires else None
            octets = messages.outgoing(octets, entry.attempts, left, entry.annotations, acquired=entry.acquired)
        pointer = self.pointer
        delivery = engine.outgoing_delivery(pointer, self._store_prefix + b"%d" % entry.id)
        engine.link_send(pointer, octets, len(octets))
        engine.link_advance(pointer)
        self.credit -= 1
        self.connection.mark()
        return delivery
