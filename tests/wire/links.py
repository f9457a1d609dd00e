"""The links of a session: posting, control and receiving, each as the test tells it."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TYPE_CHECKING, Any

from tests.wire.frames import (
    RECEIVER,
    Accepted,
    Attach,
    Declare,
    Declared,
    Detach,
    Discharge,
    Disposition,
    Flow,
    Record,
    State,
    TransactionalState,
    Transfer,
)
from tests.wire.messages import VALUE, Message, section

if TYPE_CHECKING:
    from tests.wire.peer import Session


class Link:
    """``answer``: the service's attach. ``detached``: its detach, when it came."""

    def __init__(self, session: Session, handle: int, answer: Attach) -> None:
        self.session = session
        self.handle = handle
        self.answer = answer
        self.detached: Detach | None = None
        session.links[answer.handle] = self

    def on_flow(self, flow: Flow) -> None:
        raise NotImplementedError

    def wait_detached(self) -> Detach:
        """The service's detach, which must come; it is answered."""
        while self.detached is None:
            self.session.peer.step()
        self.session.send(Detach(handle=self.handle, closed=True))
        return self.detached

    def detach(self, *, closed: bool = True) -> Detach:
        self.session.send(Detach(handle=self.handle, closed=closed))
        while self.detached is None:
            self.session.peer.step()
        return self.detached

    @property
    def error(self) -> str:
        """The condition of the detach, which must come."""
        found = self.wait_detached().error
        return "" if found is None else str(found.condition)


class Sender(Link):
    def __init__(self, session: Session, handle: int, answer: Attach) -> None:
        super().__init__(session, handle, answer)
        self.delivery_count = 0
        self.link_credit = 0
        self._tags = 0

    @property
    def accepted(self) -> bool:
        """Whether the attach was granted: its answer has a target (section 2.6.3)."""
        return self.answer.target is not None

    def on_flow(self, flow: Flow) -> None:
        assert flow.link_credit is not None
        self.link_credit = (flow.delivery_count or 0) + flow.link_credit - self.delivery_count

    def wait_for_credit(self) -> None:
        while self.link_credit <= 0 and self.detached is None:
            self.session.peer.step()

    def transfer(self, payload: bytes, **fields: Any) -> None:
        """One transfer frame as it is given."""
        session = self.session
        while session.remote_window <= 0:
            session.peer.step()
        session.next_outgoing_id += 1
        session.remote_window -= 1
        session.send(Transfer(handle=self.handle, **fields), payload=payload)

    def post(
        self,
        message: bytes,
        *,
        txn: bytes | None = None,
        settled: bool = False,
        frame_size: int | None = None,
        **fields: Any,
    ) -> int:
        """Post a message, in ``txn`` or in no transaction, ``frame_size`` octets of it a frame; its delivery id."""
        self.wait_for_credit()
        number = self.session.next_delivery_id()
        self._tags += 1
        self.delivery_count += 1
        self.link_credit -= 1
        given: dict[str, Any] = {
            "delivery_id": number,
            "delivery_tag": b"%d" % self._tags,
            "message_format": 0,
            "settled": settled,
            "state": None if txn is None else TransactionalState(txn_id=txn),
            **fields,
        }
        assert self.session.peer.remote_open is not None
        size = frame_size or max(128, (self.session.peer.remote_open.max_frame_size or 1 << 16) - 512)
        pieces = [message[at : at + size] for at in range(0, len(message), size)] or [b""]
        for piece in pieces[:-1]:
            self.transfer(piece, **given, more=True)
            given = {"delivery_id": number}
        self.transfer(pieces[-1], **given)
        return number

    def begin_in(self, txn: bytes, *, settled: bool | None = None) -> int:
        """The first frame of a post in the transaction, with more to come; its delivery id."""
        number = self.session.next_delivery_id()
        given = {"delivery_tag": b"part", "message_format": 0, "state": TransactionalState(txn_id=txn)}
        self.transfer(b"\x00\x53\x75", delivery_id=number, settled=settled, more=True, **given)
        return number

    def answer_to(self, number: int) -> Disposition:
        """The next disposition for a delivery of ours."""
        answers = self.session.answers[number]
        while not answers:
            if self.detached is not None:
                raise AssertionError(f"the link was detached: {self.detached.error}")
            self.session.peer.step()
        return answers.popleft()

    def outcome(self, message: bytes, **fields: Any) -> Any:
        """Post unsettled; the state that the service answers with, settled."""
        answer = self.answer_to(self.post(message, **fields))
        assert answer.settled is True, answer
        return answer.state


class Control(Sender):
    def request(self, body: Record | bytes, **fields: Any) -> int:
        """Send a body in an amqp-value (bytes: a whole message); its delivery id."""
        message = body if isinstance(body, bytes) else section(VALUE, body.described())
        return self.post(message, **fields)

    def declare(self) -> bytes:
        """A new transaction's txn-id."""
        state = self.reply(Declare())
        assert isinstance(state, Declared), state
        return bytes(state.txn_id)

    def reply(self, body: Record | bytes) -> Any:
        """The state that the service settles a request with."""
        answer = self.answer_to(self.request(body))
        assert answer.settled is True, answer
        return answer.state

    def discharge(self, txn: bytes, *, fail: bool | None = False) -> Any:
        """The outcome of the discharge."""
        return self.reply(Discharge(txn_id=txn, fail=fail))

    def commit(self, txn: bytes) -> None:
        assert self.discharge(txn) == Accepted()

    def roll_back(self, txn: bytes) -> None:
        assert self.discharge(txn, fail=True) == Accepted()


@dataclasses.dataclass
class Delivery:
    """What came on a receiver; ``frames``: the transfers it came in, ``octets``: their payloads together."""

    receiver: Receiver
    first: Transfer
    frames: list[Transfer] = dataclasses.field(default_factory=list)
    octets: bytes = b""
    pieces: list[bytes] = dataclasses.field(default_factory=list)

    @property
    def id(self) -> int:
        assert self.first.delivery_id is not None
        return self.first.delivery_id

    @property
    def tag(self) -> bytes:
        assert self.first.delivery_tag is not None
        return self.first.delivery_tag

    @property
    def settled(self) -> bool:
        return any(bool(each.settled) for each in self.frames)

    @property
    def message(self) -> Message:
        return Message(self.octets)

    @property
    def body(self) -> Any:
        return self.message.body

    @property
    def count(self) -> int:
        """The delivery-count of the header."""
        return self.message.header.delivery_count or 0

    def disposition(self, state: State | None, *, settled: bool = True, last: Delivery | None = None) -> None:
        self.receiver.session.send(
            Disposition(
                role=RECEIVER, first=self.id, last=None if last is None else last.id, settled=settled, state=state
            )
        )

    def retire(self, txn: bytes, outcome: State | None = None, *, settled: bool = True) -> None:
        """In the transaction ``txn`` (part 4, section 4.4.2)."""
        self.disposition(TransactionalState(txn_id=txn, outcome=outcome or Accepted()), settled=settled)

    def settlement(self) -> Disposition:
        """The service's next disposition for it, which must come."""
        found = self.receiver.session.settlements[self.id]
        while not found:
            self.receiver.session.peer.step()
        return found.popleft()


class Receiver(Link):
    def __init__(self, session: Session, handle: int, answer: Attach) -> None:
        super().__init__(session, handle, answer)
        self.delivery_count = answer.initial_delivery_count or 0
        self.link_credit = 0
        self.arrived: deque[Delivery] = deque()
        self.flows: deque[Flow] = deque()
        self._coming: Delivery | None = None

    def on_flow(self, flow: Flow) -> None:
        self.flows.append(flow)
        assert flow.delivery_count is not None
        moved = flow.delivery_count - self.delivery_count
        if flow.drain and moved > 0:  # credit that the drain has used up (section 2.6.7)
            self.delivery_count += moved
            self.link_credit -= moved

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        coming = self._coming
        if coming is None:
            assert transfer.delivery_id is not None, transfer
            assert transfer.delivery_tag is not None, transfer
            assert self.link_credit > 0, "a delivery that there was no credit for"
            coming = self._coming = Delivery(self, transfer)
        coming.frames.append(transfer)
        coming.pieces.append(payload)
        if not transfer.more:
            coming.octets = b"".join(coming.pieces)
            self._coming = None
            self.delivery_count += 1
            self.link_credit -= 1
            if not transfer.aborted:
                self.arrived.append(coming)

    def credit(self, more: int, **fields: Any) -> None:
        """Give ``more`` credit than there is (section 2.6.7)."""
        self.link_credit += more
        self.session.flow(
            handle=self.handle, delivery_count=self.delivery_count, link_credit=self.link_credit, **fields
        )

    def take(self) -> Delivery:
        """The next delivery, which must come; gives credit if the link has none."""
        if not self.arrived and self.link_credit <= 0:
            self.credit(1)
        while not self.arrived:
            if self.detached is not None:
                raise AssertionError(f"the link was detached: {self.detached.error}")
            self.session.peer.step()
        return self.arrived.popleft()

    def take_many(self, count: int) -> list[Delivery]:
        missing = count - len(self.arrived) - self.link_credit
        if missing > 0:
            self.credit(missing)
        return [self.take() for _ in range(count)]

    def drain(self, most: int = 1000) -> list[Delivery]:
        """All that there is to have now, and no more: with ``drain`` the service says when that is (section 2.6.7)."""
        self.credit(max(0, most - self.link_credit), drain=True)
        while self.link_credit > 0:
            self.session.peer.step()
        found = list(self.arrived)
        self.arrived.clear()
        self.session.flow(handle=self.handle, delivery_count=self.delivery_count, link_credit=0, drain=False)
        return found

    def bodies(self) -> list[Any]:
        """Take and accept everything that there is; the bodies."""
        found = self.drain()
        for delivery in found:
            delivery.disposition(Accepted())
        return [delivery.body for delivery in found]
