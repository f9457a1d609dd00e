"""The reactor moves octets between the sockets of connections and Proton's engine, in turns of the loop.

A turn handles the store's answers; reads from clients, for a limited time, and drains the engine's events; then it
delivers messages, sends the gathered units to the store, and writes once to each connection with output.
"""

from __future__ import annotations

import gc
import select
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from itertools import takewhile
from operator import attrgetter
from types import BuiltinMethodType, FunctionType, MethodType

import structlog

from coordinator.errors import Condition
from coordinator.retirement import Departure
from links import engine, steps
from links.close_reason import CloseReason
from links.connection import Connection, refuse
from links.connection_limits import ConnectionLimits
from links.endpoints import Attaches
from links.greeting import Greeting
from links.link import Identity, Link
from links.loop import Loop

# Each connection has a share of the time in which a turn reads.

#: The most that one read counts. It may have taken longer for another reason: a disk, or a stopped machine.
COUNTED_SECONDS = 0.005
#: The time that a connection which sends little saves up. When hundreds of these begin to send much, each has this
#: time before those that have sent much.
SAVED_SECONDS = 0.002


class Shares:
    """Shares the reading time among connections, by the seconds that count for each."""

    __slots__ = ("_level", "behind", "most")

    def __init__(self) -> None:
        #: whether the last turn left some connections unread
        self.behind = False
        #: The most seconds that count for a connection, up to :data:`COUNTED_SECONDS` above those that are read now.
        #: New
        #: connections begin with it: short ones get no more than those that stay.
        self.most = 0.0
        #: the seconds that had counted for those that were read last
        self._level = 0.0

    @property
    def least(self) -> float:
        """The lower bound of the counted seconds: an idle connection may not save up its whole share."""
        return self._level - SAVED_SECONDS

    def ended(self, had: float, most: float, *, behind: bool) -> None:
        """Record a turn. ``had``: the counted seconds of the last connection, before its read; ``most``: of any."""
        self._level, self.most, self.behind = max(self._level, had), most, behind


# Each turn reads for a limited time, from one connection after the other (rule S5): however much clients send, the
# store's answers, the heartbeat and the other clients have their turn.
#
# If there is more input than a turn reads, connections have equal shares of the time: the one that has had the least is
# first. A client that sends little does not wait for hundreds that send much.

#: Seconds that a turn reads; it ends a read that it has begun.
READ_SECONDS = 0.04
#: Reads that take longer together were too large: the next reads of these connections are smaller.
LONG_READS_SECONDS = 0.02
#: the least octets of one read, for connections whose octets take long
LEAST_ROOM = 512

_HAD = attrgetter("read_seconds")


def read_some(reactor: Reactor) -> None:
    """Read from the readable connections while the turn has time. Those left unread are first in the next turn, among
    equals, and in smaller reads: if hundreds begin at once, none waits for full reads of all others.
    """
    readable, reactor.readable = reactor.readable, []
    shares = reactor.shares
    if shares.behind:
        readable.sort(key=_HAD)
    began = now = time.monotonic()
    least, most = shares.least, shares.most
    longest = LONG_READS_SECONDS / len(readable)
    for number, connection in enumerate(readable, 1):
        connection.readable = False
        if not connection.open or connection.paused:
            continue
        room = connection.read_room
        try:
            reactor.read(connection)
        except Exception:  # noqa: BLE001 - a defect costs this connection only
            reactor.contain(connection)
        before, now = now, time.monotonic()
        if now - before > longest:
            connection.read_room = min(connection.read_room, max(room // 4, LEAST_ROOM))
        had = max(connection.read_seconds, least)
        connection.read_seconds = had + min(now - before, COUNTED_SECONDS)
        most = max(most, connection.read_seconds)
        if now - began > READ_SECONDS and number < len(readable):
            left = readable[number:]
            for each in left:
                each.read_room = max(each.read_room // 4, LEAST_ROOM)
            reactor.readable = left + reactor.readable
            shares.ended(had, most, behind=True)
            return
    shares.ended(most, most, behind=False)


# The clock of connections: ticks drive the engine's idle times, and the time limit of the open (P4).

#: seconds between ticks of a connection whose transport needs none
_TICK_SECONDS = 30.0


class Ticks:
    """Times the connections: idle timeouts (part 2, 2.4.5), and the end of those that do not open in time."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        #: connections by number
        self._connections: dict[int, Connection] = {}
        #: the deadline of each connection for its open, the oldest first
        self._unopened: dict[Connection, float] = {}
        #: whether their shared timer runs: with one each, thousands of timers would outlive their connections
        self._looks_at_unopened = False

    def begin(self, connection: Connection) -> None:
        self._connections[connection.number] = connection
        self._tick(connection)
        seconds = connection.service.bounds.opening_seconds
        if not self._looks_at_unopened:
            self._looks_at_unopened = True
            self._reactor.call_later(seconds, self._end_unopened)
        self._unopened[connection] = time.monotonic() + seconds

    def opened(self, connection: Connection) -> None:
        """Schedule a tick, as the idle times of both sides are known now (P4)."""
        self._unopened.pop(connection, None)
        self.tick_in(0, connection)

    def forget(self, connection: Connection) -> None:
        self._connections.pop(connection.number, None)
        self._unopened.pop(connection, None)

    def tick_in(self, seconds: float, connection: Connection) -> None:
        """Schedule the connection's only tick. The timer refers to a number, so that a closed connection is not kept
        alive.
        """
        connection.ticks += 1
        self._reactor.call_later(seconds, partial(self._tick_again, connection.number, connection.ticks))

    def _tick_again(self, number: int, ticks: int) -> None:
        connection = self._connections.get(number)
        if connection is not None and connection.ticks == ticks:
            self._reactor.read_in_turn(connection)
            self._reactor.call_later(0, partial(self._tick_when_read, number, ticks))

    def _tick_when_read(self, number: int, ticks: int) -> None:
        """Tick after the socket was read: this process may have been stopped for longer than the idle time, and the
        peer's frames still be in the socket.
        """
        connection = self._connections.get(number)
        if connection is None or connection.ticks != ticks:
            return
        if connection.readable:
            self._reactor.call_later(0, partial(self._tick_when_read, number, ticks))
        else:
            self._reactor.call(partial(self._tick, connection))

    def _tick(self, connection: Connection) -> None:
        if not connection.open:
            return
        now = time.monotonic()
        idle = connection.service.limits.idle_timeout_seconds
        if connection.output.is_stuck(idle):
            unread = len(connection.output.unread)
            self._reactor.close(connection, CloseReason.CLIENT_READS_NOTHING, unread=unread)
            return
        if connection.paused and not connection.must_pause:  # in case the reason of the pause ended unnoticed
            self._reactor.call_later(0, connection.resume)
        deadline = engine.transport_tick(connection.transport, int(now * 1000))
        self._reactor.drain_events()
        connection.mark()
        wait = max(deadline / 1000 - now, 0.01) if deadline else _TICK_SECONDS
        if connection.output.unread:
            wait = min(wait, idle)
        self.tick_in(min(wait, _TICK_SECONDS), connection)

    def _end_unopened(self) -> None:
        """Close connections whose peer did not open them in time (P4)."""
        now = time.monotonic()
        late = list(takewhile(lambda connection: self._unopened[connection] <= now, self._unopened))
        for connection in late:
            self._reactor.call(partial(self._read_and_end, connection))
        self._looks_at_unopened = bool(self._unopened)
        if self._unopened:
            self._reactor.call_later(max(0.0, next(iter(self._unopened.values())) - now), self._end_unopened)

    def _read_and_end(self, connection: Connection) -> None:
        """Read from the connection, and close it if it is still unopened: this process may have been stopped."""
        self._reactor.read(connection)
        if self._unopened.pop(connection, None) is not None:
            self._reactor.close(connection, CloseReason.NOT_OPENED)


# A defect of the service costs one connection, not the worker (P14); these functions find the connection.

#: attributes by which units, entries and logins refer to their owners
_OWNERS = ("link", "_link", "connection", "owner", "_entry", "_disabled")
_DEEPEST = 5


def connection_of(what: object) -> Connection | None:
    """Return the connection that a callback or a unit belongs to, found by its references; None: there is none."""
    return _search(what, _DEEPEST)


def name_of(what: object) -> str:
    """Return the name of a callback for the log."""
    if isinstance(what, partial):
        return name_of(what.func)
    return str(getattr(what, "__qualname__", type(what).__qualname__))


def _search(what: object, depth: int) -> Connection | None:
    if isinstance(what, Connection):
        return what
    if isinstance(what, Link):
        return _search(what.connection, 0)
    if depth:
        for each in _referred(what):
            found = _search(each, depth - 1)
            if found is not None:
                return found
    return None


def _referred(what: object) -> Iterator[object]:
    if isinstance(what, MethodType | BuiltinMethodType):  # a method of a class compiled by mypyc is the latter
        yield what.__self__
    elif isinstance(what, partial):
        yield what.func
        yield from what.args
    elif isinstance(what, FunctionType):
        for cell in what.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not bound yet
                continue
    elif (variables := getattr(what, "__mypyc_env__", None)) is not None:
        yield from _of_compiled(variables)
    elif type(what).__module__.startswith(("coordinator.", "links.")):
        for name in _OWNERS:
            each = getattr(what, name, None)
            if each is not None:
                yield each


def _of_compiled(variables: object) -> Iterator[object]:
    """Yield the variables of the enclosing functions of one compiled by mypyc, which are in objects."""
    for each in gc.get_referents(variables):
        if type(each).__name__.endswith("_env"):
            yield from _of_compiled(each)
        else:
            yield each


# The sockets of ended connections are kept until their peers have read the end.
#
# Closing a socket with unread input resets the connection, and a reset may discard the last octets, the close and its
# reason, at a peer that has not read them yet (RFC 1122, section 4.2.2.13). So the worker shuts down its own side only,
# and discards further input, until the peer closes too or a time limit ends.

#: seconds that a peer has to read the last octets, and to close
LINGER_SECONDS = 5.0
#: how many sockets are kept; further ones are closed at once
MOST_LEAVING = 256


class Leaving:
    """Keeps sockets until their peers close. ``take`` a socket that neither the loop nor a connection uses any more."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        #: sockets with their deadlines, by descriptor, the oldest first
        self._sockets: dict[int, tuple[socket.socket, float]] = {}

    def take(self, sock: socket.socket) -> None:
        try:
            sock.shutdown(socket.SHUT_WR)
        except OSError:  # the peer is gone
            sock.close()
            return
        if len(self._sockets) >= MOST_LEAVING:
            sock.close()
            return
        if not self._sockets:
            self._loop.call_later(LINGER_SECONDS, self._check)
        self._sockets[sock.fileno()] = sock, time.monotonic() + LINGER_SECONDS
        self._loop.watch(sock.fileno(), select.EPOLLIN, lambda _: self._read(sock))

    def close(self) -> None:
        """Close all sockets at once, as the loop has ended."""
        for sock, _ in list(self._sockets.values()):
            self._close(sock)

    def _read(self, sock: socket.socket) -> None:
        try:
            size = sock.recv_into(engine.read_view)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        if size == 0:
            self._close(sock)

    def _close(self, sock: socket.socket) -> None:
        del self._sockets[sock.fileno()]
        self._loop.forget(sock.fileno())
        sock.close()

    def _check(self) -> None:
        now = time.monotonic()
        while self._sockets:
            sock, deadline = next(iter(self._sockets.values()))
            if deadline > now:
                self._loop.call_later(deadline - now, self._check)
                return
            self._close(sock)


log = structlog.get_logger(__name__)

_IN = select.EPOLLIN
_OUT = select.EPOLLOUT
#: seconds before accepting is retried after a failure
_ACCEPT_RETRY_SECONDS = 0.5
#: How many connections one turn accepts from a listener. Each costs a third of a millisecond, and more until it is
#: open, for which open connections wait.
_MOST_ACCEPTED = 8
#: events that epoll always reports
_GONE = select.EPOLLERR | select.EPOLLHUP


class Reactor(Loop):
    """Runs the turns of a worker. ``end_turn`` is called when the input of a turn is read, before output is written."""

    def __init__(self) -> None:
        super().__init__()
        #: connections by descriptor
        self._connections: dict[int, Connection] = {}
        self._listeners: list[socket.socket] = []
        self.end_turn: Callable[[], bool] = lambda: False
        self.events = engine.collector()
        #: all open links, by their pointers in the engine
        self.links: dict[engine.Pointer, Link] = {}
        #: and by user, container, direction and name, if the container has an id (P13)
        self.named: dict[Identity, Link] = {}
        self.by_transport: dict[engine.Pointer, Connection] = {}
        #: attaches whose filters are to be decoded
        self.attaches = Attaches(self)
        self._ticks = Ticks(self)
        self.connection_limits = ConnectionLimits()
        self.leaving = Leaving(self)
        self.shares = Shares()

    # -- connections

    @property
    def connections(self) -> Collection[Connection]:
        return self._connections.values()

    def end(self) -> None:
        """Leave the sockets, as the loop has ended. A connection that was not opened got no close: its TLS ends, or its
        WebSocket.
        """
        for connection in self.connections:
            with suppress(OSError):  # the peer is gone
                connection.socket.shutdown(socket.SHUT_WR)
        self.leaving.close()

    def stop_listening(self) -> None:
        for listener in self._listeners:
            self.forget(listener.fileno())
        self._listeners.clear()

    def listen(self, listener: socket.socket, accepted: Callable[[socket.socket], Connection]) -> None:
        listener.setblocking(False)

        def accept(_: int) -> None:
            for _ in range(_MOST_ACCEPTED):  # the rest in the next turn
                try:
                    sock, _peer = listener.accept()
                except BlockingIOError:
                    return
                except OSError as error:  # no descriptor left: new connections wait in the backlog
                    log.error("cannot accept a connection", why=error.strerror)
                    self.forget(listener.fileno())
                    self.call_later(_ACCEPT_RETRY_SECONDS, accept_again)
                    return
                connection = accepted(sock)
                self._add(connection)
                surplus = self.connection_limits.add(connection)
                if surplus is not None:
                    self.close(*surplus)

        def accept_again() -> None:
            if listener in self._listeners:
                self.watch(listener.fileno(), _IN, accept)

        self._listeners.append(listener)
        self.watch(listener.fileno(), _IN, accept)

    def _add(self, connection: Connection) -> None:
        self._connections[connection.fd] = connection
        connection.service.memory.connections += 1
        self.by_transport[connection.transport] = connection
        self.watch(connection.fd, _IN, partial(self._serve, connection))
        self._ticks.begin(connection)
        self.drain_events()
        connection.mark()

    def opened(self, connection: Connection) -> None:
        self._ticks.opened(connection)

    def close(self, connection: Connection, reason: CloseReason, **more: object) -> None:
        """Close the socket and free all memory. A new connection may have the same descriptor right after."""
        if not connection.open:
            return
        connection.ends(reason, **more)
        self._let_go(connection)
        self._free(connection)

    def _let_go(self, connection: Connection) -> None:
        """Release all but the connection's part of the engine."""
        connection.open = False
        self._connections.pop(connection.fd, None)
        connection.service.memory.connections -= 1
        self.by_transport.pop(connection.transport, None)
        self._ticks.forget(connection)
        self.connection_limits.remove(connection)
        self.forget(connection.fd)
        self.leaving.take(connection.socket)
        try:
            connection.lost()
        finally:
            connection.output.lost()

    def _free(self, connection: Connection) -> None:
        transport = connection.transport
        engine.transport_close_tail(transport)
        engine.transport_close_head(transport)
        self.drain_events()
        engine.transport_unbind(transport)
        self.drain_events()
        # both calls: release alone would leak 3 kB for each connection
        engine.connection_release(connection.pointer)
        engine.decref(connection.pointer)
        engine.decref(transport)
        self.drain_events()

    def drain_events(self) -> bool:
        """Handle the engine's events. True: there were some, and links have requested all output that they cause."""
        events, links, drain = self.events, self.links, steps.drain
        pops = False
        while True:
            try:
                found = drain(events, links, pops)
                if found is True or found is False:
                    return found and not pops
                self._on_event(*found)
            except Exception:  # noqa: BLE001 - a defect costs one connection only
                self._contain(engine.collector_peek(events))
            pops = True

    def _on_event(self, event: engine.Pointer, kind: int) -> None:
        """Handle an event of the engine that concerns no known link."""
        connection = self.by_transport.get(engine.event_transport(event))
        if connection is None:
            return
        if kind == engine.DELIVERY:
            engine.discard(engine.event_delivery(event))
            connection.mark()
        elif kind != engine.LINK_FLOW:
            connection.on_event(kind, event)

    def contain(self, what: object) -> None:
        """Log a defect of the service, and close the connection that ``what`` belongs to, and no other (P14)."""
        connection = connection_of(what)
        log.exception("internal error", what=name_of(what), peer=connection.peer if connection is not None else None)
        if connection is not None:
            self._end(connection)

    def _contain(self, event: engine.Pointer) -> None:
        """Log a defect in handling an event of the engine, and close its connection."""
        connection = self.by_transport.get(engine.event_transport(event))
        log.exception(
            "internal error", kind=engine.event_type(event), peer=connection.peer if connection is not None else None
        )
        if connection is not None:
            self._end(connection)

    def _end(self, connection: Connection) -> None:
        """Close the connection with an error; if even that fails, without a close frame."""
        if not connection.open:  # its part of the engine is freed already
            return
        if connection.closing or connection.greeting is not None:  # a close frame can be sent only after AMQP's header
            self._abandon(connection)
            return
        try:
            text = "an internal error; the service's log says more"
            connection.force_close(CloseReason.INTERNAL_ERROR, Condition.INTERNAL_ERROR, text)
        except Exception:
            log.exception("internal error", what="force_close", peer=connection.peer)
            self._abandon(connection)

    def _abandon(self, connection: Connection) -> None:
        """Close the socket now. The connection's part of the engine may be in use by a caller: the next turn frees
        it.
        """
        if connection.open:
            connection.ends(CloseReason.INTERNAL_ERROR)
            self.call_later(0, partial(self._free, connection))
            connection.endpoints.depart(Departure.ENDED)
            try:
                self._let_go(connection)
            except Exception:
                log.exception("internal error", what="lost", peer=connection.peer)

    # -- pausing reads, while the store or the peer is behind

    def _pause(self, connection: Connection) -> None:
        """Stop reading from the peer, as too many octets wait for the store, or for the peer to read.

        The idle time is off meanwhile, as the peer's frames cannot be seen. Before the answer to the open it stays on,
        as that answer announces its value.
        """
        if connection.paused:
            return
        connection.paused = True
        self.watch_socket(connection)
        if not connection.opening:
            engine.transport_set_idle_timeout(connection.transport, 0)
        if connection.posting and connection.service.commit.overfull:
            connection.service.when_uncongested(connection.resume)

    def resume(self, connection: Connection) -> None:
        if not connection.paused:
            return
        connection.paused = False
        if connection.open:
            self.watch_socket(connection)
            engine.transport_set_idle_timeout(connection.transport, connection.idle_timeout_ms)
            self.read_in_turn(connection)

    def watch_socket(self, connection: Connection) -> None:
        self.change(connection.fd, (not connection.paused and _IN) | (connection.output.writing and _OUT))

    def read_in_turn(self, connection: Connection) -> None:
        """Have the connection read in this turn, or in the next."""
        if not connection.readable:
            connection.readable = True
            self.readable.append(connection)

    def read(self, connection: Connection) -> None:
        """Read from the connection's socket, as much as its room in one turn."""
        if connection.must_pause:
            self._pause(connection)
            if (
                connection.output.too_much_unread
            ):  # the tick checks whether the peer reads, and closes the connection if not
                self._ticks.tick_in(connection.service.limits.idle_timeout_seconds, connection)
            return
        greeting = connection.greeting
        try:
            size = connection.socket.recv_into(engine.read_view, connection.read_room)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        if size == 0:
            self.close(connection, CloseReason.CLIENT_GONE)
            return
        if 2 * size > connection.read_room:  # not only if full: TLS returns less than there is room for
            connection.read_room = min(2 * connection.read_room, engine.READ_ROOM)
        if greeting is not None:
            size = self._greet(connection, greeting, size)
            if size == 0:
                return
        self._push(connection, size)

    def _push(self, connection: Connection, size: int) -> None:
        """Feed the first ``size`` octets of the read buffer."""
        self._feed(connection, bytes(engine.read_view[:size]), engine.read_buffer)

    def _feed(self, connection: Connection, read: bytes, buffer: engine.Pointer) -> None:
        """Push the octets that the guard passes into the engine, and drain its events."""
        transport, guard = connection.transport, connection.guard
        push = engine.transport_push
        for octets, length in guard.filter(read, buffer):
            at, quiet = 0, guard.plain
            while at < length:
                taken = push(transport, octets + at, length - at)
                quiet = self.drain_events() and quiet
                if not connection.open:
                    return
                if taken <= 0:  # the transport is closed, or the peer violated the protocol
                    break
                at += taken
            if not quiet or connection.output.put_off:
                connection.mark()
                connection.output.put_off.clear()
            if at < length or engine.transport_capacity(transport) < 0:
                refuse(connection)
                return
        if guard.waits:
            self._pause(connection)

    def go_on(self, connection: Connection) -> None:
        """Feed the octets that the guard has held, then resume reading."""
        if connection.open and connection.guard.waits:
            held = connection.guard.held()
            self._feed(connection, held, engine.buffer_of(held))
            self.resume(connection)

    def _greet(self, connection: Connection, greeting: Greeting, size: int) -> int:
        """Answer the peer's protocol headers; return how many octets at the beginning of the buffer are for the engine
        (P1).
        """
        answer = greeting.take(bytes(engine.read_view[:size]))
        if answer:
            with suppress(OSError):  # the socket's buffer is still empty
                connection.socket.send(answer)
        if greeting.failed:
            self.close(connection, CloseReason.LOGIN_FAILED)
            return 0
        if greeting.waiting:  # further input stays in the socket meanwhile
            self._pause(connection)
            return 0
        if not greeting.done:
            return 0
        connection.greeted(greeting.user)
        rest = greeting.rest
        engine.read_view[: len(rest)] = rest
        return len(rest)

    def proceed(self, connection: Connection) -> None:
        """Continue a login with the answer that it waited for."""
        greeting = connection.greeting
        if not connection.open or greeting is None:
            return
        size = self._greet(connection, greeting, 0)
        if size:
            self._push(connection, size)
        if not greeting.waiting:
            self.resume(connection)

    def _flush(self) -> None:
        while self.dirty:
            dirty: list[Connection] = self.dirty
            self.dirty = []
            for connection in dirty:
                connection.dirty = False
                if connection.open:
                    try:
                        connection.output.write()
                        if connection.starved and connection.open:
                            connection.feed()
                    except Exception:  # noqa: BLE001 - a defect costs this connection only
                        self.contain(connection)

    # -- turns

    def finish_turn(self) -> None:
        if self.readable:
            read_some(self)
        self._gather()
        self._flush()
        while self._gather():  # writing made room for more deliveries
            self._flush()

    def _serve(self, connection: Connection, events: int) -> None:
        if events & _GONE and connection.paused:
            self.close(connection, CloseReason.CLIENT_GONE)
            return
        if events & ~_OUT:
            self.read_in_turn(connection)
        if events & _OUT:
            connection.mark()

    def _gather(self) -> bool:
        try:
            return self.end_turn()
        except Exception:  # noqa: BLE001 - a defect that no callback or unit contained
            self.contain(self.end_turn)
            return False
