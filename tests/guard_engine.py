"""A connection of the engine behind the guard of its input, in the test's process: what the engine gets and reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from cproton_ffi import ffi

from coordinator.errors import Condition, Refusal
from links import engine, steps
from links.close_reason import CloseReason
from links.frames import SentFrames
from links.guard import FrameGuard
from tests.wire.frames import Attach, Begin, Detach, End, Frame, Transfer, parse

MOST_FRAME, HANDLE_MAX = 4096, 1023
_HEADER = 8
_CREDIT = 50
_ROOM = 1 << 16


@dataclass
class _Link:
    """As :class:`links.channels.Channels` asks for it."""

    pointer: engine.Pointer
    name: str
    refusals: list[object]
    open: bool = True

    def refuse(self, refusal: Refusal) -> None:
        self.refusals.append(("link", self.name, refusal.condition))
        self.open = False
        engine.link_close(self.pointer)


@dataclass
class _Session:
    """Of the service's, as the peer knows it from what it reads."""

    remote: int | None
    sent: int
    #: name and role by handle: where a name is attached again, two links have it
    handles: dict[int, tuple[str, bool]] = field(default_factory=dict)


class Output:
    """What is written: observed by ``frames``, and read by ``parse``, which knows nothing of it."""

    def __init__(self, transport: engine.Pointer) -> None:
        self._transport = transport
        self.frames = SentFrames(HANDLE_MAX)
        self._asked: dict[object, Callable[[], bytes]] = {}
        self._octets = b""
        self._left = _HEADER
        self.written: list[Frame] = []
        #: by the service's channel
        self.sessions: dict[int, _Session] = {}

    def add_frame(self, about: object, frame: Callable[[], bytes]) -> None:
        self._asked[about] = frame

    def write(self, room: int) -> None:
        """So many octets at once."""
        taken, rewrites = b"", self.frames.due
        while (size := engine.transport_pending(self._transport)) > 0:
            size = engine.transport_peek(self._transport, engine.write_buffer, min(size, room))
            if not rewrites:
                self.frames.observe(engine.write_view[:size])
            taken += bytes(engine.write_view[:size])
            engine.transport_pop(self._transport, size)
        self._octets += self.frames.rewrite_outgoing(taken) if rewrites else taken
        for flow in self._asked.values():
            octets = flow()
            if octets:
                self.written.append(parse(octets))
        self._asked.clear()

    def read(self) -> list[Frame]:
        """What was written since the last time, as the peer reads it."""
        at = self._left
        new: list[Frame] = []
        while at + _HEADER <= len(self._octets):
            size = int.from_bytes(self._octets[at : at + 4], "big")
            if at + size > len(self._octets):
                break
            new.append(parse(self._octets[at : at + size]))
            at += size
        self._left, self._octets = max(0, at - len(self._octets)), self._octets[at:]
        for found in new:
            self._note(found.channel, found.performative)
        self.written += new
        return new

    def _note(self, channel: int, found: Any) -> None:
        if isinstance(found, Begin):
            self.sessions[channel] = _Session(found.remote_channel, found.next_outgoing_id)
        elif isinstance(found, End):
            del self.sessions[channel]
        elif isinstance(found, Attach):
            self.sessions[channel].handles[found.handle] = found.name, found.role
        elif isinstance(found, Transfer):
            self.sessions[channel].sent += 1
        elif isinstance(found, Detach):
            del self.sessions[channel].handles[found.handle]


class Served:
    """A connection that answers all that the engine reports: begins, attaches, and credit with a message each."""

    peer = "test"
    opening = False

    def __init__(self, most_frame: int = MOST_FRAME) -> None:
        self._events = engine.collector()
        self.transport, self.pointer = engine.new_connection(
            self._events, max_frame=most_frame, channel_max=7, idle_timeout_ms=0
        )
        self.output: Any = Output(self.transport)
        self.endpoints: Any = self
        #: knows no transaction
        self.service: Any = SimpleNamespace(registry=SimpleNamespace(refuse_incomplete=lambda txn_id, owner: None))
        self.links: dict[engine.Pointer, _Link] = {}
        self.sessions: set[engine.Pointer] = set()
        self.closing = False
        self.failed = False
        #: octets that the engine got
        self.got = b""
        #: what was refused, in its order
        self.refused: list[object] = []
        served: Any = self
        self.guard = FrameGuard(served, most_frame, HANDLE_MAX)
        self._sent = 0

    # -- as the guard asks for it

    def force_close(self, reason: CloseReason, condition: Condition, description: str) -> None:
        assert description
        self.refused.append(("connection", condition))
        self.closing = True
        engine.connection_close(self.pointer)

    def end_session(self, session: engine.Pointer, refusal: Refusal) -> set[bytes]:
        assert session in self.sessions
        self.refused.append(("session", refusal.condition))
        engine.session_close(session)
        return set()

    # -- what the peer sends

    def hear(self, octets: Iterable[bytes], *, room: int = _ROOM) -> None:
        for read in octets:
            for pointer, size in self.guard.filter(read, engine.buffer_of(read)):
                self._push(pointer, size)
            if not self.failed:
                self.output.write(room)
                self.output.read()

    def _push(self, pointer: engine.Pointer, size: int) -> None:
        at = 0
        while at < size and not self.failed:
            taken = engine.transport_push(self.transport, pointer + at, size - at)
            self._handle()
            self.failed = taken <= 0
            at += max(0, taken)
        self.got += ffi.buffer(pointer, size)[:]
        self.failed = self.failed or engine.transport_capacity(self.transport) < 0

    def _handle(self) -> None:
        while event := engine.collector_peek(self._events):
            self._on_event(engine.event_type(event), event)
            engine.collector_pop(self._events)

    def _on_event(self, kind: int, event: engine.Pointer) -> None:
        if kind == engine.CONNECTION_REMOTE_OPEN:
            engine.connection_open(self.pointer)
        elif kind == engine.SESSION_REMOTE_OPEN:
            session = engine.event_session(event)
            self.guard.channels.begun(session)
            self.sessions.add(session)
            self.output.frames.due = True
            engine.session_open(session)
        elif kind == engine.SESSION_REMOTE_CLOSE:
            session = engine.event_session(event)
            self.sessions.remove(session)
            for pointer in [each for each in self.links if engine.link_session(each) == session]:
                del self.links[pointer]
            engine.session_close(session)
            engine.session_free(session)
        elif kind == engine.LINK_REMOTE_OPEN:
            self._attached(engine.event_link(event))
        elif kind in (engine.LINK_REMOTE_CLOSE, engine.LINK_REMOTE_DETACH):
            link = engine.event_link(event)
            del self.links[link]
            engine.link_close(link)
            engine.link_free(link)
        elif kind == engine.LINK_FLOW:
            self._send(engine.event_link(event))
        elif kind == engine.DELIVERY:
            self._receive(engine.event_delivery(event))

    def _attached(self, link: engine.Pointer) -> None:
        self.guard.channels.attached(link)
        self.links[link] = _Link(link, engine.link_name(link), self.refused)
        engine.link_open(link)
        if engine.link_is_receiver(link):
            engine.link_flow(link, _CREDIT)

    def _send(self, link: engine.Pointer) -> None:
        if engine.link_is_receiver(link) or link not in self.links or engine.link_credit(link) <= 0:
            return
        self._sent += 1
        steps.outgoing_delivery(link, b"%d" % self._sent)
        engine.link_send(link, bytes(1000), 1000)
        engine.link_advance(link)

    def _receive(self, delivery: engine.Pointer) -> None:
        link = engine.delivery_link(delivery)
        if not engine.link_is_receiver(link) or delivery != engine.link_current(link):
            return
        if engine.delivery_aborted(delivery) or not engine.delivery_partial(delivery):
            engine.link_advance(link)
            engine.delivery_settle(delivery)


class Heard(Served):
    """As it keeps what the engine reports of each delivery, by link and tag: each thing once that is said of it."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[tuple[str, bytes], list[object]] = {}

    def _on_event(self, kind: int, event: engine.Pointer) -> None:
        if kind == engine.DELIVERY:
            delivery = engine.event_delivery(event)
            link = engine.delivery_link(delivery)
            found = self.heard.setdefault((engine.link_name(link), engine.tag_of(delivery)), [])
            if not engine.delivery_partial(delivery) and (said := steps.said(delivery)) not in found[-1:]:
                found.append(said)
        super()._on_event(kind, event)

    def _receive(self, delivery: engine.Pointer) -> None:
        """It answers nothing, so that the peer may say more."""
        link = engine.delivery_link(delivery)
        if engine.link_is_receiver(link) and not engine.delivery_partial(delivery):
            engine.link_advance(link)
