"""Links on which messages go out: the answer to the attach, and how a delivery is made (rules P5 to P8).

A large message (:data:`store.spool.LARGE`) is handed to the engine in pieces. Each piece is read from the store when
the one before it is written, so a consumer of large messages costs a piece or two of memory. The other deliveries of
the link wait until the large one is complete; other links do not wait.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import structlog

from coordinator.errors import Condition, Refusal
from coordinator.group import loading
from coordinator.group.entries import now_micros
from links import engine, steps
from links.delivering import Delivering
from links.link import answer_default_outcome
from store.codec.encoding import DecodeError
from store.codec.message import first_delivery, outgoing

if TYPE_CHECKING:
    from coordinator.address.nodes import Address
    from coordinator.group.entries import Entry
    from coordinator.group.queues import Queue
    from coordinator.outcomes import Outcome
    from links.filters import Filters
    from links.link import Carrier

log = structlog.get_logger(__name__)

_keys = count(1)

#: octets of a large message that are read at once, when fewer than these wait to be written
_PIECE = 1 << 18
#: octets for which the engine keeps a buffer until a large delivery is settled
LARGE_IN_ENGINE = 2 * _PIECE
#: octets that a message has more with a header that counts, beside its annotations
_MOST_ADDED = 64


class TooLarge(Exception):
    """A message has more octets than the peer takes (part 2, section 2.7.3)."""


class Large:
    """A large delivery under way. ``at``: how much of the stored message is with the engine."""

    __slots__ = ("asking", "at", "delivery", "entry")

    def __init__(self, entry: Entry, delivery: engine.Pointer) -> None:
        self.entry = entry
        self.delivery = delivery
        self.at = 0
        self.asking = False


class Outgoing(Delivering):
    """What consumers and browsers have in common."""

    __slots__ = (
        "_address", "_large", "_most_octets", "_queue", "_store_prefix", "default_outcome", "key", "presettled",
    )  # fmt: skip

    def __init__(
        self,
        connection: Carrier,
        pointer: engine.Pointer,
        address: Address,
        queue: Queue,
        honoured: Filters,
        *,
        lasts: bool = False,
    ) -> None:
        """``lasts``: the source outlives the link."""
        self.key = next(_keys)
        #: of a message, as the peer says; 0: any (part 2, section 2.7.3)
        self._most_octets: int = engine.link_remote_max_message_size(pointer)
        self._large: Large | None = None
        self._address = address
        address.users.add(self)
        self._queue = queue
        self._store_prefix = connection.service.store_id.encode() + b":"
        self.presettled = engine.link_remote_snd_settle_mode(pointer) == engine.SND_SETTLED
        asked = connection.asked(pointer)
        #: None: the source names none, and the default of T28 applies
        self.default_outcome: Outcome | None = None
        if asked is not None and asked.default_outcome is not None:
            self.default_outcome = self._default_outcome(asked.default_outcome)
        super().__init__(connection, pointer, address.name, honoured.answer(), lasts=lasts)
        if self.default_outcome is not None:
            answer_default_outcome(connection, pointer, self.default_outcome)

    def _default_outcome(self, asked: Outcome) -> Outcome:
        """The one that holds where a source asks for this one."""
        return asked

    def on_flow(self) -> None:
        credit = max(0, engine.link_credit(self.pointer))
        drains = bool(engine.link_get_drain(self.pointer))
        self._owes_flow = self._owes_flow or (drains and credit > 0)
        draining = drains and self._large is None
        if credit == self.credit and not draining and not self.draining:
            return  # the engine also reports each transfer that it has written
        self.credit = credit
        self.draining = draining
        self._has_room()
        self.connection.mark()

    def lost(self) -> None:
        self._address.users.discard(self)
        super().lost()

    def _has_room(self) -> None:
        self._queue.touch()

    def _deliver(self, entry: Entry) -> engine.Pointer:
        """Nothing is sent where it raises.

        :raises DecodeError: the stored message cannot be read.
        :raises TooLarge: the peer takes none of its size.
        """
        octets = entry.message
        assert octets is not None
        pointer = self.pointer
        if not entry.whole:
            # the delivery-count that the poster set is never passed on
            changed = entry.attempts or entry.expires or entry.acquired or entry.annotations
            octets = _marked(entry, octets) if changed else first_delivery(octets)
        if self._most_octets:
            # a large one with all that the service may add to it
            size = entry.whole + len(entry.annotations) + _MOST_ADDED if entry.whole else len(octets)
            if size > self._most_octets:
                raise TooLarge(size)
        tag = self._store_prefix + b"%d" % entry.id
        if entry.whole:
            delivery = steps.outgoing_delivery(pointer, tag)
            self._large = Large(entry, delivery)
            self.draining = False
            self._send_head(self._large, octets)
            return delivery
        delivery = steps.send_whole(pointer, tag, octets)
        connection = self.connection
        connection.output.handed += len(octets)
        self.credit -= 1
        if not connection.dirty:
            connection.mark()
        return delivery

    # -- large ones

    def _send_head(self, large: Large, head: bytes) -> None:
        """``head``: the beginning of the stored message, with the sections that the service may change."""
        entry = large.entry
        octets = head
        try:
            octets = _marked(entry, head)
        except DecodeError:
            if len(head) < entry.whole:
                self._ask(large, 2 * len(head))
                return
        self._send_piece(large, octets, len(head))

    def _send_piece(self, large: Large, octets: bytes, stored: int) -> None:
        large.at += stored
        engine.link_send(self.pointer, octets, len(octets))
        self.connection.output.handed += len(octets)
        self.connection.mark()
        self._go_on()

    def _go_on(self) -> None:
        """Send the next piece if there is room for it; otherwise wait until something is written."""
        large = self._large
        if large is None or large.asking:
            return
        connection = self.connection
        if large.at >= large.entry.whole:
            self._large = None
            engine.link_advance(self.pointer)
            connection.mark()
            self._read_credit()
            self._sent(large.entry, large.delivery)
            self._has_room()
        elif connection.output.writing or connection.asking or engine.session_outgoing_bytes(self.session) > _PIECE:
            connection.starved[self] = None
        else:
            self._ask(large, _PIECE)

    def _ask(self, large: Large, size: int) -> None:
        """Read the next piece. A connection reads one at a time, for all its links."""
        large.asking = self.connection.asking = True

        def answered(octets: bytes | None) -> None:
            self.connection.asking = large.asking = False
            self.connection.mark()
            if self._large is not large or not self.open:
                return
            if not octets:
                log.error("a large message cannot be read to its end", entry=large.entry.id, at=large.at)
                self.refuse(Refusal(Condition.INTERNAL_ERROR, "the store has lost a part of a message"))
            elif large.at:
                self._send_piece(large, octets, len(octets))
            else:
                self._send_head(large, octets)

        loading.piece(large.entry, large.at, size, answered)

    def _sent(self, entry: Entry, delivery: engine.Pointer) -> None:
        """A large delivery is complete."""
        raise NotImplementedError

    def _stop(self, delivery: engine.Pointer) -> bool:
        """The peer has decided the delivery: whether it was a large one that is not complete, and is aborted."""
        large = self._large
        if large is None or large.delivery != delivery:
            return False
        self._large = None
        engine.delivery_abort(delivery)
        self._read_credit()
        self._has_room()
        self.connection.mark()
        return True


def _marked(entry: Entry, octets: bytes) -> bytes:
    """The message with its counts, its remaining time-to-live and its annotations."""
    left = max(1, (entry.expires - now_micros()) // 1000) if entry.expires else None
    return outgoing(octets, entry.attempts, left, entry.annotations, acquired=entry.acquired)
