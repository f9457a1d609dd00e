"""Attaches with filters: a selector takes milliseconds to read, so a turn of the reactor reads only some of them.

The others wait for later turns. Connections take turns, so one that attaches thousands of links holds up no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.codec.selectors import TurnShare
from links import engine
from links.link import Attaching

if TYPE_CHECKING:
    from links.link import Carrier
    from store.loop import Loop


class InTurn(Attaching):
    """An attach that waits for its turn."""

    __slots__ = ("_attaches",)

    def __init__(self, connection: Carrier, pointer: engine.Pointer, attaches: Attaches) -> None:
        super().__init__(connection, pointer)
        self._attaches = attaches

    def lost(self) -> None:
        self._attaches.forget(self)


class Attaches:
    """The attaches that wait, by connection."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._share = TurnShare()
        self._counting = False
        self._waiting: dict[Carrier, dict[InTurn, None]] = {}

    def take(self, connection: Carrier, pointer: engine.Pointer) -> None:
        """Answer the attach now if this turn has time left; otherwise let it wait."""
        if not self._counting:
            self._counting = True
            self._share.renew()
            self._loop.call_later(0, self._next_turn)
        if not self._waiting and not self._share.used_up:
            connection.endpoints.attach_source(pointer)
            return
        waiting = InTurn(connection, pointer, self)
        self._waiting.setdefault(connection, {})[waiting] = None
        connection.endpoints.attached(waiting)

    def forget(self, link: InTurn) -> None:
        """Its client has detached it."""
        waiting = self._waiting.get(link.connection, {})
        waiting.pop(link, None)
        if not waiting:
            self._waiting.pop(link.connection, None)

    def _next_turn(self) -> None:
        self._share.renew()
        while self._waiting and not self._share.used_up:
            connection, waiting = next(iter(self._waiting.items()))
            link = next(iter(waiting))
            self.forget(link)
            if waiting:  # other connections come first
                self._waiting[connection] = self._waiting.pop(connection)
            try:
                connection.endpoints.attach_source(link.pointer)
            except Exception:  # noqa: BLE001 - a defect costs this connection only
                self._loop.contain(link)
        self._counting = bool(self._waiting)
        if self._counting:
            self._loop.call_later(0, self._next_turn)
