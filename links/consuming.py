"""Consumers are links that receive messages and decide their outcomes (rules D1, T26 to T34, P11, P16)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import structlog

from coordinator.errors import Condition, Redirect, Refusal
from coordinator.group.selecting import Search
from coordinator.outcomes import ACCEPTED, Kind, Outcome
from coordinator.printable import printable
from coordinator.retirement import Departure
from coordinator.settings import endpoint
from coordinator.transitions import DECIDED
from links import engine, states, steps
from links.link import NONE
from links.outgoing import LARGE_IN_ENGINE, MOST_BACKLOG, Outgoing, TooLarge
from links.output import MOST_HANDED
from store.codec.encoding import DecodeError
from store.codec.message import shows_properties

if TYPE_CHECKING:
    from coordinator.address.addresses import Group
    from coordinator.address.nodes import Address
    from coordinator.group.entries import Entry
    from coordinator.group.queues import Queue
    from coordinator.traces import Traces
    from coordinator.transaction import Transaction
    from links.connection import Connection
    from links.outgoing import Filters

log = structlog.get_logger(__name__)

#: a session window that the deliveries waiting in the engine, of MOST_BACKLOG octets, cannot use up
_WIDE = 1 << 16
#: octets of a frame without those of its message
_FRAME_BESIDES = 128
_UNDELIVERABLE_HERE = Outcome(Kind.MODIFIED, undeliverable_here=True)
#: characters of an address, a link or an error in the log
_LONGEST_SHOWN = 200


class Consuming(Outgoing):
    """Sends entries, and passes on the peer's outcomes; implements :class:`coordinator.group.entries.Consumer`."""

    __slots__ = (
        "_acquiring", "_frame", "_group", "_left_some", "_most_handed", "_most_unsettled", "_recovered",
        "_reported_full", "_retirement", "_settling_makes_room", "_starved", "_traces", "by_name", "has_decided",
        "shut",
        "transactional", "undecided", "unsettled",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        pointer: engine.Pointer,
        address: Address,
        queue: Queue,
        group: Group | None,
        honoured: Filters,
    ) -> None:
        """``group``: None for the default group."""
        lasts = group is not None and group.ends_with_close
        super().__init__(connection, pointer, address, queue, honoured, lasts=lasts)
        self._group = group
        self.unsettled: dict[engine.Pointer, Entry] = {}
        self.undecided = NONE
        self.has_decided = self.transactional = False
        self._retirement = connection.service.retirement
        self._traces: Traces | None = connection.service.instance.traces
        #: the transaction in which the link acquires its messages (T33)
        self._acquiring: Transaction | None = None
        self._most_unsettled = connection.service.bounds.unsettled_per_link
        self._reported_full = False
        #: the link stops when all links of the connection have handed more octets than this to the engine
        self._most_handed = 0
        self._starved = False
        #: whether it waits for the peer to open the window of its session
        self.shut = False
        #: if the window is narrow, the most octets of a message that is certainly one frame; else 0
        self._frame = 0
        #: whether the log has a line that messages are too large for the peer
        self._left_some = False
        #: whether the attach named its subscription without a source, in order to end it
        self.by_name = False
        #: what its client has decided on, of an earlier link's entries, and could not tell, by their ids (P21)
        self._recovered: dict[int, Outcome] = {} if self._end is None else self._end.recovered
        #: whether its room is bounded by unsettled deliveries, not by its credit
        self._settling_makes_room = False
        self._join(honoured)

    def _join(self, honoured: Filters) -> None:
        """Add the consumer to its queue. ``honoured``: the filters, which :class:`Choosing` uses."""
        self._queue.add(self)

    def redirect(self, place: str) -> None:
        there = endpoint(place)
        asked = engine.address_of(engine.link_remote_source(self.pointer)) or ""
        text = f"the service at {place} has consumers of {printable(asked)[:_LONGEST_SHOWN]}: connect there"
        self.refuse(Redirect(text, host=there.host, port=there.port, address=asked))

    # -- deliveries

    @property
    def room(self) -> int:
        if self._queue.policies.paused:
            return 0
        if self._end is not None and self._end.acquires is not None and not self._acquires(self._end.acquires):
            return 0
        room = self._most_unsettled - len(self.unsettled)
        self._settling_makes_room = room < self.credit
        if self.credit < room:
            room = self.credit
        if room <= 0 or self._starved or self._large is not None:
            if room <= 0 < self.credit and not self._reported_full:
                self._report_full()
            return 0
        backlog = engine.session_outgoing_bytes(self.session)
        # octets that the engine has put into frames leave the session's count, and wait for the socket
        output = self.connection.output
        if backlog > MOST_BACKLOG or output.writing or output.handed > MOST_HANDED:
            self._starve()
            return 0
        self._most_handed = output.handed + MOST_BACKLOG - backlog
        window = steps.window(self.session)
        self._frame = 0
        if window < _WIDE:
            room = min(room, self._window(window, backlog))
        return 0 if room <= 0 or self._held_back() else room

    def _window(self, window: int, backlog: int) -> int:
        """Return how many deliveries the window allows, if each is one frame."""
        connection = self.connection
        if backlog:
            engine.transport_pending(connection.transport)  # the engine makes its frames
            window = steps.window(self.session)
        if window == 0:
            self.shut = True
            self._starve()
        else:
            connection.starved[self] = None  # the room is read again when this is written
            most = engine.transport_remote_max_frame(connection.transport)
            self._frame = max(1, most - _FRAME_BESIDES) if most else 0
        return window

    def refuses_acquisition(self) -> bool:
        if self._end is None or self._end.acquires is None or self._acquires(self._end.acquires):
            return False
        assert self._end.acquires is not False
        self._refuse_unknown(self._end.acquires)
        return True

    def _acquires(self, txn_id: bytes | Literal[False]) -> bool:
        """Look up the transaction in which the link acquires messages; whether the link may send. It acquires outside
        once the transaction is discharged, or no flow names it; for one that is not known the link ends (T33).
        """
        service = self.connection.service
        txn = None if txn_id is False else service.registry.for_work(txn_id, self.connection)
        if txn is not None:
            if self._acquiring is not txn:
                self._acquiring, self.in_txn = txn, states.declared(txn.id)
            return True
        if txn_id is not False and (self._acquiring is None or self._acquiring.id != txn_id):
            # not here: who asks for the room goes through the consumers
            service.loop.call_later(0, partial(self._refuse_unknown, txn_id))
            return False
        assert self._end is not None
        self._end.acquires = self._acquiring = None
        self.in_txn = b""
        return True

    def _refuse_unknown(self, txn_id: bytes) -> None:
        if self.open:
            self.refuse(self.connection.service.registry.unknown(txn_id, self.connection.user_id))

    def _report_full(self) -> None:
        self._reported_full = True
        log.warning(
            "a consumer gets no more before it settles some: it has as many unsettled deliveries as a link may",
            link=self.name,
            peer=self.connection.peer,
            user=self.connection.user,
            unsettled=len(self.unsettled),
        )

    @property
    def waits(self) -> bool:
        return self._starved

    def _starve(self) -> None:
        if not self._starved:
            self._starved = True
            self.connection.starved[self] = None

    def _go_on_sending(self) -> None:
        self._starved = self.shut = False
        if self._large is not None:
            self._go_on()
        elif engine.session_outgoing_bytes(self.session) > MOST_BACKLOG:
            self._starve()
        else:
            self._has_room()

    def _has_room(self) -> None:
        self._queue.changed(self)

    def send(self, entry: Entry) -> bool:
        if self._recovered:
            outcome = self._recovered.pop(entry.id, None)
            if outcome is not None:
                entry.link = self
                self._retirement.settle(self, entry, self._means(entry, outcome), settled=True)
                return True
        try:
            delivery = self._deliver(entry)
        except TooLarge as error:
            self._leave_to_others(entry, error.args[0])
            return True
        if self._traces is not None:
            self._traces.delivered(entry)
        output = self.connection.output
        txn = self._acquiring
        if txn is not None:
            txn.acquire(entry)
        if self.presettled and not entry.whole:
            engine.delivery_settle(delivery)
            self._accept_presettled(entry)
        else:
            entry.link = self
            entry.delivery = delivery
            self.unsettled[delivery] = entry
            if not output.hold(delivery, LARGE_IN_ENGINE if entry.whole else entry.size):
                return False
        if output.handed > self._most_handed:
            self._starve()
            return False
        return self._large is None and not 0 < self._frame < entry.size

    def _leave_to_others(self, entry: Entry, size: int) -> None:
        """Return an entry that is larger than the peer accepts, as undeliverable here. ``size``: octets of its
        delivery.
        """
        if not self._left_some:
            self._left_some = True
            log.warning(
                "message larger than its consumer takes",
                peer=self.connection.peer,
                address=printable(self._address.name, _LONGEST_SHOWN),
                link=printable(self.name, _LONGEST_SHOWN),
                half=entry.half_id,
                size=size,
                most=self._most_octets,
            )
        entry.link = self
        self.connection.service.settlements.add(entry, self._means(entry, _UNDELIVERABLE_HERE) or _UNDELIVERABLE_HERE)
        self._queue.changed(self)

    def _sent(self, entry: Entry, delivery: engine.Pointer) -> None:
        if self.presettled and self.unsettled.pop(delivery, None) is entry:
            entry.link = entry.delivery = None
            engine.delivery_settle(delivery)
            self.connection.output.settled_one(delivery)
            self._accept_presettled(entry)

    def _accept_presettled(self, entry: Entry) -> None:
        if entry.txn is not None:
            self._retirement.settle(self, entry, ACCEPTED, settled=True)
        else:
            self.connection.service.settlements.add(entry, ACCEPTED)

    # -- outcomes

    def on_delivery(self, delivery: engine.Pointer) -> bool | None:
        entry = self.unsettled.get(delivery)
        if entry is None:
            self.refuse_transfer()
            return None
        large = self._channels.largest
        if large and not self._room_for_state(delivery, large + engine.octets_of_values(delivery)):
            return None
        state, settled, fields = steps.said(delivery)
        if state == engine.TRANSACTIONAL:
            try:
                txn_id, in_txn = states.retirement_of(delivery, fields)
            except DecodeError as error:
                self.refuse(Refusal(Condition.DECODE_ERROR, str(error)))
                return None
            if in_txn is not ACCEPTED:
                in_txn = self._means(entry, in_txn)
            self._retirement.retire(self, self.connection, entry, txn_id, in_txn, settled)
            return True
        if state == engine.ACCEPTED:
            self._retirement.settle(self, entry, ACCEPTED, settled)
        else:
            outcome = states.plain_outcome(delivery, state)
            if state == engine.MODIFIED:
                engine.forget_modified(delivery)
            self._retirement.settle(self, entry, self._means(entry, outcome), settled)
        return None

    def _means(self, entry: Entry, outcome: Outcome | None) -> Outcome | None:
        """Return the effect of an outcome other than accepted on this link."""
        return outcome

    def retired(self, entry: Entry, outcome: Outcome) -> None:
        delivery = entry.delivery
        if self.open and self.unsettled.pop(delivery, None) is entry:
            connection = self.connection
            connection.output.settled_one(delivery)
            if self._large is None or not self._stop(delivery):
                steps.end(delivery, states.CODE[outcome.kind])
                if not connection.dirty:
                    connection.mark()
            if self._settling_makes_room:
                self._queue.changed(self)

    def enlisted(self, entry: Entry, txn_id: bytes, outcome: Outcome) -> None:
        delivery = entry.delivery
        if self.open and self.unsettled.get(delivery) is entry and not engine.delivery_settled(delivery):
            engine.replace_state(delivery, engine.TRANSACTIONAL, states.retired_in(txn_id, outcome.kind))
            self.connection.mark()

    def left(self, entry: Entry) -> None:
        if self.open and self.unsettled.pop(entry.delivery, None) is entry:
            self._stop(entry.delivery)
            engine.delivery_settle(entry.delivery)
            self.connection.output.settled_one(entry.delivery)
            self.connection.mark()
            self._queue.changed(self)

    def unretired(self, entry: Entry, description: str) -> None:
        if self.open:
            if self.unsettled.pop(entry.delivery, None) is entry:
                self.connection.output.settled_one(entry.delivery)
            self.refuse(Refusal(Condition.INTERNAL_ERROR, description))

    # -- the end

    def lost(self) -> None:
        """Return undecided deliveries to the queue (D5); enlisted ones wait for their transactions."""
        super().lost()
        self._queue.remove(self)
        service = self.connection.service
        volatile = self._group is not None and not self._group.lasting and not self._queue.consumers
        unsettled = self.unsettled
        self.unsettled = {}
        unsent = self._unsent(unsettled)
        self.undecided = {
            delivery: b"" if entry.txn is None else entry.txn.id
            for delivery, entry in unsettled.items()
            if entry.state is not DECIDED
        }
        for entry in unsettled.values():
            entry.link = None
            entry.delivery = None
        dropped = volatile or self._address.gone
        service.retirement.link_ended(self, unsettled.values(), unsent=unsent, dropped=dropped)
        self.connection.output.settled(unsettled)
        if volatile and not self._address.gone:
            service.subscriptions.remove(self._address, self._queue)

    def _unsent(self, unsettled: dict[engine.Pointer, Entry]) -> set[Entry]:
        """Return the entries that the engine has, and has not transferred, nor will."""
        if self.departure is Departure.ENDED:  # the engine writes deliveries, as far as it can, before the end
            engine.transport_pending(self.connection.transport)
        under_way = None if self._large is None else self._large.delivery
        return {
            entry
            for delivery, entry in unsettled.items()
            if delivery != under_way and engine.delivery_buffered(delivery)
        }

    @property
    def subscription(self) -> bool:
        """Whether the link has a lasting subscription, which ends when the link is closed, not merely detached (D1)."""
        return self._group is not None and self._group.ends_with_close

    def end_subscription(self) -> None:
        """Remove the link's lasting subscription.

        :raises Refusal: other links share it, and this one was attached to end it.
        """
        if self.by_name and self._queue.consumers:
            text = "other links share the subscription, which stays: expected that they are detached first"
            raise Refusal(Condition.RESOURCE_LOCKED, text)
        self.connection.service.subscriptions.remove(self._address, self._queue, lasting=True)


class Choosing(Consuming):
    """A consumer of a queue with a selector, which searches for its messages itself (P16)."""

    __slots__ = ("_search",)

    def _join(self, honoured: Filters) -> None:
        assert honoured.selector is not None
        self._search = Search(self._queue, self, honoured.selector)
        self._queue.searches.append(self._search)
        self._queue.touch()

    def lost(self) -> None:
        self._queue.searches.remove(self._search)
        self._search.end()
        super().lost()


class Subscribing(Consuming):
    """A consumer of a subscription to a topic, which accepts messages that do not match, without sending them (P16)."""

    __slots__ = ("_selector", "_waits", "selects")

    def __init__(
        self,
        connection: Connection,
        pointer: engine.Pointer,
        address: Address,
        queue: Queue,
        group: Group,
        honoured: Filters,
    ) -> None:
        self._selector = honoured.selector
        #: whether it waits for the next turn: selectors have used up their share of this one
        self._waits = False
        #: the selector's text: links that share a subscription must have the same
        self.selects = honoured.text
        queue.not_from = connection if honoured.no_local else None
        super().__init__(connection, pointer, address, queue, group, honoured)

    @property
    def room(self) -> int:
        service = self.connection.service
        if self._selector is None or not service.instance.selecting.used_up:
            return super().room
        if not self._waits:
            self._waits = True
            service.loop.call_later(0, self._go_on_choosing)
        return 0

    @property
    def waits(self) -> bool:
        return self._waits or super().waits

    def _go_on_choosing(self) -> None:
        self._waits = False
        if self.open:
            self._has_room()

    def send(self, entry: Entry) -> bool:
        selector = self._selector
        if selector is None or entry.message is None or selector.matches(entry.message, entry.attempts):
            return super().send(entry)
        if entry.whole and not shows_properties(entry.message):  # its beginning does not show whether it matches
            return super().send(entry)
        service = self.connection.service
        service.settlements.pass_over(entry)
        return not service.instance.selecting.used_up

    def lost(self) -> None:
        self._queue.not_from = None
        super().lost()


# Broadcast links each get every message, and no message twice because of an outcome (rule D1).
#
# **Decision.** A broadcast link has a consumer group of its own, like a subscription to a topic, also on a queue. Each
# committed message has an entry for it, however late and in whichever order transactions commit: a position in the ids
# of messages would pass messages that are committed late. The group lasts as long as the link, or as its terminus
# (expiry-policy ``never``). An entry costs a row, deleted in the batch of its outcome, under one op for all accepted
# entries of the batch.

#: how many outcomes of one link are logged: the first so many, and then one in so many
_LOGGED = 100


class Broadcasting(Subscribing):
    """A broadcast consumer, for which any outcome completes a message; other outcomes than accepted are logged. A link
    must not fill the log: after the first hundred, one in a hundred is logged, with the count.
    """

    __slots__ = ("_failed",)

    def __init__(
        self,
        connection: Connection,
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
                address=printable(self._address.name, _LONGEST_SHOWN),
                link=printable(self.name, _LONGEST_SHOWN),
                half=entry.half_id,
                number=self._failed,
                outcome=outcome.kind.name.lower(),
                error=printable(outcome.error, _LONGEST_SHOWN),
            )
        return ACCEPTED
