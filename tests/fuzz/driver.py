"""Plays cases against a service, some at once, and watches how each connection ends.

A connection that has said everything closes its sending side: the service, which has nothing to wait for then, must
close its own. The time from there to the end of the stream is what is measured: all connections are served by one
thread, so that whatever holds it up is seen by all.
"""

from __future__ import annotations

import contextlib
import re
import selectors
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

from tests.fuzz.cases import TXN, Case
from tests.fuzz.tls import Contexts
from tests.fuzz.tls import Layer as TlsLayer
from tests.fuzz.websocket import Layer as WebSocketLayer

#: what a write waits for an answer before the next goes out, and a flight of a handshake before the end
_PAUSE_SECONDS = 0.004
_HANDSHAKE_SECONDS = 0.2
#: ``declared``, as the service says it
_DECLARED = re.compile(rb"\x00\x53\x33\xc0\x13\x01\xa0\x10(.{16})", re.DOTALL)
_PLACE = re.compile(re.escape(TXN) + b"(.)", re.DOTALL)
_NO_TXN = b"\0" * 16
_RESET = struct.pack("ii", 1, 0)

Layer = TlsLayer | WebSocketLayer


class Hang(Exception):
    """A connection was not served in time."""


class _Connection:
    __slots__ = ("at", "case", "ended", "frames", "layer", "moment", "sock", "txns", "unsent", "waiting")

    def __init__(self, case: Case, port: int, layer: Layer | None, now: float) -> None:
        self.case = case
        self.layer = layer
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.at = 0
        self.txns: list[bytes] = []
        self.unsent = b""
        #: when the last write went out, or the sending side was closed
        self.moment = now
        self.waiting = False
        self.ended = False
        self.frames = 0

    @property
    def pause(self) -> float:
        return _PAUSE_SECONDS if self.layer is None or self.layer.there else _HANDSHAKE_SECONDS


class Driver:
    """``ports``: in plain text, behind TLS, and for WebSockets. ``bound``: seconds within which a connection must end;
    ``busy()``: seconds of processor time that the service's worker has used, to tell a service that hangs from a
    machine that has no time.
    """

    def __init__(
        self,
        ports: Sequence[int],
        contexts: Contexts,
        *,
        width: int,
        bound: float,
        patience: float,
        busy: Callable[[], float],
    ) -> None:
        self._plain, self._behind_tls, self._for_websockets = ports
        self._contexts = contexts
        self._width = width
        self._bound = bound
        self._patience = patience
        self._busy = busy
        self._selector = selectors.DefaultSelector()
        self._running: set[_Connection] = set()
        self._ending: dict[_Connection, float] = {}
        #: frames that went out, by generator and stage; of TLS its records, of a WebSocket its own frames
        self.frames: Counter[tuple[str, str]] = Counter()
        self.cases: Counter[tuple[str, str]] = Counter()
        self.octets = 0
        #: seconds from the end of what was sent to the end of the stream
        self.worst = 0.0
        #: how connections ended: "closed" by the service before everything was said, "ended" after it, "cut" by us
        self.ends: Counter[str] = Counter()
        #: the last cases, oldest first: a failure is in one of them
        self.recent: deque[Case] = deque(maxlen=400)

    @property
    def total(self) -> int:
        return sum(self.frames.values())

    def play(self, cases: Iterator[Case], most: int | None, watch: Callable[[], None]) -> None:
        """Until ``most`` frames more are sent, or there are no more cases. ``watch()`` is called often."""
        goal = None if most is None else self.total + most
        more = True
        try:
            while more or self._running:
                while more and len(self._running) < self._width:
                    if goal is not None and self.total >= goal:
                        more = False
                        break
                    case = next(cases, None)
                    if case is None:
                        more = False
                        break
                    self._start(case)
                self._turn()
                watch()
        finally:
            for connection in list(self._running):
                self._drop(connection, "cut")

    def _start(self, case: Case) -> None:
        self.recent.append(case)
        self.cases[case.generator, case.stage] += 1
        if case.records is None:
            connection = _Connection(case, self._plain, None, time.monotonic())
        elif case.generator == "tls":
            connection = _Connection(case, self._behind_tls, TlsLayer(case, self._contexts), time.monotonic())
        else:
            connection = _Connection(case, self._for_websockets, WebSocketLayer(case), time.monotonic())
        self._running.add(connection)
        self._selector.register(connection.sock, selectors.EVENT_READ, connection)
        if connection.layer is None:
            self._go_on(connection)
        else:
            self._answer(connection, connection.layer, b"")

    def _turn(self) -> None:
        for key, events in self._selector.select(_PAUSE_SECONDS):
            connection = key.data
            if events & selectors.EVENT_READ:
                self._read(connection)
            if events & selectors.EVENT_WRITE and connection in self._running:
                self._send(connection)
        now = time.monotonic()
        for connection in list(self._running):
            if connection.ended or connection.unsent:
                if now - connection.moment > self._bound:
                    self._late(connection, now)
            elif connection.waiting and now - connection.moment >= connection.pause:
                self._go_on(connection)

    def _late(self, connection: _Connection, now: float) -> None:
        """Late by the clock; it hangs where the service was at work all the while, or does nothing at all."""
        worked = self._busy() - self._ending.setdefault(connection, self._busy())
        waited = now - connection.moment
        if worked > self._bound or waited > self._patience:
            what = "was not read" if connection.unsent else "was not closed"
            raise Hang(
                f"a connection of {connection.case.generator}/{connection.case.stage} {what} for {waited:.1f} s, "
                f"in which the worker used {worked:.1f} s or more of processor time"
            )

    def _go_on(self, connection: _Connection) -> None:
        case, layer = connection.case, connection.layer
        if connection.at >= len(case.writes) or (layer is not None and (layer.over or not layer.there)):
            self._end(connection)
            return
        octets = case.writes[connection.at]
        if TXN in octets:
            txns = connection.txns
            octets = _PLACE.sub(lambda found: txns[found[1][0] % len(txns)] if txns else _NO_TXN, octets)
        if layer is None:
            self.frames[case.generator, case.stage] += case.frames[connection.at]
        else:
            octets = self._counted(connection, layer, layer.out(octets))
        connection.at += 1
        connection.unsent += octets
        self._send(connection)

    def _answer(self, connection: _Connection, layer: Layer, octets: bytes) -> bytes:
        """What the layer says by itself goes out; what the service has said in it."""
        came, answer = layer.took(octets)
        if answer and not connection.ended:
            connection.unsent += self._counted(connection, layer, answer)
            self._send(connection)
        return came

    def _counted(self, connection: _Connection, layer: Layer, octets: bytes) -> bytes:
        self.frames[connection.case.generator, connection.case.stage] += layer.records
        layer.records = 0
        return octets

    def _send(self, connection: _Connection) -> None:
        connection.waiting = False
        blocked = bool(self._selector.get_key(connection.sock).events & selectors.EVENT_WRITE)
        try:
            sent = connection.sock.send(connection.unsent) if connection.unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(connection, "closed")
            return
        self.octets += sent
        connection.unsent = connection.unsent[sent:]
        if sent or not blocked:
            connection.moment = time.monotonic()
        if bool(connection.unsent) is not blocked:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
            self._selector.modify(connection.sock, wanted, connection)
        connection.waiting = not connection.unsent

    def _read(self, connection: _Connection) -> None:
        try:
            octets = connection.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            octets = b""
        if not octets:
            if connection.ended:
                self.worst = max(self.worst, time.monotonic() - connection.moment)
            self._drop(connection, "ended" if connection.ended else "closed")
            return
        if connection.layer is not None:
            octets = self._answer(connection, connection.layer, octets)
        connection.txns += _DECLARED.findall(octets)
        if connection in self._running and connection.waiting and not connection.ended and self._may_go_on(connection):
            self._go_on(connection)

    @staticmethod
    def _may_go_on(connection: _Connection) -> bool:
        return connection.layer is None or connection.layer.there or connection.layer.over

    def _end(self, connection: _Connection) -> None:
        """All is said."""
        if connection.case.abrupt:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._drop(connection, "cut")
            return
        connection.ended = True
        connection.moment = time.monotonic()
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_WR)

    def _drop(self, connection: _Connection, how: str) -> None:
        self.ends[how] += 1
        self._running.discard(connection)
        self._ending.pop(connection, None)
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def close(self) -> None:
        self._selector.close()
