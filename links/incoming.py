"""Incoming links gather the octets of each delivery from its frames, and grant credit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog

from coordinator.errors import Condition, Refusal
from links import engine, steps
from links.link import Link
from store.spool import LARGE, NoRoom, Spool

if TYPE_CHECKING:
    from collections.abc import Callable

    from links.connection import Connection
    from store.spool import Octets

log = structlog.get_logger(__name__)

_ROOM = engine.MESSAGE_ROOM


class Incoming(Link):
    """Receives messages from a peer. ``credit``: how much the peer gets; topped up when half is used.

    A delivery that is large, or does not fit into the memory for incomplete ones, is gathered in a file
    (:mod:`store.spool`).
    """

    __slots__ = (
        "_congested", "_credit", "_gathered", "_gives", "_granted", "_leave", "_lent", "_most_octets",
        "_refuses_next", "_size", "_spool", "_used", "ending", "takes", "unanswered",
    )  # fmt: skip

    def __init__(self, connection: Connection, pointer: engine.Pointer, credit: int, most_octets: int) -> None:
        super().__init__(connection, pointer)
        self._credit = credit
        self._used = 0
        #: all credit that the peer ever got
        self._granted = 0
        #: one credit granted in addition; -1: taken back, while the peer may still use it
        self._lent = 0
        self._congested = False
        #: whether the next turn grants credit
        self._gives = False
        #: how many deliveries wait for the store's answer: posts outside transactions, and discharges
        self.unanswered: int = 0
        #: called to end the link once they are answered; and the refusal of deliveries received until then
        self._leave: Callable[[], None] | None = None
        self.ending: Refusal | None = None
        #: whether the link ends for the delivery that the engine gets next
        self._refuses_next = False
        self._most_octets = most_octets
        #: the most octets of a message received in one step; none while another is incomplete
        self.takes = most_octets
        #: the octets so far of the incomplete delivery, in memory or in a file
        self._size = 0
        self._gathered = bytearray()
        self._spool: Spool | None = None

    def start(self) -> None:
        """Answer the attach and grant credit."""
        engine.link_set_max_message_size(self.pointer, self._most_octets)
        engine.link_open(self.pointer)
        engine.link_flow(self.pointer, self._credit)
        self._granted = self._credit
        self.connection.mark()

    def on_flow(self) -> None:
        pass

    def on_delivery(self, delivery: engine.Pointer) -> None:
        if delivery != engine.link_current(self.pointer):
            self.settled_later(delivery)
            return
        self._gather(delivery)
        if self._refuses_next:
            self._refuses_next = False
            self._answered()

    def _keep(self, delivery: engine.Pointer, size: int) -> bool:
        """Append the octets just received to the delivery. False: the delivery was refused."""
        self._size += size
        if self._size > self._most_octets:
            self._too_large(delivery)
            return False
        octets = engine.message_view[:size]
        try:
            if self._spool is not None:
                self._spool.write(octets)
                return True
            service = self.connection.service
            self._gathered += octets
            service.unfinished_octets += size
            if self._size > LARGE or service.unfinished_octets > service.memory.most_unfinished:
                room = service.registry.spool_room
                self._spool = Spool(self._gathered, room, self.connection, self._give_way)
                self._forget_gathered()
        except OSError as error:
            self._no_room(delivery, error)
            return False
        return True

    def _forget_gathered(self) -> None:
        self.connection.service.unfinished_octets -= len(self._gathered)
        self._gathered = bytearray()

    def _gather(self, delivery: engine.Pointer) -> None:
        """Receive octets of a delivery of many frames, or a large one, as they arrive, so that the session's window
        moves.
        """
        if engine.delivery_aborted(delivery):
            self._aborted(delivery)
            return
        if self.ending is not None and engine.delivery_partial(delivery):
            self._drop_octets()  # a delivery without an outcome has no answer that would free them
            self._give_up(delivery, self.ending)
            return
        self.takes = -1
        self.partial(delivery)
        while True:
            size = engine.link_recv(self.pointer, engine.message_buffer, _ROOM)
            if size > 0:
                if not self._keep(delivery, size):
                    return
            elif size == 0:
                return
            elif size == engine.EOS:
                break
            else:
                self._aborted(delivery)
                return
        if engine.delivery_partial(delivery):
            return
        try:
            message = bytes(self._gathered) if self._spool is None else self._spool.finish()
        except OSError as error:
            self._no_room(delivery, error)
            return
        self._forget_parts()
        state, settled, _ = steps.said(delivery)
        engine.link_advance(self.pointer)
        self.complete(delivery, message, state, settled, None)

    def _too_large(self, delivery: engine.Pointer) -> None:
        refusal = Refusal(
            Condition.MESSAGE_SIZE_EXCEEDED,
            f"a message is larger than {self._most_octets} bytes, the most this link takes",
        )
        self._give_up(delivery, refusal)

    def _no_room(self, delivery: engine.Pointer, error: OSError) -> None:
        log.error("no room for a large message", why=str(error))
        text = "no room for a large message; try later"
        if isinstance(error, NoRoom):
            text += " (limits.spool_bytes)"
        self._give_up(delivery, Refusal(Condition.RESOURCE_LIMIT_EXCEEDED, text))

    def _give_way(self) -> None:
        """Refuse the incomplete message, whose disk space others need."""
        text = "a large message that was begun and not completed gave way to others (limits.spool_bytes); try later"
        self._give_up(engine.link_current(self.pointer), Refusal(Condition.RESOURCE_LIMIT_EXCEEDED, text))

    def _give_up(self, delivery: engine.Pointer, refusal: Refusal) -> None:
        """Refuse the incomplete delivery and the link: the engine ignores the rest of it (part 2, section 2.6.12)."""
        self.partial(delivery)
        self.partial_refused(delivery, refusal)
        self._forget_parts()
        self.refuse(refusal)

    def _forget_parts(self) -> None:
        if self._spool is not None:
            self._spool.close()
            self._spool = None
        self._forget_gathered()
        self.takes = self._most_octets
        self._size = 0
        self.partial_ended()

    def lost(self) -> None:
        self._leave = None
        self._forget_parts()

    # -- the end

    @property
    def busy(self) -> bool:
        """Whether deliveries are not answered yet. When a link ends, the engine settles its unsettled deliveries
        without an outcome: their sender would not know the outcome, or treat them as accepted.
        """
        return self.unanswered > 0

    def when_answered(self, leave: Callable[[], None]) -> None:
        """Call ``leave`` to end the link when it is no longer busy; until then it accepts no deliveries."""
        self._leave = leave

    def _answered(self) -> None:
        self.unanswered -= 1
        self._left()

    def _left(self) -> None:
        if self._leave is not None and not self.busy:
            leave, self._leave = self._leave, None
            leave()
            self.connection.mark()

    def refuse(self, refusal: Refusal) -> None:
        if self.open and self.busy:
            self.ending = self.ending or refusal
            if self._leave is None:
                self._leave = partial(super().refuse, refusal)
        else:
            super().refuse(refusal)

    def refuse_next(self, refusal: Refusal) -> None:
        """Refuse the delivery of the transfer that the engine gets next, and then end the link."""
        if self.ending is None:
            self._refuses_next = True
            self.unanswered += 1
            self.takes = -1
            self.refuse(refusal)

    # -- credit

    def _aborted(self, delivery: engine.Pointer) -> None:
        """Discard an aborted delivery, which has no effect (part 2, section 2.6.14)."""
        self._forget_parts()
        engine.link_advance(self.pointer)
        engine.delivery_settle(delivery)
        self._top_up()

    def complete(
        self, delivery: engine.Pointer, message: Octets, state: int, settled: bool, txn_id: bytes | None
    ) -> bool:
        """Handle a whole message, and count its credit. True: like :meth:`on_message`."""
        quiet = self.on_message(delivery, message, state, settled, txn_id)
        self._used += 1
        if 2 * self._used >= self._credit and self.open:
            self._give_credit_later()
        return quiet

    def _top_up(self) -> None:
        self._used += 1
        self._top_up_late()

    def _top_up_late(self) -> None:
        """Grant the withheld credit, if half is used."""
        if 2 * self._used >= self._credit:
            self._give_credit_later()

    def _give_credit_later(self) -> None:
        """Grant credit in the next turn: messages read in this turn were sent without it. The engine does not check
        this.
        """
        if self._used > self._credit + (self._lent != 0):
            self.refuse(Refusal(Condition.TRANSFER_LIMIT_EXCEEDED, "more messages were sent than there was credit for"))
        elif not self._gives:
            self._gives = True
            self.connection.service.loop.call_later(0, self._give_now)

    def _give_now(self) -> None:
        self._gives = False
        self._give_credit()

    def _give_credit(self) -> None:
        if not self.open or self._leave is not None:
            return
        commit = self.connection.service.commit
        # a connection with nothing in the store's backlog does not wait for it
        if self.waits_for_store and commit.congested and commit.has_waiting(self.connection):
            if not self._congested:
                self._congested = True
                self.connection.service.when_uncongested(self._uncongested)
            return
        more = self._used - self._unsettled()
        if more > 0:
            engine.link_flow(self.pointer, more)
            self._used -= more
            self._granted += more
            self.connection.mark()

    def _unsettled(self) -> int:
        """Return how many answered deliveries use up credit until their sender settles them."""
        return 0

    @property
    def carried(self) -> int:
        return self._granted - int(engine.link_credit(self.pointer))

    def send_credit(self) -> None:
        """Send the current credit, which the engine sends only on a change: grant one more, or take that one back.

        If the peer has used all, and the one more, it gets no flow: one less than none is 2**32 - 1 on the wire.
        """
        if self._lent > 0 and engine.link_credit(self.pointer) <= engine.link_queued(self.pointer):
            return
        self._lent = -1 if self._lent > 0 else 1
        engine.link_flow(self.pointer, self._lent)
        self._granted += self._lent
        engine.transport_pending(self.connection.transport)
        self.connection.mark()

    def _uncongested(self) -> None:
        self._congested = False
        if self._used:
            self._give_credit()

    #: whether the messages of this link are held until the store has them
    waits_for_store = True

    def settled_later(self, delivery: engine.Pointer) -> None:
        """Handle an earlier delivery, which its sender has settled, or whose state it has changed."""

    def partial(self, delivery: engine.Pointer) -> None:
        """Handle the begin of an incomplete delivery; may be called for each of its frames."""

    def partial_refused(self, delivery: engine.Pointer, refusal: Refusal) -> None:
        """Send the refusal of an incomplete delivery, unless its sender has settled it."""

    def partial_ended(self) -> None:
        """Handle the end of an incomplete delivery, which is complete, aborted, or refused."""

    def on_message(
        self, delivery: engine.Pointer, message: Octets, state: int, settled: bool, txn_id: bytes | None
    ) -> bool:
        """Handle a complete message. ``txn_id``: of a transactional state, if known without decoding it. True: the
        answer is in :attr:`Output.put_off`, or its write is requested.
        """
        raise NotImplementedError
