"""An instance lists its connections in the store, where operators see them, and closes those that operators want
closed.

Each few seconds it scans its connections, some in a turn, and writes what has changed of them. It counts nothing
for that: a connection that no frame has passed since the last scan is passed over.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Protocol

from store.errors import StoreError
from store.questions import connections as questions
from store.questions.connections import Line as Line
from store.questions.connections import LinkLine as LinkLine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.instance import Instance


#: seconds between two scans
SCAN_SECONDS = 5.0
#: Ended connections that stay in the list.
MOST_ENDED = 100
#: What one turn scans: connections, and links of those that have changed.
_MOST_AT_ONCE = 200
#: rows deleted at once
_MOST_GONE = 5000


class Listed(Protocol):
    """An open connection."""

    number: int

    @property
    def activity(self) -> int:
        """A number that changes with each frame of either side."""

    @property
    def carried(self) -> tuple[int, int]:
        """How many messages the client has posted, and how many it was sent."""

    def line(self, rates: tuple[float, float]) -> Line:
        """Describe the connection. ``rates``: messages a second that the client has posted, and was sent."""

    def close_by_hand(self, reason: str) -> None:
        """Close it. ``reason``: an operator's; may be empty."""


class _Seen:
    """An open connection as the last scan saw it."""

    __slots__ = ("activity", "at", "carried", "connection", "digest", "has_row", "moves")

    def __init__(self, connection: Listed) -> None:
        self.connection = connection
        self.activity = -1
        self.carried = (0, 0)
        self.at = time.monotonic()
        #: whether messages have passed between the last two scans
        self.moves = False
        #: of the line that was written last
        self.digest = 0
        #: whether the store may have a row of it
        self.has_row = False


class _Ended:
    """A connection that has ended."""

    __slots__ = ("has_row", "line", "written")

    def __init__(self, line: Line, *, has_row: bool) -> None:
        self.line = line
        self.has_row = has_row
        self.written = False


class ConnectionList:
    """Writes the list of one instance's connections."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._seen: dict[int, _Seen] = {}
        #: the last connections that have ended, the oldest first
        self._ended: OrderedDict[int, _Ended] = OrderedDict()
        #: connections whose rows are to be deleted
        self._gone: deque[int] = deque()
        #: connections that this scan has still to see
        self._left: deque[_Seen] = deque()
        self._scanning = False

    def start(self) -> None:
        self._instance.loop.call_later(SCAN_SECONDS, self.start)
        self._scan()

    def connected(self) -> None:
        """Write all lines again, as a server that has crashed has lost them; requests may have been missed."""
        self._write_all()
        self._query_to_close()

    def _write_all(self) -> None:
        for seen in self._seen.values():
            seen.activity, seen.digest = -1, 0
        for ended in self._ended.values():
            ended.written = False

    # -- connections

    def opened(self, connection: Listed) -> None:
        self._seen[connection.number] = _Seen(connection)

    def ended(self, number: int, line: Line) -> None:
        """Keep the last line of a connection, which may never have been open."""
        seen = self._seen.pop(number, None)
        self._ended[number] = _Ended(line, has_row=seen is not None and seen.has_row)
        if len(self._ended) > MOST_ENDED:
            oldest, ended = self._ended.popitem(last=False)
            if ended.has_row:
                self._gone.append(oldest)

    # -- scans

    def _scan(self) -> None:
        if not self._scanning:
            self._scanning = True
            self._left.extend(self._seen.values())
            self._go_on()

    def _go_on(self) -> None:
        """Scan some of the connections, and write what has changed; then at the next ones."""
        texts = [*self._just_ended(), *self._changed()]
        gone = [self._gone.popleft() for _ in range(min(len(self._gone), _MOST_GONE))]
        if texts or gone:
            instance = self._instance
            questions.write(instance.queries, instance.instance_id, texts, gone, self._written)
        else:
            self._next()

    def _just_ended(self) -> Iterator[str]:
        for ended in self._ended.values():
            if not ended.written:
                ended.written = ended.has_row = True
                yield ended.line.text

    def _changed(self) -> Iterator[str]:
        now = time.monotonic()
        room = _MOST_AT_ONCE
        while self._left and room > 0:
            seen = self._left.popleft()
            room -= 1
            if seen.connection.number not in self._seen:
                continue
            activity = seen.connection.activity
            if activity == seen.activity and not seen.moves:
                continue
            seen.activity = activity
            try:
                line = self._line(seen, now)
            except Exception:  # noqa: BLE001 - a defect costs this connection only
                self._instance.loop.contain(seen.connection)
                continue
            room -= line.links
            text = line.text
            digest = hash(text)
            if digest != seen.digest:
                seen.digest, seen.has_row = digest, True
                yield text

    def _line(self, seen: _Seen, now: float) -> Line:
        posted, delivered = carried = seen.connection.carried
        seconds = max(now - seen.at, 0.001)
        rates = (posted - seen.carried[0]) / seconds, (delivered - seen.carried[1]) / seconds
        seen.carried, seen.at, seen.moves = carried, now, any(rates)
        return seen.connection.line(rates)

    def _written(self, answer: StoreError | None) -> None:
        if isinstance(answer, StoreError):  # the log has it
            self._write_all()
        self._next()

    def _next(self) -> None:
        if self._left or self._gone:
            self._instance.loop.call_later(0, self._go_on)
        else:
            self._scanning = False

    # -- closing

    def notified(self, payload: str) -> None:
        """Handle a NOTIFY that connections of the instance ``payload`` are to be closed."""
        if payload == str(self._instance.instance_id):
            self._query_to_close()

    def _query_to_close(self) -> None:
        questions.to_close(self._instance.queries, self._instance.instance_id, self._close)

    def _close(self, answer: dict[int, str] | StoreError) -> None:
        if isinstance(answer, StoreError):  # the command that asks for it says that it is not closed
            return
        for number, reason in answer.items():
            seen = self._seen.get(number)
            if seen is not None:
                seen.connection.close_by_hand(reason)
        if answer:
            self._scan()
