"""Browsers are links that read messages without consuming any (rules P8, P16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.group.units import LOAD_RETRY_SECONDS
from links import engine
from links.outgoing import LARGE_IN_ENGINE, MOST_BACKLOG, Outgoing, TooLarge
from store.codec.encoding import DecodeError
from store.commit import terms
from store.commit.terms import Rank
from store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.address.nodes import Address
    from coordinator.group.entries import Entry
    from coordinator.group.queues import Queue
    from links.connection import Connection
    from links.outgoing import Filters
    from store.questions.entries import EntryRow


_BROWSED_AT_ONCE = 200
#: more than any priority
_ABOVE_ALL = 1 << 14


class Browsing(Outgoing):
    """Sends committed messages that no consumer has, in the order of delivery, without consuming any (P8).

    While it has credit, it also sends messages that are committed later.
    """

    __slots__ = ("_again", "_at", "_loading", "_selector", "_stale", "unsettled")

    def __init__(
        self, connection: Connection, pointer: engine.Pointer, address: Address, queue: Queue, honoured: Filters
    ) -> None:
        super().__init__(connection, pointer, address, queue, honoured)
        self._selector = honoured.selector
        #: the last id read, by priority
        self._at: dict[int, int] = {}
        #: ranks that may have new messages: the priority and id after which the next read begins
        self._stale: dict[Rank, tuple[int, int]] = {}
        #: ranks with news since their read began, perhaps before the position reached
        self._again: set[Rank] = set()
        self._loading = False
        self.unsettled: set[engine.Pointer] = set()
        queue.browsers.append(self)
        self.arrived()
        queue.touch()

    def arrived(self) -> None:
        for rank in Rank:
            if rank in self._stale:
                self._again.add(rank)
            elif rank not in self._again:
                self._stale[rank] = self._start(rank)

    def _start(self, rank: Rank) -> tuple[int, int]:
        if rank is Rank.NORMAL:
            return (terms.DEFAULT, self._at.get(terms.DEFAULT, 0))
        return (_ABOVE_ALL, 0)

    def on_flow(self) -> None:
        if engine.link_get_drain(self.pointer):  # the client wants the messages that are there now
            self.arrived()
        super().on_flow()

    def _go_on_sending(self) -> None:
        self._go_on()
        self._queue.touch()

    @property
    def _room(self) -> int:
        """The number of messages that may be sent: the credit, within the bound of unsettled deliveries."""
        if self._held_back():
            return 0
        credit: int = self.credit
        return min(credit, self.connection.service.bounds.unsettled_per_link - len(self.unsettled))

    def advance(self) -> None:
        if self._loading or self._large is not None or not self.open:
            return
        if self._backlogged():
            self.connection.starved[self] = None
        elif self._stale and self._room > 0:
            rank = min(self._stale)
            asked = self._stale[rank]
            self._loading = True
            most = _BROWSED_AT_ONCE if self._selector else min(self._room, _BROWSED_AT_ONCE)
            memory = self.connection.service.memory
            octets = MOST_BACKLOG if memory.unread <= memory.most else memory.fair_share
            self._queue.browse(rank, asked, most, octets, lambda rows: self._loaded(rank, rows))
        elif self.draining:
            self.drained()

    def _loaded(self, rank: Rank, rows: Sequence[EntryRow] | StoreError) -> None:
        if isinstance(rows, StoreError):
            self.connection.service.loop.call_later(LOAD_RETRY_SECONDS, self._look_again)
            return
        self._loading = False
        if not self.open:
            return
        behind = self._show(rows)
        if not rows:
            del self._stale[rank]
        elif behind is not None:
            self._stale[rank] = behind
        # The next round: the urgent rank after each read of another, the other ranks after all are read. So each rank
        # has turns, however many messages arrive.
        at_all = not self._stale
        for other in [each for each in self._again if each not in self._stale]:
            if at_all or (other is Rank.URGENT and rank is not Rank.URGENT):
                self._again.discard(other)
                self._stale[other] = self._start(other)
        self._queue.touch()

    def _look_again(self) -> None:
        """Retry after a failed read: the rank is still stale."""
        self._loading = False
        self._queue.touch()

    def _show(self, rows: Sequence[EntryRow]) -> tuple[int, int] | None:
        """Send the new messages; return the priority and id after which the next read begins, None: unchanged."""
        at = self._at
        behind = None
        for row in rows:
            entry = self._queue.entry_kind(self._queue, *row)
            seen = at.get(entry.priority, 0)
            if entry.id <= seen:
                return entry.priority, seen
            if (
                self._room <= 0
                or self._backlogged()
                or (self._selector is not None and self.connection.service.instance.selecting.used_up)
            ):
                break  # no more may be sent, or selected, in this turn
            at[entry.priority] = entry.id
            behind = (entry.priority, entry.id)
            held = self._queue.held.get(entry.id)
            if held is not None and held.link is not None:
                continue  # a consumer has it
            if self._selector is not None and not self._selector.matches(entry.message or b"", entry.attempts):
                continue
            try:
                delivery = self._deliver(entry)
            except TooLarge:
                continue  # skipped: a message's size does not end the link
            except DecodeError:
                continue  # skipped: the first consumer that would get it moves it to the dead letters
            if entry.whole:
                break  # it continues from there once the large message is sent
            self._sent(entry, delivery)
        return behind

    def _sent(self, entry: Entry, delivery: engine.Pointer) -> None:
        if self.presettled:
            engine.delivery_settle(delivery)
        else:
            self.unsettled.add(delivery)
            self.connection.output.hold(delivery, LARGE_IN_ENGINE if entry.whole else entry.size)

    def on_delivery(self, delivery: engine.Pointer) -> None:
        """Settle the delivery as soon as the peer sends any state: outcomes have no effect here."""
        if self.refuse_transfer():
            return
        large = self._channels.largest
        if large and not self._room_for_state(delivery, large):
            return
        if not self._stop(delivery):
            if delivery in self.unsettled:
                self.unsettled.remove(delivery)
                self.connection.output.settled_one(delivery)
            engine.delivery_settle(delivery)
            self._queue.touch()
        self.connection.mark()

    def lost(self) -> None:
        super().lost()
        self._queue.browsers.remove(self)
        self.connection.output.settled(self.unsettled)
        self.unsettled.clear()
