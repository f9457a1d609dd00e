"""An engine with a link each way, whose events are handed to the steps of the hot path in one of their forms."""

from __future__ import annotations

from typing import Any

from links import engine
from tests.guard_engine import Output
from tests.wire.frames import (
    AMQP_HEADER,
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Flow,
    Open,
    Record,
    Source,
    Target,
    frame,
)

WINDOWS: dict[str, Any] = {
    "next_incoming_id": 0, "incoming_window": 99, "next_outgoing_id": 0, "outgoing_window": 99,
}  # fmt: skip
#: octets of a message that the links take
MOST = 1000


class Link:
    """As of :class:`links.link.Link`; what it is called with, and which link it is, goes to the engine's list."""

    takes = MOST

    def __init__(self, peer: Engine, pointer: Any) -> None:
        self._peer = peer
        self._pointer = pointer
        if not engine.link_is_receiver(pointer):
            self.takes = -1

    def complete(self, delivery: Any, *message: object) -> bool | None:
        self._peer.came.append(("complete", self._pointer, delivery, message))
        return self._peer.says[0]

    def on_delivery(self, delivery: Any) -> bool | None:
        self._peer.came.append(("on_delivery", self._pointer, delivery))
        return self._peer.says[1]

    def on_flow(self) -> None:
        self._peer.came.append(("on_flow", self._pointer))


class Engine:
    """A session with a link each way; the peer posts on handle 0 and takes on handle 1."""

    def __init__(self, form: Any) -> None:
        self._form = form
        self.events = engine.collector()
        self.transport, self.pointer = engine.new_connection(
            self.events, max_frame=4096, channel_max=7, idle_timeout_ms=0
        )
        self.output = Output(self.transport)
        self.posting: Any = None
        self.taking: Any = None
        #: what is done about the events of each link, by its pointer; and what came of them
        self.links: dict[Any, Link] = {}
        self.came: list[tuple[Any, ...]] = []
        #: what links say of messages and of other deliveries, and each drain at its end
        self.says: tuple[bool | None, bool | None] = None, None
        self.quiet: list[bool] = []
        self.hear(AMQP_HEADER)
        self.send(Open(container_id="test"))
        self.send(Begin(next_outgoing_id=0, incoming_window=99, outgoing_window=99))
        for handle, role in enumerate((SENDER, RECEIVER)):
            given: dict[str, Any] = {
                "name": f"link {handle}",
                "handle": handle,
                "role": role,
                "source": Source(address="a"),
            }
            first = 0 if role == SENDER else None
            self.send(Attach(**given, target=Target(address="a"), initial_delivery_count=first))
        self.send(Flow(**WINDOWS, handle=1, delivery_count=0, link_credit=10))
        self.came.clear()
        self.quiet.clear()

    def send(self, performative: Record, payload: bytes = b"") -> None:
        self.hear(frame(performative, payload=payload))

    def hear(self, octets: bytes) -> None:
        while octets:
            taken = engine.transport_push(self.transport, engine.buffer_of(octets), len(octets))
            assert taken > 0
            octets = octets[taken:]
            self.drain()
        self.output.write(1 << 16)

    def drain(self, pops: bool = False) -> None:
        found = self._form.drain(self.events, self.links, pops)
        while not isinstance(found, bool):
            self._handle(*found)
            found = self._form.drain(self.events, self.links, True)
        self.quiet.append(found)

    def _handle(self, event: Any, kind: int) -> None:
        assert engine.event_type(event) == kind != engine.TRANSPORT
        if kind == engine.CONNECTION_REMOTE_OPEN:
            engine.connection_open(self.pointer)
        elif kind == engine.SESSION_REMOTE_OPEN:
            engine.session_open(engine.event_session(event))
        elif kind == engine.LINK_REMOTE_OPEN:
            link = engine.event_link(event)
            engine.link_open(link)
            if engine.link_is_receiver(link):
                self.posting = link
                engine.link_flow(link, 50)
            else:
                self.taking = link
            self.links[link] = Link(self, link)
        elif kind in (engine.DELIVERY, engine.LINK_FLOW):
            self.came.append(("no link", kind))

    def written(self) -> list[Record]:
        """The performatives since the last time."""
        self.output.write(1 << 16)
        return [each.performative for each in self.output.read() if isinstance(each.performative, Record)]
