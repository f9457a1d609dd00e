"""A connection of one client opens, pauses, and ends."""

from __future__ import annotations

import socket as sockets
import time
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import structlog
from proton import symbol

from coordinator.errors import Condition, Refusal
from coordinator.printable import printable
from coordinator.retirement import Departure
from links import container, engine
from links.client import Client
from links.close_reason import USUAL, CloseReason
from links.endpoints import LITTLE_ROOM, Endpoints
from links.greeting import Greeting
from links.guard import FrameGuard
from links.layer import Layer
from links.listed import line, product
from links.output import LayerOutput, Output
from links.parked import Parked
from links.sole import Sole, policy

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from coordinator.address.permissions import Rights
    from coordinator.connection_list import Line
    from coordinator.service import Service
    from links.channels import Termini
    from links.outgoing import Delivering
    from links.reactor import Reactor
    from store.permissions import Verb


log = structlog.get_logger(__name__)

_numbers = count(1)

#: the flush of a batch may take this long: the service could not keep a shorter idle time
SHORTEST_IDLE_MS = 100

#: seconds between two looks whether all is answered
_LOOK_SECONDS = 0.01

#: characters of an error that is kept for operators
_LONGEST_ERROR = 300

#: the error with which the engine closes a connection whose peer was silent for the idle time
_SILENT = "local-idle-timeout expired"

_SESSION_EVENTS = (engine.SESSION_REMOTE_OPEN, engine.SESSION_REMOTE_CLOSE)
_LINK_EVENTS = (engine.LINK_REMOTE_OPEN, engine.LINK_REMOTE_CLOSE, engine.LINK_REMOTE_DETACH)


class Connection(Client):
    """One AMQP connection: its socket, its part of the engine, its sessions and links, and its output."""

    __slots__ = (
        "_product", "_sole", "addresses_made", "asking", "close_reason", "closing", "container", "dirty", "endpoints",
        "expired", "fd", "greeting", "guard", "held_back", "idle_timeout_ms", "incomplete", "last_error", "number",
        "open", "opened", "opened_at", "opening", "output", "parked", "paused", "pointer", "posting", "reactor",
        "read_room", "read_seconds", "readable", "sessions", "starved", "ticks", "transport",
    )  # fmt: skip

    def __init__(self, reactor: Reactor, service: Service, sock: sockets.socket, mechanisms: Sequence[str]) -> None:
        """``mechanisms``: the SASL mechanisms that its listener offers (:mod:`coordinator.login.logins`)."""
        sock.setblocking(False)
        if sock.family in (sockets.AF_INET, sockets.AF_INET6):
            sock.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        super().__init__(service, sock, mechanisms)
        self.number = next(_numbers)
        self.reactor = reactor
        self.fd = sock.fileno()
        self.container = ""
        limits, bounds = service.limits, service.bounds
        self.idle_timeout_ms = int(limits.idle_timeout_seconds * 1000)
        self.transport, self.pointer = engine.new_connection(
            reactor.events,
            max_frame=limits.max_frame_size_bytes,
            channel_max=bounds.channel_max,
            idle_timeout_ms=self.idle_timeout_ms,
        )
        #: how many addresses it has created (:class:`coordinator.address.directory.Maker`)
        self.addresses_made = 0
        self.open = True
        #: the octets of its next read, and the seconds that count for its share of the time (:mod:`links.reactor`)
        self.read_room, self.read_seconds = LITTLE_ROOM, reactor.shares.most
        #: the exchange of protocol headers, and SASL; None once it is complete
        self.greeting: Greeting | None = Greeting(self._offered, self._log_in, lambda: reactor.proceed(self))
        self.guard = FrameGuard(self, limits.max_frame_size_bytes, bounds.handle_max)
        #: how many links the peer posts on
        self.posting = 0
        #: posts and attaches that wait for their addresses to be looked up
        self.parked = Parked(self)
        #: how many links the service has closed in the middle of a delivery, and the peer has not closed yet
        self.incomplete = 0
        self.opened = self.closing = False
        #: whether the token of its login has expired, so that it closes once what it has asked is answered
        self.expired = False
        #: why the connection ends; None: it does not
        self.close_reason: CloseReason | None = None
        #: why something of it was refused last, or the connection was closed
        self.last_error: str | None = None
        #: when it was admitted, in seconds since 1970
        self.opened_at: float | None = None
        #: its product and version, once they are asked for
        self._product: tuple[str | None, str | None] | None = None
        #: the number of the last scheduled tick, the only one that is due
        self.ticks = 0
        #: its claim to be the container's only connection (P15)
        self._sole: Sole | None = None
        self.opening = False  # whether its open was received, and is not answered yet
        self.dirty = self.readable = False
        self.output = self._output_of(sock)
        self.paused = False  # until there is room again
        self.endpoints = Endpoints(self)
        self.sessions: Collection[engine.Pointer] = self.endpoints.sessions
        #: links that stopped because too many octets wait to be written
        self.starved: dict[Delivering, None] = {}
        #: links that stopped because too many octets are unsettled
        self.held_back: dict[Delivering, None] = {}
        #: whether a piece of a large message is being read for it
        self.asking = False

    def _output_of(self, sock: sockets.socket) -> Output:
        if not isinstance(sock, Layer):
            return Output(self)
        sock.must_write = self.mark
        sock.must_read = lambda: self.reactor.read_in_turn(self)
        return LayerOutput(self)

    def __str__(self) -> str:
        """Return container and network address, for operators."""
        return f"{self.container or '?'} {self.peer}"

    def mark(self) -> None:
        """Have the connection's output written in this turn."""
        if not self.dirty:
            self.dirty = True
            self.reactor.dirty.append(self)

    @property
    def posts_wait(self) -> bool:
        """Whether too many posts wait for the store, so that the connection is not read for now."""
        return self.service.commit.overfull or self.output.too_much_posted

    def resume(self) -> None:
        self.reactor.resume(self)

    def watch_socket(self) -> None:
        self.reactor.watch_socket(self)

    def close(self, reason: CloseReason) -> None:
        """Close the socket at once, without a close frame."""
        self.reactor.close(self, reason)

    def ends(self, reason: CloseReason, **more: object) -> None:
        """Log why the connection is closed, unless that was logged before."""
        if self.close_reason is None:
            self.close_reason = reason
            self.list_end(reason, more)
            tell = log.debug if reason in USUAL else log.info
            tell(
                "connection closed",
                reason=reason.value,
                peer=self.peer,
                container=self.container,
                user=self.user,
                **more,
            )

    def list_end(self, reason: CloseReason, more: Mapping[str, object]) -> None:
        """Keep why the connection is closed for operators. A monitor that opens the port and leaves is no client."""
        if "description" in more:
            said = [str(more[name]) for name in ("condition", "description") if name in more]
            self.last_error = printable(": ".join(said), _LONGEST_ERROR)
        if self.opened or reason is not CloseReason.CLIENT_GONE:
            line = self.line((0.0, 0.0))._replace(closed=time.time(), close_reason=reason.value)
            self.service.connection_list.ended(self.number, line)

    def erred(self, condition: Condition, description: str) -> None:
        """Keep the error for operators."""
        self.last_error = printable(f"{condition.value}: {description}", _LONGEST_ERROR)

    # -- for the list of connections (coordinator/connection_list.py)

    @property
    def activity(self) -> int:
        return int(engine.transport_frames_in(self.transport)) + int(engine.transport_frames_out(self.transport))

    @property
    def carried(self) -> tuple[int, int]:
        return self.endpoints.carried

    def line(self, rates: tuple[float, float]) -> Line:
        if self._product is None:
            self._product = product(self.pointer)
        return line(self, self._product, rates)

    def close_by_hand(self, reason: str) -> None:
        if not self.closing:
            text = f"an operator has closed this connection{reason and f': {reason}'}"
            self.force_close(CloseReason.BY_HAND, Condition.CONNECTION_FORCED, text)

    @property
    def must_pause(self) -> bool:
        """Whether the connection is not to be read for now."""
        return bool(
            self.expired
            or (self.output.unread and self.output.too_much_unread)
            or self.guard.waits
            or (self.parked.octets and self.parked.too_much)
            or (self.posting and self.posts_wait)
        )

    def hold_back(self, link: Delivering) -> None:
        """Stop the link until this connection, or all connections together, have fewer octets in the engine."""
        self.held_back[link] = None
        self.service.hold_back(self.feed_held_back)

    def feed_held_back(self) -> None:
        held_back, self.held_back = self.held_back, {}
        for link in held_back:
            link.held_no_more()

    def feed(self) -> None:
        """Resume the links that waited for room, as all output was written."""
        if self.output.writing:
            return  # the socket takes no more for now
        starved, self.starved = self.starved, {}
        for link in starved:
            link.fed()

    # -- its user

    def greeted(self, user: str | None) -> None:
        """Complete the protocol headers and SASL, and query the user's rights."""
        self.greeting = None
        self.user = user
        if self.rights is None:
            self.service.permissions.enter(self)

    def granted(self, rights: Rights) -> None:
        first, waits = self.rights is None, self.opening
        super().granted(rights)  # if the rights end a login, the connection is closed before this returns
        if not first:
            self.endpoints.check_rights()
        elif waits:
            self._go_on_opening()

    def may(self, verb: Verb, name: str) -> bool:
        return super().may(verb, name) or self.endpoints.made(name)  # its own dynamic addresses need no permission

    def _locked_out(self) -> None:
        """Close the connection, as its user was disabled or removed."""
        if self.greeting is not None:
            self.close(CloseReason.USER_LOCKED_OUT)
        elif not self.closing:
            text = "the user may not log in any more"
            self.force_close(CloseReason.USER_LOCKED_OUT, Condition.UNAUTHORIZED_ACCESS, text)

    def _expire(self) -> None:
        """Close the connection, as its token has expired. It is not read any more; what was read is answered first."""
        if self.greeting is not None:
            self.close(CloseReason.TOKEN_EXPIRED)
        elif self.open and not self.closing:
            if not self.expired:
                self.expired = True
                log.debug("token expired", peer=self.peer, user=self.user)
            if self.endpoints.busy:
                self.service.loop.call_later(_LOOK_SECONDS, self._expire)
            else:
                text = "the token of the login has expired: connect again with a new one"
                self.force_close(CloseReason.TOKEN_EXPIRED, Condition.UNAUTHORIZED_ACCESS, text)

    # -- events

    def on_event(self, kind: int, event: engine.Pointer) -> None:
        if kind == engine.CONNECTION_REMOTE_OPEN:
            self._on_open()
        elif kind in _SESSION_EVENTS:
            session = engine.event_session(event)
            if kind == engine.SESSION_REMOTE_OPEN:
                self.guard.channels.begun(session)
            self._on_endpoint(kind, session)
        elif kind in _LINK_EVENTS:
            link = engine.event_link(event)
            if kind == engine.LINK_REMOTE_OPEN:
                self.guard.channels.attached(link)
            self._on_endpoint(kind, link)
        elif kind == engine.CONNECTION_REMOTE_CLOSE:
            self.ends(CloseReason.CLIENT_CLOSED)
            self.closing = True  # frames after the peer's close are ignored (part 2, section 2.7.9)
            self.endpoints.depart(Departure.LEFT)
            self.lost()
            engine.connection_close(self.pointer)
            self.mark()
        elif kind == engine.TRANSPORT_ERROR:
            self.output.frames.due = True  # the engine's condition may not be one of the standard
            why = engine.condition_of(engine.transport_condition(self.transport))
            if _SILENT in why:
                self.ends(CloseReason.CLIENT_SILENT, description=why)
            else:
                self.endpoints.depart(Departure.ENDED)
                self.ends(CloseReason.PROTOCOL_ERROR, description=why)

    def _on_endpoint(self, kind: int, pointer: engine.Pointer) -> None:
        if not self.closing:
            self.endpoints.on_event(kind, pointer)

    def end_session(self, session: engine.Pointer, refusal: Refusal) -> set[bytes]:
        """End a session with a refusal; return the transactions of its undecided deliveries."""
        return set() if self.closing else self.endpoints.end(session, refusal)

    def go_on(self) -> None:
        """Feed the held input in the next turn."""
        if self.guard.waits:
            self.service.loop.call_later(0, partial(self.reactor.go_on, self))

    def refusal_of(self, link: engine.Pointer) -> Refusal | None:
        """Return the refusal of an attach, for fields that the engine hides."""
        return self.guard.channels.refusal_of(link)

    def hidden_fields(self, link: engine.Pointer) -> Termini | None:
        """Return the fields of the termini in its attach that the engine hides."""
        return self.guard.channels.hidden_fields(link)

    def send_state(self, link: engine.Pointer) -> None:
        self.guard.channels.send_state(link)

    def _on_open(self) -> None:
        if self.opened:
            text = "a second open on one connection"
            self.force_close(CloseReason.PROTOCOL_ERROR, Condition.ILLEGAL_STATE, text)
            return
        self.opened = True
        idle = engine.transport_remote_idle_timeout(self.transport)
        if 0 < idle < SHORTEST_IDLE_MS:  # part 2, section 2.4.5: closed with a reason
            text = f"an idle-time-out of {idle} ms cannot be kept; {SHORTEST_IDLE_MS} ms or more was expected"
            self.force_close(CloseReason.OPEN_REFUSED, Condition.NOT_ALLOWED, text)
            return
        self.container = engine.remote_container(self.pointer)
        if self.guard.channels.open_refused is not None:
            refusal, field = self.guard.channels.open_refused
            self.refuse_open(CloseReason.OPEN_REFUSED, refusal, field=field)
            return
        if self.service.starved is not None:
            self.refuse_open(CloseReason.NO_DATABASE_CONNECTION, self.service.starved, field="")
            return
        no_room = self.reactor.connection_limits.admit(self)
        if no_room is not None:
            self.refuse_open(CloseReason.TOO_MANY_CONNECTIONS, no_room, field="")
            return
        self.opening = True
        if self.rights is not None:
            self._go_on_opening()

    def _go_on_opening(self) -> None:
        """Answer the open, or claim the container, as the user's rights are known."""
        try:
            asked = policy(self.pointer)
        except Refusal as refusal:
            self.refuse_open(CloseReason.OPEN_REFUSED, refusal, field="properties")
            return
        if asked is None:
            self.admit()
        else:
            self._sole = Sole(self, asked)

    def admit(self) -> None:
        """Answer the open, and feed the input held behind it."""
        self._describe()
        engine.connection_open(self.pointer)
        self.reactor.opened(self)
        self.opened_at = time.time()
        self.service.connection_list.opened(self)
        log.debug("connection opened", peer=self.peer, container=self.container, user=self.user)
        self.opening = False
        self.go_on()
        self.mark()

    def refuse_open(self, reason: CloseReason, refusal: Refusal, *, field: str) -> None:
        """Refuse the open (P15): our open announces the refusal, and our close has the reason. ``field``: the field of
        the peer's open that is the reason.
        """
        self._describe({symbol(container.ESTABLISHMENT_FAILED): True})
        info: dict[object, object] = {}
        if refusal.condition is Condition.INVALID_FIELD:
            info[symbol("invalid-field")] = symbol(field)
        self.force_close(reason, refusal.condition, refusal.description, info)

    def _describe(self, more: dict[object, object] | None = None) -> None:
        offered: tuple[str, ...] = container.OFFERED
        properties = {**container.properties(self.service.store_id), **(more or {})}
        if self._sole is not None:
            offered = (*offered, container.SOLE_CONNECTION)
            properties |= self._sole.properties()
        engine.describe_container(
            self.pointer, f"coordinator-{self.service.store_id}", container.symbols(offered), properties
        )

    # -- the end

    def lost(self) -> None:
        """Release everything that the connection holds."""
        if self.login is not None:
            self.login.end()
        self.service.permissions.leave(self)
        self.endpoints.lost()
        self.starved.clear()
        self.held_back.clear()
        self.service.hold_back_no_more(self.feed_held_back)
        if self._sole is not None:
            self._sole.release()
            self._sole = None
        self.opening = False

    def force_close(
        self,
        reason: CloseReason,
        condition: Condition,
        description: str,
        info: dict[object, object] | None = None,
    ) -> None:
        """Close the connection with an error (rules F5, P14, P15)."""
        self.ends(reason, condition=condition.value, description=description)
        self.closing = True
        self.endpoints.depart(Departure.ENDED)
        self.lost()
        engine.set_condition(engine.connection_condition(self.pointer), condition, description)
        if info:
            engine.set_condition_info(engine.connection_condition(self.pointer), info)
        engine.connection_close(self.pointer)
        self.go_on()
        self.mark()


# Input that the engine refuses (P14).


def refuse(connection: Connection) -> None:
    """Close a connection whose input the engine refuses, with the reason (P14; part 2, section 2.8.15).

    Proton 0.40 itself closes with an error when the header of a frame is malformed, but not when the frame's body
    cannot be decoded or is out of place.
    """
    state = engine.connection_state(connection.pointer)
    if not connection.open or state & engine.REMOTE_CLOSED:
        return
    if engine.is_set(engine.transport_condition(connection.transport)):
        return
    if state & engine.REMOTE_ACTIVE:
        if not connection.closing:
            text = "a frame that cannot be decoded, or that is out of its place"
            connection.force_close(CloseReason.PROTOCOL_ERROR, Condition.DECODE_ERROR, text)
    else:
        connection.output.write()
        connection.close(CloseReason.PROTOCOL_ERROR)
