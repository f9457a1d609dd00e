"""A blocking client over Proton's engine, for tests that must know to the message what was answered and what was not.

One thread, one socket, no reconnecting: when the connection is lost, :class:`Lost` says so and everything else is the
test's.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proton import (
    Collector,
    Connection,
    Described,
    Disposition,
    Endpoint,
    Link,
    Message,
    Receiver,
    Sender,
    Terminus,
    Transport,
    symbol,
    ulong,
)

#: Seconds for any answer: far above anything seen.
PATIENCE = 60.0

_DECLARED, _TRANSACTIONAL = 0x33, 0x34
_ACCEPTED = Described(ulong(0x24), [])


class Lost(Exception):
    """The connection is gone; what was asked and not answered is unknown."""


class Detached(Exception):
    """The service closed a link; the condition's name is the argument."""


@dataclass
class Taken:
    """A delivery that came in."""

    delivery: Any
    message: Message

    @property
    def body(self) -> Any:
        return self.message.body


@dataclass
class Answer:
    """What a discharge was answered."""

    accepted: bool
    condition: str = ""
    description: str = ""


@dataclass
class Inbox:
    receiver: Receiver
    waiting: deque[Taken] = field(default_factory=deque)
    parts: bytearray = field(default_factory=bytearray)


class Client:
    """A connection with one session; :class:`Lost` where it cannot be made."""

    def __init__(
        self,
        port: int,
        container: str,
        *,
        host: str = "127.0.0.1",
        patience: float = PATIENCE,
        idle_timeout_seconds: float = 0,
        producer_group: str | None = None,
    ) -> None:
        """``patience``: seconds in which ``host`` has to take the connection. ``producer_group``: the connection says
        it, and its transactions are checkable. (Proton sends no properties of a control link.)
        """
        try:
            self.socket = socket.create_connection((host, port), timeout=patience)
        except OSError as error:
            raise Lost(str(error)) from None
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._transport = Transport()
        if idle_timeout_seconds:
            self._transport.idle_timeout = idle_timeout_seconds
        self._collector = Collector()
        self._connection = Connection()
        self._connection.container = container
        if producer_group is not None:
            self._connection.properties = {symbol("coordinator:producer-group"): producer_group}
        self._connection.collect(self._collector)
        self._transport.bind(self._connection)
        self._connection.open()
        self._session = self._connection.session()
        self._session.open()
        self._inboxes: dict[str, Inbox] = {}
        self._control: Any = None
        self._tags = 0
        self._names = 0
        self.lost = False

    # -- input and output

    def _flush(self) -> None:
        while (pending := self._transport.pending()) > 0:
            try:
                sent = self.socket.send(self._transport.peek(pending) or b"")
            except BlockingIOError:
                return
            except OSError as error:
                self._gone(str(error))
            self._transport.pop(sent)

    @property
    def backlog(self) -> int:
        """Octets that are still to be written."""
        return int(self._transport.pending()) + int(self._session.outgoing_bytes)

    def writable(self, longest: float) -> bool:
        """Write what is pending; whether the peer took some of it."""
        before = self.backlog
        deadline = time.monotonic() + longest
        while self.backlog >= before and time.monotonic() < deadline:
            self.turn(0.05)
        return self.backlog < before

    def _gone(self, why: str) -> None:
        self.lost = True
        self.socket.close()
        raise Lost(why)

    def turn(self, longest: float = PATIENCE) -> None:
        """Write what is pending, wait for input for so long at most, and take it in."""
        if self.lost:
            raise Lost("the connection was lost before")
        now = time.monotonic()
        due = self._transport.tick(now)
        if self._transport.condition:
            self._gone(f"nothing came for too long: {self._transport.condition}")
        longest = min(longest, max(0.0, due - now)) if due else longest
        self._flush()
        writers = [self.socket] if self._transport.pending() > 0 else []
        readable, _, _ = select.select([self.socket], writers, [], longest)
        if readable:
            try:
                octets = self.socket.recv(1 << 16)
            except BlockingIOError:
                octets = b"?"
            except OSError as error:
                self._gone(str(error))
            if not octets:
                self._gone("closed by the service")
            if octets != b"?":
                self._push(octets)
        while (event := self._collector.peek()) is not None:
            link = event.link
            if event.type.name == "PN_DELIVERY" and isinstance(link, Receiver):
                self._take(link)
            self._collector.pop()
        if self._connection.state & Endpoint.REMOTE_CLOSED:
            condition = self._connection.remote_condition
            self._gone(f"closed by the service: {condition}")

    def _push(self, octets: bytes) -> None:
        while octets:
            room = self._transport.capacity()
            if room <= 0:
                self._gone(f"the transport is closed: {self._transport.condition}")
            self._transport.push(octets[:room])
            octets = octets[room:]

    def _take(self, link: Receiver) -> None:
        inbox = self._inboxes[link.name]
        while (delivery := link.current) is not None and delivery.readable:
            octets = link.recv(max(delivery.pending, 1))
            if octets:
                inbox.parts += octets
            if delivery.partial:
                return
            message = Message()
            message.decode(bytes(inbox.parts))
            inbox.parts.clear()
            link.advance()
            inbox.waiting.append(Taken(delivery, message))

    def until(self, done: Callable[[], object], *links: Link, patience: float = PATIENCE) -> None:
        """Turn until ``done()``. :class:`Detached` when one of ``links`` is closed meanwhile."""
        deadline = time.monotonic() + patience
        while not done():
            left = deadline - time.monotonic()
            assert left > 0, "no answer"
            for link in links:
                if link.state & Endpoint.REMOTE_CLOSED:
                    raise Detached(link.remote_condition.name if link.remote_condition else "")
            self.turn(left)

    # -- links

    def _name(self) -> str:
        self._names += 1
        return f"link-{self._names}"

    def sender(self, address: str) -> Sender:
        sender: Sender = self._session.sender(self._name())
        sender.target.address = address
        self._attached(sender)
        return sender

    def receiver(self, address: str, credit: int, *, browses: bool = False) -> Receiver:
        receiver: Receiver = self._session.receiver(self._name())
        receiver.source.address = address
        if browses:
            receiver.source.distribution_mode = Terminus.DIST_MODE_COPY
        self._inboxes[receiver.name] = Inbox(receiver)
        self._attached(receiver)
        if credit:
            receiver.flow(credit)
        return receiver

    def _attached(self, link: Any) -> None:
        link.open()
        self.until(lambda: link.state & Endpoint.REMOTE_ACTIVE, link)

    @property
    def control(self) -> Any:
        if self._control is None:
            control = self._session.sender(self._name())
            control.target.type = Terminus.COORDINATOR
            control.target.capabilities.put_object(symbol("amqp:local-transactions"))
            self._attached(control)
            self._control = control
        return self._control

    # -- posting

    def send(self, sender: Sender, octets: bytes, *, txn: bytes | None = None, settled: bool = False) -> Any:
        """Send once there is credit; the delivery. Its outcome may come later."""
        self.until(lambda: sender.credit > 0, sender)
        self._tags += 1
        delivery: Any = sender.delivery(str(self._tags))
        if txn is not None:
            delivery.local.data = [txn]
            delivery.update(_TRANSACTIONAL)
        sender.send(octets)
        sender.advance()
        if settled:
            delivery.settle()
        return delivery

    def post(self, sender: Sender, body: Any, *, txn: bytes | None = None, settled: bool = False, **fields: Any) -> Any:
        return self.send(sender, Message(body=body, **fields).encode(), txn=txn, settled=settled)

    def outcome(self, delivery: Any) -> int:
        """The outcome's code, once the service has settled it."""
        self.until(lambda: delivery.settled)
        state = int(delivery.remote_state)
        delivery.settle()
        return state

    # -- transactions

    def declare(self) -> bytes:
        control = self.control
        delivery = self.send(control, Message(body=Described(symbol("amqp:declare:list"), [None])).encode())
        self.until(lambda: delivery.remote_state, control)
        assert int(delivery.remote_state) == _DECLARED, delivery.remote_state
        txn_id = delivery.remote.data[0]
        delivery.settle()
        return bytes(txn_id)

    def ask_discharge(self, txn: bytes, *, fail: bool) -> Any:
        """Sent with the next turn; the answer is :meth:`answer_of`."""
        body = Described(symbol("amqp:discharge:list"), [txn, fail])
        return self.send(self.control, Message(body=body).encode())

    def answer_of(self, delivery: Any) -> Answer:
        self.until(lambda: delivery.remote_state, self.control)
        state = delivery.remote_state
        condition = delivery.remote.condition
        delivery.settle()
        if state == Disposition.ACCEPTED:
            return Answer(True)
        assert state == Disposition.REJECTED, state
        return Answer(False, condition.name if condition else "", (condition.description or "") if condition else "")

    def discharge(self, txn: bytes, *, fail: bool) -> Answer:
        return self.answer_of(self.ask_discharge(txn, fail=fail))

    # -- consuming

    def arrived(self, receiver: Receiver) -> deque[Taken]:
        """Deliveries that came and were not looked at yet."""
        return self._inboxes[receiver.name].waiting

    def receive(self, receiver: Receiver) -> Taken:
        waiting = self.arrived(receiver)
        self.until(lambda: waiting, receiver)
        return waiting.popleft()

    def retire(self, taken: Taken, txn: bytes, *, settle: bool = True) -> None:
        """Accepted in the transaction."""
        taken.delivery.local.data = [txn, _ACCEPTED]
        taken.delivery.update(_TRANSACTIONAL)
        if settle:
            taken.delivery.settle()

    def accept(self, taken: Taken) -> None:
        """Accepted and settled, outside transactions."""
        taken.delivery.update(Disposition.ACCEPTED)
        taken.delivery.settle()

    def drain(self, receiver: Receiver, credit: int) -> list[Taken]:
        """Everything there is, up to ``credit``: the service says when there is no more."""
        receiver.drain(credit)
        waiting = self.arrived(receiver)
        self.until(lambda: not receiver.credit and not receiver.queued, receiver)
        receiver.drained()
        taken = list(waiting)
        waiting.clear()
        return taken

    # -- the end

    def close(self) -> None:
        """Close in order, where the service still answers."""
        if self.lost:
            return
        self._connection.close()
        try:
            self.until(lambda: self._connection.state & Endpoint.REMOTE_CLOSED)
        except Lost:
            return
        finally:
            self.lost = True
            self.socket.close()

    def cut(self) -> None:
        """Cut the connection, without a close."""
        self.lost = True
        self.socket.close()
