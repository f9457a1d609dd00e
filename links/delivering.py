"""Links on which the service sends: their answer to the attach, their credit, and when they wait (rules P5, P8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.errors import Condition
from links import container, engine
from links.link import Link, answer_terminus, copy_target
from links.output import MOST_HANDED

if TYPE_CHECKING:
    from links.link import Carrier

#: octets that wait to be written in one session; with more, its consumers stop
MOST_BACKLOG = 1 << 20


class Delivering(Link):
    __slots__ = ("_drains", "_owes_flow", "credit", "draining")

    def __init__(
        self, connection: Carrier, pointer: engine.Pointer, address: str, filters: bytes, *, lasts: bool = False
    ) -> None:
        """Answer the attach. ``filters``: those that are honoured, an encoded map. ``lasts``: the source outlives the
        link.
        """
        super().__init__(connection, pointer)
        source = engine.link_source(pointer)
        answer_terminus(source, engine.link_remote_source(pointer), lasts=lasts)
        engine.terminus_set_type(source, engine.SOURCE)  # a null source names a subscription by the link's name
        engine.set_address(source, engine.address_of(engine.link_remote_source(pointer)) or address)
        # P8: the answer leaves out unknown filters
        engine.put_octets(filters, engine.terminus_filter(source))
        engine.put(container.symbols(container.OUTCOMES), engine.terminus_outcomes(source))
        copy_target(connection, pointer)
        engine.link_set_snd_settle_mode(pointer, engine.link_remote_snd_settle_mode(pointer))
        engine.link_set_rcv_settle_mode(pointer, engine.link_remote_rcv_settle_mode(pointer))
        engine.link_set_max_message_size(pointer, int(connection.service.limits.max_message_size_bytes))
        engine.link_open(pointer)
        #: it is drained, once the engine has written what it has for the link
        self._drains = False
        #: the peer drains credit, and was not told yet that it is used up
        self._owes_flow = False
        self._read_credit()
        connection.mark()

    def _read_credit(self) -> None:
        self.credit = max(0, engine.link_credit(self.pointer))
        self.draining = bool(engine.link_get_drain(self.pointer))
        self._owes_flow = self._owes_flow or (self.draining and self.credit > 0)

    def lost(self) -> None:
        self.connection.held_back.pop(self, None)

    def _backlogged(self) -> bool:
        """Whether so much waits to be written that it must wait."""
        output = self.connection.output
        in_session: int = engine.session_outgoing_bytes(self.session)
        return output.writing or output.handed > MOST_HANDED or in_session > MOST_BACKLOG

    def _held_back(self) -> bool:
        """Whether it must wait: its connection leaves more than its share unsettled, and all together too much."""
        if self.connection.output.over_share:
            self.connection.hold_back(self)
            return True
        return False

    def held_no_more(self) -> None:
        if self.open:
            self._has_room()

    def _has_room(self) -> None:
        """More may be sent than before, or the peer drains its credit."""
        raise NotImplementedError

    def refuse_transfer(self) -> bool:
        """Whether the peer, the receiver of this link, has sent a transfer itself. That closes the connection."""
        if engine.link_current(self.pointer) == engine.NULL:  # our own deliveries are complete at once
            return False
        self.connection.force_close(Condition.NOT_ALLOWED, f"a transfer from the receiver of the link {self.name!r}")
        return True

    def drained(self) -> None:
        self.credit = 0
        self.draining = False
        self._drains = True
        engine.transport_pending(self.connection.transport)  # it makes its frames, as far as the peer's window goes
        self._end_drain()

    def _end_drain(self) -> None:
        """Say that there is nothing more. The engine says it only where it is asked behind the last transfer, and where
        credit is left.
        """
        if engine.link_queued(self.pointer) > 0:
            self.connection.starved[self] = None
            return
        self._drains = False
        if not engine.link_drained(self.pointer) and self._owes_flow:
            self.connection.say_state(self.pointer)
        self._owes_flow = False
        self.connection.mark()

    def fed(self) -> None:
        """Something was written: see again."""
        if self.open:
            if self._drains:
                self._end_drain()
            self._go_on_sending()

    def _go_on_sending(self) -> None:
        """Look again whether more may be sent."""
        raise NotImplementedError
