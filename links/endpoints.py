"""Endpoints are the sessions and links of one connection; either side begins and ends, attaches and detaches them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog

from coordinator.address.permissions import unauthorized
from coordinator.codec.selectors import TurnShare
from coordinator.errors import Condition, Refusal
from coordinator.retirement import Departure
from links import engine, outgoing
from links.close_reason import CloseReason
from links.consuming import Consuming
from links.control_link import ControlLink
from links.incoming import Incoming
from links.link import CHECKER, NONE, RECEIVER, SENDER, Attaching, Identity, Link, Refused, refuse_attach
from links.outgoing import Delivering
from links.posting import attach_target
from links.source import attach_source
from store.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.address.nodes import Address
    from links.connection import Connection
    from store.loop import Loop


log = structlog.get_logger(__name__)

#: octets of one read from a peer that has not sent its header yet, or has just attached links: an attach costs far more
#: than a message of the same size
LITTLE_ROOM = 4096

#: octets of the answer to a refused attach, without the link's name
MOST_FRAME_BESIDES_NAME = 100

#: how many refused links of a connection may have an incomplete delivery: the engine keeps a buffer for each
MOST_INCOMPLETE = 64


class Endpoints:
    """The sessions and links of one connection, by their pointers in the engine; refuses links without a right."""

    __slots__ = ("_carried", "_left", "connection", "dynamic", "links", "sessions")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.links: dict[engine.Pointer, Link] = {}
        #: the links of each session
        self.sessions: dict[engine.Pointer, dict[engine.Pointer, Link]] = {}
        #: dynamic addresses, which last as long as the connection at most, by the link that created them; by its
        #: identity once the link is detached and not closed (part 3, section 3.5.10)
        self.dynamic: dict[engine.Pointer | Identity, Address] = {}
        #: links of open sessions that both sides have detached or closed, with undecided deliveries; the oldest first
        self._left: dict[engine.Pointer, Refused] = {}
        #: how many messages former links have brought, and taken
        self._carried = (0, 0)

    @property
    def carried(self) -> tuple[int, int]:
        """How many messages all links of the connection have brought, and taken."""
        found = self._carried
        for link in self.links.values():
            found = _with(found, link)
        return found

    @property
    def busy(self) -> bool:
        """Whether posts or discharges of the connection are not answered yet."""
        links = list(self.links.values())
        return any(isinstance(link, Incoming) and link.busy for link in links)

    def on_event(self, kind: int, pointer: engine.Pointer) -> None:
        """Handle the begin, end, attach or detach of a peer. ``pointer``: of the session or link."""
        if kind == engine.SESSION_REMOTE_OPEN:
            self._on_begin(pointer)
        elif kind == engine.SESSION_REMOTE_CLOSE:
            self._on_end(pointer)
        elif kind == engine.LINK_REMOTE_OPEN:
            self._on_attach(pointer)
        else:
            self._on_detach(pointer, closed=kind == engine.LINK_REMOTE_CLOSE)

    def _on_begin(self, session: engine.Pointer) -> None:
        # the begin would answer a session of the service, which begins none
        if not engine.session_state(session) & engine.LOCAL_UNINIT:
            text = "a begin with a remote-channel, though the service has begun no session"
            self.connection.force_close(CloseReason.PROTOCOL_ERROR, Condition.NOT_ALLOWED, text)
            return
        self.sessions[session] = {}
        self.connection.output.frames.due = True
        engine.session_open(session)

    def _on_attach(self, pointer: engine.Pointer) -> None:
        self.connection.read_room = LITTLE_ROOM
        if not engine.link_is_named(pointer):
            text = "an attach without a name (part 2, section 2.7.3)"
            self.connection.force_close(CloseReason.PROTOCOL_ERROR, Condition.DECODE_ERROR, text)
            return
        most = engine.transport_remote_max_frame(self.connection.transport)
        if len(engine.link_name(pointer).encode()) > most - MOST_FRAME_BESIDES_NAME > 0:
            text = f"a link's name is too long to be answered in a frame of {most} bytes"
            self.connection.force_close(CloseReason.LIMIT_EXCEEDED, Condition.FRAME_SIZE_TOO_SMALL, text)
            return
        refused = self.connection.refusal_of(pointer)
        try:
            if not self._within_handles(pointer):
                return
            if refused is not None:
                raise refused
            self.connection.parked.take_attach()
            if not engine.link_is_receiver(pointer):
                if outgoing.has_filters(engine.link_remote_source(pointer)):
                    self.connection.reactor.attaches.take(self.connection, pointer)
                else:
                    attach_source(self.connection, pointer)
            elif engine.terminus_get_type(engine.link_remote_target(pointer)) == engine.COORDINATOR:
                self.attached(ControlLink(self.connection, pointer))
            else:
                attach_target(self.connection, pointer)
        except Refusal as refusal:
            refuse_attach(self.connection, pointer, refusal)

    def attach_source(self, pointer: engine.Pointer) -> None:
        """Answer an attach with filters that has waited for its turn."""
        self._drop(pointer)
        try:
            attach_source(self.connection, pointer)
        except Refusal as refusal:
            refuse_attach(self.connection, pointer, refusal)

    def _within_handles(self, pointer: engine.Pointer) -> bool:
        """Whether the link may be attached: sessions have at most as many links as handles; connections have a bound,
        too.
        """
        bounds = self.connection.service.bounds
        most, most_of_all = bounds.handle_max + 1, bounds.links_per_connection
        links = len(self.sessions[engine.link_session(pointer)])
        if links >= 2 * most or len(self.links) >= 2 * most_of_all:
            text = "too many refused links were not detached"
            self.connection.force_close(CloseReason.LIMIT_EXCEEDED, Condition.RESOURCE_LIMIT_EXCEEDED, text)
            return False
        if len(self.links) >= most_of_all:
            raise Refusal(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                f"a connection has at most {most_of_all} links: detach some first, or open another connection",
            )
        if links >= most:
            text = f"a session has at most {most} links: detach some first, or begin another session"
            raise Refusal(Condition.RESOURCE_LIMIT_EXCEEDED, text)
        return True

    def attached(self, link: Link) -> None:
        self._steal(link)
        before = self.links.get(link.pointer)
        if before is not None:
            link.right = before.right
        self.links[link.pointer] = link
        self.sessions[link.session][link.pointer] = link
        self.connection.reactor.links[link.pointer] = link
        self.connection.mark()
        most = engine.transport_remote_max_frame(self.connection.transport)
        if 0 < most < engine.answer_size(link.pointer):
            for terminus in (engine.link_source(link.pointer), engine.link_target(link.pointer)):
                engine.terminus_set_type(terminus, engine.UNSPECIFIED)
            text = f"the attach cannot be answered in a frame of {most} bytes"
            link.refuse(Refusal(Condition.FRAME_SIZE_TOO_SMALL, text))

    def _steal(self, link: Link) -> None:
        """End an earlier link with the identity of this one, which its client has attached again (P13)."""
        named = self.connection.reactor.named
        before = named.get(link.identity)
        if before is not None and (before.connection is not self.connection or before.pointer != link.pointer):
            before.refuse(Refusal(Condition.STOLEN, f"the link was attached again, from {self.connection.peer}"))
        named[link.identity] = link
        if self.connection.container and not isinstance(link, Attaching):
            self.connection.service.stealing.attached(link.identity, link)

    def _on_detach(self, pointer: engine.Pointer, *, closed: bool) -> None:
        leaving = self.links.get(pointer)
        if isinstance(leaving, Incoming) and leaving.busy:
            leaving.when_answered(partial(self._on_detach, pointer, closed=closed))
            return
        link = self._drop(pointer)
        if link is not None:
            link.departure = Departure.LEFT
            link.lost()
            if isinstance(link, Incoming) and link.ending is not None:  # its peer detached it before it was sent
                engine.set_condition(engine.link_condition(pointer), link.ending.condition, link.ending.description)
            if closed and isinstance(link, Consuming) and link.subscription:
                try:
                    link.end_subscription()
                except Refusal as refusal:
                    engine.set_condition(engine.link_condition(pointer), refusal.condition, refusal.description)
        # A detach is answered with a detach: a close would oblige the peer to attach again and close (part 2, section
        # 2.6.6). A control link is closed: it cannot be resumed (T3).
        if closed or isinstance(link, ControlLink):
            engine.link_close(pointer)
        else:
            engine.link_detach(pointer)
        if link is not None and link.undecided:
            self._leave(link)
        else:
            engine.link_free(pointer)
        if link is not None and not isinstance(link, Refused) and (closed or pointer in self.dynamic):
            self._forget_dynamic(link.identity)  # a dynamic address that an earlier link of this name has left
            if not closed:
                self.dynamic[link.identity] = self.dynamic.pop(pointer)
        self._forget_dynamic(pointer)
        self.connection.mark()

    def _leave(self, link: Link) -> None:
        """Keep a detached link in the engine, which reports the states of its undecided deliveries (T26). The
        application works on the first of these; they, and those of earlier links, may take a fair share of memory, the
        first alone more.
        """
        connection, kept, octets = self.connection, dict(link.undecided), 0
        most = connection.service.memory.fair_share
        for number, delivery in enumerate(link.undecided):
            octets += connection.output.octets_of(delivery)
            if number and octets > most:
                del kept[delivery]
                engine.delivery_settle(delivery)  # like the engine does with all deliveries of a freed link
        left = Refused(connection, link.pointer, kept)
        self._left[left.pointer] = connection.reactor.links[left.pointer] = left
        while len(self._left) > 1 and sum(map(self._octets_of, self._left.values())) > most:
            oldest = next(iter(self._left))
            self._forget_left(oldest)
            engine.link_free(oldest)

    def _octets_of(self, left: Refused) -> int:
        return sum(map(self.connection.output.octets_of, left.undecided))

    def _forget_left(self, pointer: engine.Pointer) -> None:
        del self._left[pointer]
        del self.connection.reactor.links[pointer]

    def detach(self, link: Link) -> None:
        """Close a link whose condition is set already."""
        if self._drop(link.pointer) is not None:
            link.lost()
        engine.link_close(link.pointer)
        self.refused(link.pointer, link.undecided)

    def refused(self, pointer: engine.Pointer, undecided: Mapping[engine.Pointer, bytes] = NONE) -> None:
        """Keep a link that the service has closed: its handle is in use until the peer has closed it, too."""
        link = Refused(self.connection, pointer, undecided)
        self.links[pointer] = self.connection.reactor.links[pointer] = self.sessions[link.session][pointer] = link
        self.connection.mark()
        if self.connection.incomplete > MOST_INCOMPLETE and not self.connection.closing:
            text = f"more than {MOST_INCOMPLETE} refused links have deliveries that are not complete"
            self.connection.force_close(CloseReason.LIMIT_EXCEEDED, Condition.RESOURCE_LIMIT_EXCEEDED, text)

    def check_rights(self) -> None:
        """Refuse the links that need a right which the user no longer has (S3)."""
        for link in list(self.links.values()):
            if link.open and link.right is not None and not self.connection.may(*link.right):
                link.refuse(unauthorized(*link.right))

    def made(self, name: str) -> bool:
        """Whether this connection has created a dynamic address of that name."""
        return any(address.name == name for address in self.dynamic.values())

    def refuse_attach(self, attaching: Attaching, refusal: Refusal) -> None:
        self._drop(attaching.pointer)
        refuse_attach(self.connection, attaching.pointer, refusal)

    def _drop(self, pointer: engine.Pointer) -> Link | None:
        self.connection.reactor.links.pop(pointer, None)
        link = self.links.pop(pointer, None)
        if link is not None:
            link.open = False
            self._carried = _with(self._carried, link)
            self.sessions[link.session].pop(pointer)
            if self.connection.reactor.named.get(link.identity) is link:
                del self.connection.reactor.named[link.identity]
            # also if another link has the name by now, as this one was refused
            self.connection.service.stealing.lost(link.identity, link)
        return link

    def _on_end(self, session: engine.Pointer) -> None:
        for link in self.sessions[session].values():
            link.departure = Departure.LEFT
        self._let_go(session)
        for pointer in [pointer for pointer, left in self._left.items() if left.session == session]:
            self._forget_left(pointer)
        del self.sessions[session]
        engine.session_close(session)
        engine.session_free(session)
        self.connection.mark()

    def end(self, session: engine.Pointer, refusal: Refusal) -> set[bytes]:
        """End a session with a refusal; the engine keeps it, and its links, until the peer has ended it too.

        Return the transactions of the deliveries that its links left undecided (:attr:`links.link.Link.undecided`).
        """
        self.connection.erred(refusal.condition, refusal.description)
        log.info(
            "session ended",
            peer=self.connection.peer,
            user=self.connection.user,
            condition=refusal.condition.value,
            description=refusal.description,
        )
        links = list(self.sessions[session].values())
        for link in links:
            link.departure = Departure.ENDED
            link.cut_off()
        self._let_go(session)
        engine.set_condition(engine.session_condition(session), refusal.condition, refusal.description)
        engine.session_close(session)
        for link in links:  # they count until the peer's end
            if not self.connection.closing:
                self.refused(link.pointer, link.undecided)
        self.connection.mark()
        links += [left for left in self._left.values() if left.session == session]
        return {taken for link in links for taken in link.undecided.values()}

    def _let_go(self, session: engine.Pointer) -> None:
        for link in list(self.sessions[session].values()):
            self._drop(link.pointer)
            link.lost()
            self._forget_dynamic(link.pointer)

    def _forget_dynamic(self, made_by: engine.Pointer | Identity) -> None:
        address = self.dynamic.pop(made_by, None)
        if address is not None:
            self.connection.service.directory.remove_dynamic(address, self.connection)

    def depart(self, departure: Departure) -> None:
        """Set how all current links end."""
        for link in self.links.values():
            link.departure = departure

    def lost(self) -> None:
        """Release all links: consumers first, so that their deliveries return to the queue in order."""
        for pointer in list(self._left):
            self._forget_left(pointer)
        links = list(self.links.values())
        for link in links:
            self._drop(link.pointer)
        links.sort(key=lambda link: not isinstance(link, Delivering))
        for link in links:
            try:
                link.lost()
            except Exception:  # the other links are still released
                log.exception("internal error", what=type(link).__name__, peer=self.connection.peer)
        for address in self.dynamic.values():
            self.connection.service.directory.remove_dynamic(address, self.connection)
        self.dynamic.clear()


def _with(carried: tuple[int, int], link: Link) -> tuple[int, int]:
    if link.role == SENDER:
        return carried[0] + link.carried, carried[1]
    if link.role in (RECEIVER, CHECKER):
        return carried[0], carried[1] + link.carried
    return carried


# Attaches with filters are answered a few in each turn of the reactor, as compiling a selector takes milliseconds.
#
# The others wait for later turns. Connections have turns, so that one with thousands of attaches blocks no other.


class InTurn(Attaching):
    """An attach that waits for its turn."""

    __slots__ = ()

    def refuse(self, refusal: Refusal) -> None:
        if self.open:
            self.lost()
            super().refuse(refusal)

    def lost(self) -> None:
        self.connection.reactor.attaches.waiting.remove(self.connection, self)


class Attaches:
    """Queues the attaches with filters, by connection."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._share = TurnShare()
        self._counting = False
        self.waiting: Turns[InTurn] = Turns()

    def take(self, connection: Connection, pointer: engine.Pointer) -> None:
        """Answer the attach now if this turn has time left; otherwise let it wait."""
        if not self._counting:
            self._counting = True
            self._share.renew()
            self._loop.call_later(0, self._next_turn)
        if not self.waiting.count and not self._share.used_up:
            connection.endpoints.attach_source(pointer)
            return
        waiting = InTurn(connection, pointer)
        self.waiting.add(connection, waiting)
        connection.endpoints.attached(waiting)

    def _next_turn(self) -> None:
        self._share.renew()
        while self.waiting.count and not self._share.used_up:
            link = self.waiting.take()
            try:
                link.connection.endpoints.attach_source(link.pointer)
            except Exception:  # noqa: BLE001 - a defect costs this connection only
                self._loop.contain(link)
            self.waiting.charge(link.connection, 1.0)
        self._counting = self.waiting.count > 0
        if self._counting:
            self._loop.call_later(0, self._next_turn)
