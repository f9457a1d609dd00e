"""Answers to posts whose transaction is being decided go out with that of its discharge, all others at once (T21)."""

from __future__ import annotations

import pytest

from tests.fix_compiled import BOTH_RULES
from tests.fix_service import Service
from tests.fix_wire import Begin
from tests.held_store import nothing_is_decided
from tests.wire.checkable import in_group
from tests.wire.frames import Accepted, Discharge, TransactionalState
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import condition

pytestmark = [pytest.mark.rule("T21"), *BOTH_RULES]


class Client:
    """With two transactions, and a link on which it has posted before."""

    def __init__(self, session: Session, address: str) -> None:
        self.session, self.peer = session, session.peer
        self.address = address
        self.control, self.sender = session.control(), session.sender(address)
        assert self.sender.outcome(data(b"before")) == Accepted()
        self.txn, self.other = self.control.declare(), self.control.declare()

    def post(self, txn: bytes) -> int:
        return self.sender.post(data(b"x"), txn=txn)

    def discharge(self, txn: bytes) -> int:
        return self.control.request(Discharge(txn_id=txn, fail=False))

    def sees(self, post: int, txn: bytes) -> None:
        """Its answer, which must come."""
        answer = self.sender.answer_to(post)
        assert (answer.state, answer.settled) == (TransactionalState(txn_id=txn, outcome=Accepted()), True)

    def sees_discharged(self, discharge: int) -> None:
        assert self.control.answer_to(discharge).state == Accepted()

    def sees_nothing(self) -> None:
        """Nothing has come."""
        self.peer.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            self.peer.socket.recv(1)
        self.peer.socket.setblocking(True)


@pytest.fixture
def client(begin: Begin, address: str) -> Client:
    return Client(begin(), address)


@pytest.mark.parametrize("posts", [1, 3])
def test_with_the_discharge_behind_it(service: Service, client: Client, posts: int) -> None:
    with nothing_is_decided(service) as waits:
        with client.peer.at_once():
            posted = [client.post(client.txn) for _ in range(posts)]
            discharged = client.discharge(client.txn)
        waits()
        client.sees_nothing()
    for post in posted:
        client.sees(post, client.txn)
    client.sees_discharged(discharged)
    assert client.session.receiver(client.address).bodies() == [b"before"] + posts * [b"x"]


def test_without_it(service: Service, client: Client) -> None:
    """Whatever else is under way."""
    with nothing_is_decided(service) as waits:
        client.sees(client.post(client.txn), client.txn)
        discharged = client.discharge(client.txn)
        waits()
        client.sees(client.post(client.other), client.other)
    client.sees_discharged(discharged)


def test_of_two_transactions_one_is_discharged(service: Service, client: Client) -> None:
    with nothing_is_decided(service):
        with client.peer.at_once():
            posts = client.post(client.txn), client.post(client.other)
            discharged = client.discharge(client.txn)
        client.sees(posts[0], client.txn)
        client.sees(posts[1], client.other)
    client.sees_discharged(discharged)


def test_what_is_behind_the_discharge_is_of_another(service: Service, client: Client) -> None:
    with nothing_is_decided(service):
        with client.peer.at_once():
            first, discharged, later = client.post(client.txn), client.discharge(client.txn), client.post(client.other)
        client.sees(first, client.txn)
        client.sees(later, client.other)
    client.sees_discharged(discharged)


@pytest.mark.parametrize("declares", [False, True], ids=["flow", "declare"])
def test_beside_a_question(service: Service, client: Client, declares: bool) -> None:
    with nothing_is_decided(service) as waits:
        with client.peer.at_once():
            posted, discharged = client.post(client.txn), client.discharge(client.txn)
            if declares:
                client.control.request(b"\x00\x53\x77\x00\x53\x31\x45")
            else:
                client.session.flow(echo=True)
        client.sees(posted, client.txn)
        waits()
    client.sees_discharged(discharged)


def test_a_window_that_opens_behind_it(service: Service, begin: Begin, address: str) -> None:
    """What waits for it goes out at once, though no link has to do with the flow."""
    client = Client(begin(), address)
    session = client.peer.begin()
    receiver = session.receiver(address)
    session.flow(handle=receiver.handle, delivery_count=0, link_credit=1, incoming_window=0)
    receiver.link_credit = 1
    session.sync()
    with nothing_is_decided(service) as waits:
        with client.peer.at_once():
            posted, discharged = client.post(client.txn), client.discharge(client.txn)
            session.flow(incoming_window=10)
        assert receiver.take().body == b"before"
        client.sees(posted, client.txn)
        waits()
    client.sees_discharged(discharged)


def test_a_refusal_is_written_at_once(service: Service, client: Client) -> None:
    with nothing_is_decided(service) as waits:
        with client.peer.at_once():
            posted, discharged = client.post(client.txn), client.discharge(client.txn)
            unknown = client.discharge(bytes(16))
        client.sees(posted, client.txn)
        assert condition(client.control.answer_to(unknown).state) == "amqp:transaction:unknown-id"
        waits()
    client.sees_discharged(discharged)


def test_a_link_that_ends_has_them_written(service: Service, client: Client) -> None:
    with nothing_is_decided(service) as waits:
        with client.peer.at_once():
            posted, discharged = client.post(client.txn), client.discharge(client.txn)
        waits()
        client.session.sync()
        client.sees(posted, client.txn)
    client.sees_discharged(discharged)


def test_a_retirement_with_them(service: Service, client: Client) -> None:
    receiver = client.session.receiver(client.address, credit=2)
    receiver.take().disposition(Accepted())
    assert client.sender.outcome(data(b"second")) == Accepted()
    delivery = receiver.take()
    with nothing_is_decided(service) as waits:
        with client.peer.at_once():
            posted = client.post(client.txn)
            delivery.retire(client.txn, Accepted())
            discharged = client.discharge(client.txn)
        waits()
        client.sees_nothing()
    client.sees(posted, client.txn)
    client.sees_discharged(discharged)
    assert receiver.bodies() == [b"x"]


def test_a_checkable_one_is_answered_once_its_half_is_durable(service: Service, begin: Begin, address: str) -> None:
    """Before its discharge is decided, however soon that comes."""
    session = begin()
    control, sender = in_group(session), session.sender(address)
    txn = control.declare()
    with nothing_is_decided(service) as waits:
        with session.peer.at_once():
            posted = sender.post(data(b"x"), txn=txn)
            discharged = control.request(Discharge(txn_id=txn, fail=False))
        assert sender.answer_to(posted).state == TransactionalState(txn_id=txn, outcome=Accepted())
        waits()
    assert control.answer_to(discharged).state == Accepted()
