"""Links on which messages come in: gathering a delivery's octets, however many frames they come in, and credit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.errors import Condition, Refusal
from links import engine
from links.link import Link

if TYPE_CHECKING:
    from links.connection import Connection

_ROOM = engine.MESSAGE_ROOM


class Incoming(Link):
    """``credit``: what the peer is given; topped up when half is used."""

    __slots__ = ("_congested", "_credit", "_most_octets", "_parts", "_parts_octets", "_used")

    def __init__(self, connection: Connection, pointer: engine.Pointer, credit: int) -> None:
        super().__init__(connection, pointer)
        self._credit = credit
        self._used = 0
        self._congested = False
        self._most_octets = int(connection.service.limits.max_message_size_bytes)
        self._parts: list[bytes] = []
        self._parts_octets = 0

    def start(self) -> None:
        """Answer the attach and grant credit."""
        engine.link_set_max_message_size(self.pointer, self._most_octets)
        engine.link_open(self.pointer)
        engine.link_flow(self.pointer, self._credit)
        self.connection.mark()

    def on_flow(self) -> None:
        pass

    def on_delivery(self, delivery: engine.Pointer) -> None:
        if delivery != engine.link_current(self.pointer):
            return  # it came before, and its sender has settled it or changed its state meanwhile
        if not self._parts and not engine.delivery_partial(delivery):
            size = engine.link_recv(self.pointer, engine.message_buffer, _ROOM)
            if size < _ROOM:
                if size > self._most_octets:
                    self._too_large(delivery)
                    return
                if size < 0 and (size != engine.EOS or engine.delivery_aborted(delivery)):
                    self._aborted(delivery)
                    return
                self._complete(delivery, bytes(engine.message_view[:size]) if size > 0 else b"")
                return
            self._keep(size)
        self._gather(delivery)

    def _keep(self, size: int) -> None:
        self._parts.append(bytes(engine.message_view[:size]))
        self._parts_octets += size

    def _gather(self, delivery: engine.Pointer) -> None:
        """A delivery of many frames, or a large one; what has come is taken at once, so that the session's window
        moves.
        """
        if engine.delivery_aborted(delivery):
            self._aborted(delivery)
            return
        self.partial(delivery)
        while True:
            size = engine.link_recv(self.pointer, engine.message_buffer, _ROOM)
            if size > 0:
                self._keep(size)
                if self._parts_octets > self._most_octets:
                    self._too_large(delivery)
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
        message = b"".join(self._parts)
        self._forget_parts()
        self._complete(delivery, message)

    def _too_large(self, delivery: engine.Pointer) -> None:
        refusal = Refusal(
            Condition.MESSAGE_SIZE_EXCEEDED,
            f"a message is larger than {self._most_octets} bytes (limits.max_message_size_bytes)",
        )
        self.partial(delivery)
        self.partial_refused(refusal)
        self._forget_parts()
        self.refuse(refusal)

    def _forget_parts(self) -> None:
        self._parts = []
        self._parts_octets = 0
        self.partial_ended()

    def _aborted(self, delivery: engine.Pointer) -> None:
        """It leaves nothing behind (part 2, section 2.6.14)."""
        self._forget_parts()
        engine.link_advance(self.pointer)
        engine.delivery_settle(delivery)
        self._top_up()

    def _complete(self, delivery: engine.Pointer, message: bytes) -> None:
        state = engine.delivery_remote_state(delivery)
        settled = bool(engine.delivery_settled(delivery))
        engine.link_advance(self.pointer)
        self.on_message(delivery, message, state, settled)
        if self.open:
            self._top_up()

    def _top_up(self) -> None:
        self._used += 1
        if 2 * self._used >= self._credit:
            self._give_credit()

    def _give_credit(self) -> None:
        if not self.open:
            return
        service = self.connection.service
        if service.commit.congested and self.waits_for_store:
            if not self._congested:
                self._congested = True
                service.when_uncongested(self._uncongested)
            return
        engine.link_flow(self.pointer, self._used)
        self._used = 0
        self.connection.mark()

    def _uncongested(self) -> None:
        self._congested = False
        if self._used:
            self._give_credit()

    #: whether what comes in on this link is held until the store has it
    waits_for_store = True

    def partial(self, delivery: engine.Pointer) -> None:
        """A delivery has begun and is not complete; may be called for each of its frames."""

    def partial_refused(self, refusal: Refusal) -> None:
        """What has begun will not be taken."""

    def partial_ended(self) -> None:
        """It is complete, aborted, or refused."""

    def on_message(self, delivery: engine.Pointer, message: bytes, state: int, settled: bool) -> None:
        raise NotImplementedError
