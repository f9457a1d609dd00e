"""Connections and their sockets, between the loop and Proton's engine.

A turn: take the store's answers; read what clients have sent, for a moment, and drain the engine's events; then
deliver, hand what has gathered to the store, and write once for each connection that has something to say.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

import structlog

from coordinator.errors import Condition
from coordinator.retirement import Departure
from links import engine, malformed, reading, steps
from links.connection import Connection
from links.containment import connection_of, name_of
from links.crowd import Crowd
from links.greeting import Greeting
from links.in_turn import Attaches
from links.leaving import Leaving
from links.link import Identity, Link
from links.loop import Loop
from links.shares import Shares
from links.ticks import Ticks

log = structlog.get_logger(__name__)

_IN = select.EPOLLIN
_OUT = select.EPOLLOUT
#: where a connection cannot be accepted
_ACCEPT_RETRY_SECONDS = 0.5
#: Connections that one turn takes from a listener. Each is a third of a millisecond, and some more until it is open:
#: those that are open already wait for them.
_MOST_ACCEPTED = 8
#: epoll reports these always
_GONE = select.EPOLLERR | select.EPOLLHUP


class Reactor(Loop):
    """``end_turn`` is called when the input of a turn is read, before output is written."""

    def __init__(self) -> None:
        super().__init__()
        #: by descriptor
        self._connections: dict[int, Connection] = {}
        self._listeners: list[socket.socket] = []
        self.end_turn: Callable[[], bool] = lambda: False
        self.events = engine.collector()
        #: every open link by its pointer in the engine
        self.links: dict[engine.Pointer, Link] = {}
        #: and by user, container, direction and name, where the container has an id (P13)
        self.named: dict[Identity, Link] = {}
        self.by_transport: dict[engine.Pointer, Connection] = {}
        #: attaches that have filters to be read
        self.attaches = Attaches(self)
        self._ticks = Ticks(self)
        self.crowd: Crowd[Connection] = Crowd()
        self.leaving = Leaving(self)
        self.shares = Shares()

    # -- connections

    @property
    def connections(self) -> Collection[Connection]:
        return self._connections.values()

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
                surplus = self.crowd.came(connection)
                if surplus is not None:
                    self.close(surplus)

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

    def close(self, connection: Connection) -> None:
        """Close the socket and free all. Another connection may have the same descriptor right after."""
        if not connection.open:
            return
        self._let_go(connection)
        self._free(connection)

    def _let_go(self, connection: Connection) -> None:
        """Let go of all but the part of the engine."""
        connection.open = False
        self._connections.pop(connection.fd, None)
        connection.service.memory.connections -= 1
        self.by_transport.pop(connection.transport, None)
        self._ticks.forget(connection)
        self.crowd.left(connection)
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
        # both: release alone would leak 3 kB for each connection
        engine.connection_release(connection.pointer)
        engine.decref(connection.pointer)
        engine.decref(transport)
        self.drain_events()

    def drain_events(self) -> bool:
        """Handle what the engine reports. True: links ask for all that is to be written about it, and it was some."""
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
        """What is about no link that there is."""
        connection = self.by_transport.get(engine.event_transport(event))
        if connection is None:
            return
        if kind == engine.DELIVERY:
            engine.discard(engine.event_delivery(event))
            connection.mark()
        elif kind != engine.LINK_FLOW:
            connection.on_event(kind, event)

    def contain(self, what: object) -> None:
        """After a defect of ours: close the connection that ``what`` belongs to, and no other (P14)."""
        connection = connection_of(what)
        log.exception("internal error", what=name_of(what), peer=connection.peer if connection is not None else None)
        if connection is not None:
            self._end(connection)

    def _contain(self, event: engine.Pointer) -> None:
        """The same after a defect in handling an event of the engine."""
        connection = self.by_transport.get(engine.event_transport(event))
        log.exception(
            "internal error", kind=engine.event_type(event), peer=connection.peer if connection is not None else None
        )
        if connection is not None:
            self._end(connection)

    def _end(self, connection: Connection) -> None:
        """Close the connection with an error; where even that fails, without a close frame."""
        if not connection.open:  # its part of the engine is freed already
            return
        if connection.closing or connection.greeting is not None:  # before AMQP's header no close frame can be sent
            self._abandon(connection)
            return
        try:
            connection.force_close(Condition.INTERNAL_ERROR, "an internal error; the service's log says more")
        except Exception:
            log.exception("internal error", what="force_close", peer=connection.peer)
            self._abandon(connection)

    def _abandon(self, connection: Connection) -> None:
        """Close its socket now. Its part of the engine may be in use by a caller, and is freed in the next turn."""
        if connection.open:
            self.call_later(0, partial(self._free, connection))
            connection.endpoints.depart(Departure.ENDED)
            try:
                self._let_go(connection)
            except Exception:
                log.exception("internal error", what="lost", peer=connection.peer)

    # -- a store that does not keep up

    def _pause(self, connection: Connection) -> None:
        """Too many octets wait for the store, or for the peer to read: leave what the peer sends in its socket.

        No idle time runs meanwhile: whether the peer is silent cannot be seen. Before the answer to the open it
        does, as that says what it is set to.
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
        """Read it in this turn, or in the next."""
        if not connection.readable:
            connection.readable = True
            self.readable.append(connection)

    def read(self, connection: Connection) -> None:
        """What lies in its socket, as much as fits one turn."""
        if connection.must_pause:
            self._pause(connection)
            if (
                connection.output.too_much_unread
            ):  # the tick sees whether the peer reads, and closes the connection if it does not
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
            self.close(connection)
            return
        if 2 * size > connection.read_room:  # not just all: TLS gives less than there is room for
            connection.read_room = min(2 * connection.read_room, engine.READ_ROOM)
        if greeting is not None:
            size = self._greet(connection, greeting, size)
            if size == 0:
                return
        self._push(connection, size)

    def _push(self, connection: Connection, size: int) -> None:
        """Octets from the beginning of the buffer."""
        if malformed.may_have(connection, engine.read_view[:size]):
            self._feed(connection, bytes(engine.read_view[:size]), engine.read_buffer)

    def _feed(self, connection: Connection, read: bytes, buffer: engine.Pointer) -> None:
        """What the engine may have of it."""
        transport, look = connection.transport, connection.look
        push = engine.transport_push
        for octets, length in look.pieces(read, buffer):
            at, quiet = 0, look.plain
            while at < length:
                taken = push(transport, octets + at, length - at)
                quiet = self.drain_events() and quiet
                if not connection.open:
                    return
                if taken <= 0:  # the transport is closed, or the peer broke the protocol
                    break
                at += taken
            if not quiet or connection.output.put_off:
                connection.mark()
                connection.output.put_off.clear()
            if at < length or engine.transport_capacity(transport) < 0:
                malformed.refuse(connection)
                return
        if look.waits:
            self._pause(connection)

    def go_on(self, connection: Connection) -> None:
        """With what has waited; then read on."""
        if connection.open and connection.look.waits:
            held = connection.look.held()
            self._feed(connection, held, engine.buffer_of(held))
            self.resume(connection)

    def _greet(self, connection: Connection, greeting: Greeting, size: int) -> int:
        """Answer the peer's protocol headers. Returns how many octets at the beginning of the buffer are for the engine
        (P1).
        """
        answer = greeting.take(bytes(engine.read_view[:size]))
        if answer:
            with suppress(OSError):  # the socket's buffer is still empty
                connection.socket.send(answer)
        if greeting.failed:
            self.close(connection)
            return 0
        if greeting.waiting:  # what the peer sends meanwhile stays in its socket
            self._pause(connection)
            return 0
        if not greeting.done:
            return 0
        connection.greeted(greeting.user)
        rest = greeting.rest
        engine.read_view[: len(rest)] = rest
        return len(rest)

    def proceed(self, connection: Connection) -> None:
        """The answer has come that the peer's login waited for."""
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
            reading.read_some(self)
        self._gather()
        self._flush()
        while self._gather():  # writing made room for more deliveries
            self._flush()

    def _serve(self, connection: Connection, events: int) -> None:
        if events & _GONE and connection.paused:
            self.close(connection)
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
