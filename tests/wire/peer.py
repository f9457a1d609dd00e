"""A small AMQP 1.0 client over a blocking socket, for tests only: it sends what the test says, right or wrong.

Frames are sorted as they are read: transfers to the receiver that they are for, dispositions to the deliveries they
speak of, flows to their link; everything else waits in :attr:`Peer.heard`, in its order. :meth:`Peer.read` gives the
next frame unsorted, for tests that want the exact sequence. Whatever must happen is waited for up to :data:`PATIENCE`;
what must not happen is asked for by a question whose answer comes after it (a drain, an attach), never by waiting.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

from tests.wire import frames
from tests.wire.frames import (
    AMQP,
    AMQP_HEADER,
    RECEIVER,
    SASL,
    SASL_HEADER,
    SENDER,
    Attach,
    Begin,
    Close,
    Coordinator,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Frame,
    Open,
    Record,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
)
from tests.wire.links import Control, Link, Receiver, Sender

#: Seconds for what must happen: far above anything seen, so that a loaded machine fails nothing.
PATIENCE = float(os.environ.get("COORDINATOR_TEST_PATIENCE", "60"))

_WIDE_WINDOW = 1 << 30
_OUTCOMES = ("amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list")


_containers = count(1)


class Ended(AssertionError):
    """The service has closed the socket."""


class Octets(NamedTuple):
    """One piece of the conversation; ``sent``: by this side."""

    moment: float
    sent: bool
    octets: bytes


class Peer:
    """One connection, from ``host``. ``record``: every octet both ways, in order."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE, source_address=(host, 0))
        # what a test leaves is closed when it is collected, which may be while another runs
        weakref.finalize(self, self.socket.close)
        # what is sent in two pieces does not wait for an acknowledgement
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.record: list[Octets] = []
        self.heard: deque[Frame] = deque()
        self.sessions: dict[int, Session] = {}
        self.remote_open: Open | None = None
        self._octets = b""
        self._channels = 0
        self._together: list[bytes] | None = None

    def behind_tls(self, context: ssl.SSLContext) -> dict[str, Any]:
        """Begin TLS; the service's certificate."""
        behind = context.wrap_socket(self.socket, server_hostname="127.0.0.1")
        weakref.finalize(self, behind.close)
        self.socket = behind
        shown = behind.getpeercert()
        assert shown is not None
        return shown

    # -- octets

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """What is sent meanwhile is written as one piece."""
        self._together = []
        try:
            yield
        finally:
            together, self._together = self._together, None
            self.send_octets(b"".join(together))

    def send_octets(self, octets: bytes) -> None:
        if self._together is not None:
            self._together.append(octets)
            return
        self.record.append(Octets(time.time(), True, octets))
        self.socket.sendall(octets)

    def send(
        self, performative: Record | bytes | None, *, channel: int = 0, payload: bytes = b"", kind: int = AMQP
    ) -> None:
        self.send_octets(frames.frame(performative, channel=channel, payload=payload, kind=kind))

    def _more(self) -> None:
        try:
            octets = self.socket.recv(1 << 18)
        except TimeoutError:
            raise AssertionError(f"nothing came within {PATIENCE:g} s; heard and not asked for: {self.heard}") from None
        except ConnectionResetError:
            octets = b""
        if not octets:
            raise Ended(f"the service closed the socket; heard and not asked for: {self.heard}")
        self.record.append(Octets(time.time(), False, octets))
        self._octets += octets

    def _take(self, size: int) -> bytes:
        while len(self._octets) < size:
            self._more()
        taken, self._octets = self._octets[:size], self._octets[size:]
        return taken

    def read_header(self) -> bytes:
        """The service's protocol header: 8 octets."""
        return self._take(8)

    def read(self) -> Frame:
        """The next frame as it comes, empty ones too. Ended at the end of the stream."""
        size = int.from_bytes(self._take(4), "big")
        return frames.parse(size.to_bytes(4, "big") + self._take(size - 4))

    def rest(self) -> list[Frame]:
        """Everything up to the end of the stream, which must come."""
        found = list(self.heard)
        try:
            while True:
                found.append(self.read())
        except Ended:
            return found

    def closed(self) -> Error:
        """The error of the service's close, which must come, and then the end of the stream."""
        closes = [frame.performative for frame in self.rest() if isinstance(frame.performative, Close)]
        assert len(closes) == 1, closes
        assert closes[0].error is not None
        return closes[0].error

    def close_socket(self) -> None:
        self.socket.close()

    # -- frames, sorted

    def step(self) -> None:
        """Read one frame, and put it where it belongs."""
        frame = self.read()
        session = self.sessions.get(frame.channel)
        if frame.performative is not None and not (session and session.sort(frame)):
            self.heard.append(frame)

    def wait(self, kind: type[Record], **fields: Any) -> Any:
        """The first frame of ``kind`` whose fields are as given, taken out of those heard; what else comes stays."""
        while True:
            for frame in self.heard:
                found = frame.performative
                if isinstance(found, kind) and all(getattr(found, name) == fields[name] for name in fields):
                    self.heard.remove(frame)
                    return found
                if isinstance(found, Close) and kind is not Close:
                    raise AssertionError(f"the service closed the connection: {found.error}")
            self.step()

    # -- conversation

    def open(self, *, sasl: bool = False, container_id: str | None = None, **fields: Any) -> Open:
        """Headers and opens both ways; a container of its own, where no other is asked for."""
        if sasl:
            self.send_octets(SASL_HEADER)
            assert self.read_header() == SASL_HEADER
            mechanisms = self.read().performative
            assert isinstance(mechanisms, SaslMechanisms)
            assert "ANONYMOUS" in mechanisms.sasl_server_mechanisms
            self.send(SaslInit(mechanism="ANONYMOUS", initial_response=b""), kind=SASL)
            outcome = self.read().performative
            assert isinstance(outcome, SaslOutcome)
            assert outcome.code == 0
        self.send_octets(AMQP_HEADER)
        assert self.read_header() == AMQP_HEADER
        self.send(Open(container_id=container_id or f"tests-{next(_containers)}", **fields))
        self.remote_open = self.wait(Open)
        return self.remote_open

    def begin(self, **fields: Any) -> Session:
        channel = self._channels
        self._channels += 1
        given = {"next_outgoing_id": 0, "incoming_window": _WIDE_WINDOW, "outgoing_window": _WIDE_WINDOW, **fields}
        self.send(Begin(**given), channel=channel)
        while not any(isinstance(frame.performative, Begin) for frame in self.heard):
            self.step()
        frame = next(frame for frame in self.heard if isinstance(frame.performative, Begin))
        self.heard.remove(frame)
        assert frame.performative.remote_channel == channel
        session = Session(self, channel, frame.channel, Begin(**given), frame.performative)
        self.sessions[frame.channel] = session
        return session

    def close(self) -> Close:
        """Close in order, and see the service's own close."""
        self.send(Close())
        answer = self.wait(Close)
        assert isinstance(answer, Close)
        self.socket.close()
        return answer


class Session:
    """``remote``: the service's begin."""

    def __init__(self, peer: Peer, channel: int, remote_channel: int, ours: Begin, remote: Begin) -> None:
        self.peer = peer
        self.channel = channel
        self.remote_channel = remote_channel
        self.remote = remote
        self.incoming_window = ours.incoming_window
        self.next_outgoing_id = ours.next_outgoing_id
        self.next_incoming_id = remote.next_outgoing_id
        self.remote_window = remote.incoming_window
        #: of our deliveries and of the service's, by delivery id
        self.answers: dict[int, deque[Disposition]] = defaultdict(deque)
        self.settlements: dict[int, deque[Disposition]] = defaultdict(deque)
        self.links: dict[int, Link] = {}
        self.flows: deque[Flow] = deque()
        self._handles = 0
        self._deliveries = 0

    def send(self, performative: Record, *, payload: bytes = b"") -> None:
        self.peer.send(performative, channel=self.channel, payload=payload)

    def sort(self, frame: Frame) -> bool:
        """Whether the frame has found its place."""
        found = frame.performative
        if isinstance(found, Disposition):
            ours = found.role is RECEIVER
            for number in range(found.first, (found.first if found.last is None else found.last) + 1):
                (self.answers if ours else self.settlements)[number].append(found)
            return True
        if isinstance(found, Flow):
            assert found.next_incoming_id is not None
            self.remote_window = found.next_incoming_id + found.incoming_window - self.next_outgoing_id
            if found.handle is None:
                self.flows.append(found)
            else:
                self.links[found.handle].on_flow(found)
            return True
        if isinstance(found, Transfer):
            self.next_incoming_id += 1
            link = self.links[found.handle]
            assert isinstance(link, Receiver)
            link.on_transfer(found, frame.payload)
            return True
        if isinstance(found, Detach) and found.handle in self.links:
            self.links.pop(found.handle).detached = found  # the handle may be another link's from now on
            return True
        return False

    def flow(self, **fields: Any) -> None:
        """A flow of the session's true state, with ``fields`` added or in place of it."""
        given: dict[str, Any] = {
            "next_incoming_id": self.next_incoming_id,
            "incoming_window": self.incoming_window,
            "next_outgoing_id": self.next_outgoing_id,
            "outgoing_window": _WIDE_WINDOW,
        }
        self.send(Flow(**{**given, **fields}))

    def sync(self) -> None:
        """Ask a question and wait for its answer: everything that the service sent before has been read then.

        Not a flow with ``echo`` (section 2.7.4), which is answered behind whatever else there is, but a link that comes
        and goes.
        """
        self.control().detach()

    def end(self) -> End:
        self.send(End())
        answer = self.peer.wait(End)
        del self.peer.sessions[self.remote_channel]
        assert isinstance(answer, End)
        return answer

    # -- links

    def attach(self, role: bool, *, name: str | None = None, **fields: Any) -> Attach:
        """Send an attach as it is given, and have the answer."""
        handle = self._handles
        self._handles = 0 if handle == self.remote.handle_max else handle + 1
        name = name or f"{'receiver' if role is RECEIVER else 'sender'}-{self.channel}-{handle}"
        self.send(Attach(name=name, handle=handle, role=role, **fields))
        answer = self.peer.wait(Attach, name=name)
        assert isinstance(answer, Attach)
        assert answer.role is not role
        return answer

    def sender(self, target: str | Target | Coordinator | None, **fields: Any) -> Sender:
        """A link to post on; attached, and with its first credit."""
        handle = self._handles
        source = fields.pop("source", Source(outcomes=_OUTCOMES))
        if isinstance(target, str):
            target = Target(address=target)
        answer = self.attach(
            SENDER, source=source, target=target, **{"initial_delivery_count": 0, "snd_settle_mode": 2, **fields}
        )
        link = Sender(self, handle, answer)
        if link.accepted:
            link.wait_for_credit()
        return link

    def control(self, **fields: Any) -> Control:
        """The link to the coordinator (part 4, section 4.1)."""
        handle = self._handles
        answer = self.attach(
            SENDER,
            **{
                "source": Source(outcomes=_OUTCOMES),
                "target": Coordinator(),
                "initial_delivery_count": 0,
                "snd_settle_mode": 0,
                **fields,
            },
        )
        link = Control(self, handle, answer)
        if link.accepted:
            link.wait_for_credit()
        return link

    def receiver(self, source: str | Source, *, credit: int = 0, **fields: Any) -> Receiver:
        """A link to consume from; attached, with ``credit`` granted."""
        handle = self._handles
        if isinstance(source, str):
            source = Source(address=source, outcomes=_OUTCOMES)
        answer = self.attach(
            RECEIVER, source=source, **{"target": Target(), "snd_settle_mode": 2, "rcv_settle_mode": 0, **fields}
        )
        link = Receiver(self, handle, answer)
        if credit:
            link.credit(credit)
        return link

    def next_delivery_id(self) -> int:
        self._deliveries += 1
        return self._deliveries - 1
