"""Browsers: links that look and take nothing (rules P8, P16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from links import engine
from links.outgoing import MOST_BACKLOG, Outgoing
from store import queries

if TYPE_CHECKING:
    from coordinator.directory import Address
    from coordinator.queues import Entry, Queue
    from links.connection import Connection
    from links.filters import Filters
    from store.errors import StoreError
    from store.queries import Row

_BROWSED_AT_ONCE = 200


class Browsing(Outgoing):
    """Looks at what is committed and in nobody's hands, in order, and takes nothing (P8)."""

    __slots__ = ("_at", "_exhausted", "_loading", "_selector")

    def __init__(
        self, connection: Connection, pointer: engine.Pointer, address: Address, queue: Queue, honoured: Filters
    ) -> None:
        super().__init__(connection, pointer, address, queue, honoured)
        self._selector = honoured.selector
        self._at = 0
        self._loading = False
        self._exhausted = False
        queue.browsers.append(self)
        queue.touch()

    def on_flow(self) -> None:
        self._exhausted = False  # a drain wants to know what is there now
        super().on_flow()

    def arrived(self) -> None:
        self._exhausted = False

    def fed(self) -> None:
        if self.open:
            self._go_on()
            self._queue.touch()

    def advance(self) -> None:
        if self._loading or self._large is not None or not self.open:
            return
        if self.connection.writing:
            if self not in self.connection.starved:
                self.connection.starved.append(self)
        elif not self._exhausted and self.credit > 0:
            self._loading = True
            parameters = [
                self._queue.group_id.to_bytes(4, "big"),
                self._at.to_bytes(8, "big"),
                (_BROWSED_AT_ONCE if self._selector else min(self.credit, _BROWSED_AT_ONCE)).to_bytes(4, "big"),
                MOST_BACKLOG.to_bytes(8, "big"),
            ]
            self.connection.service.queries.ask(queries.BROWSE, parameters, self._loaded)
        elif self.draining:
            self.drained()

    def _loaded(self, rows: list[Row] | StoreError) -> None:
        self._loading = False
        if not self.open or not isinstance(rows, list):
            return
        self._exhausted = not rows
        for row in rows:
            if self.credit <= 0:
                break  # it looks at more than it may send
            self._at = row[0]
            held = self._queue.held.get(self._at)
            if held is not None and held.link is not None:
                continue  # in a consumer's hands
            entry = self.connection.service.entry_of(self._queue, row)
            if self._selector is not None and not self._selector.matches(entry.message or b"", entry.attempts):
                continue
            delivery = self._deliver(entry)
            if entry.whole:
                break  # it looks on from there when it is sent
            self._sent(entry, delivery)
        self._queue.touch()

    def _sent(self, entry: Entry, delivery: engine.Pointer) -> None:
        if self.presettled:
            engine.delivery_settle(delivery)

    def on_delivery(self, delivery: engine.Pointer) -> None:
        """Outcomes mean nothing here; the delivery is settled when the peer says anything of it."""
        if not self._stop(delivery):
            engine.delivery_settle(delivery)
        self.connection.mark()

    def lost(self) -> None:
        self._queue.browsers.remove(self)
