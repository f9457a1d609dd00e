"""Messages that the store refuses (D9): each is answered as refused, and what was written beside it is not harmed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_service import Service
from tests.fix_wire import Begin
from tests.wire.checkable import in_group
from tests.wire.frames import Accepted, Discharge, Target, TransactionalState
from tests.wire.links import Sender
from tests.wire.messages import Properties, data
from tests.wire.peer import Session
from tests.wire.queues import condition

pytestmark = pytest.mark.rule("D9")

BAD = b"the store refuses this"
FATAL = "amqp:internal-error"
WAYS = pytest.mark.parametrize("relay", [False, True], ids=["link", "relay"])


@pytest.fixture(autouse=True)
def _refusing(service: Service) -> Iterator[None]:
    with psycopg.connect(running_url(service.data_dir), autocommit=True) as store:
        check = f"check (position('{BAD.decode()}'::bytea in message) = 0) not valid"
        store.execute(f"alter table coordinator.half add constraint refusing {check}".encode())
        yield
        store.execute("alter table coordinator.half drop constraint refusing")


@contextmanager
def _one_batch(service: Service, *sessions: Session) -> Iterator[None]:
    """What ``sessions`` post meanwhile is written together: the batch before it waits until all of it has come."""
    before = sessions[0].sender("before")
    with psycopg.connect(running_url(service.data_dir)) as store:
        store.execute("lock table coordinator.half in share mode")
        number = before.post(data(b"x"))
        yield
        for session in sessions:
            session.sender("before")  # its answer comes after all that was sent before it has been read
    assert before.answer_to(number).state == Accepted()


def _sender(session: Session, address: str, *, relay: bool) -> Sender:
    sender = session.sender(Target() if relay else address)
    assert sender.outcome(_to(address, b"known")) == Accepted()
    return sender


def _to(address: str, body: bytes) -> bytes:
    return Properties(to=address).encoded() + data(body)


@WAYS
def test_a_post_is_refused_alone(service: Service, begin: Begin, address: str, relay: bool) -> None:
    """Its link ends, with all that came before answered; its connection and all others go on."""
    own, other = begin(), begin()
    sender, beside = _sender(own, address, relay=relay), _sender(other, address, relay=relay)
    with _one_batch(service, own, other):
        numbers = [sender.post(_to(address, body)) for body in (b"1", BAD, b"2")]
        others = [beside.post(_to(address, body)) for body in (b"3", b"4")]
    states = [sender.answer_to(number).state for number in numbers]
    assert states[::2] == [Accepted(), Accepted()]
    assert condition(states[1]) == FATAL
    assert sender.error == FATAL
    assert [beside.answer_to(number).state for number in others] == [Accepted(), Accepted()]
    assert own.sender(address).outcome(data(b"5")) == Accepted()
    assert beside.outcome(_to(address, b"6")) == Accepted()
    stored = own.receiver(address).bodies()
    assert sorted(stored) == [b"1", b"2", b"3", b"4", b"5", b"6", b"known", b"known"]


@WAYS
def test_a_settled_post_ends_its_link(service: Service, begin: Begin, address: str, relay: bool) -> None:
    """That is all that can be said of it; what was posted beside it, settled too, is there."""
    session = begin()
    sender = _sender(session, address, relay=relay)
    with _one_batch(service, session):
        for body in (b"1", BAD, b"2"):
            sender.post(_to(address, body), settled=True)
    assert sender.error == FATAL
    # what follows the refused one may still be on its way to the store; this one is behind it
    assert session.sender(address).outcome(data(b"3")) == Accepted()
    assert session.receiver(address).bodies() == [b"known", b"1", b"2", b"3"]


@pytest.mark.rule("T8")
def test_a_transaction_with_one_is_rolled_back_alone(service: Service, begin: Begin, address: str) -> None:
    """Nothing of it is there; those that commit beside it are."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    bodies = ((b"1", b"2"), (b"3", BAD, b"4"), (b"5",))
    txns = [control.declare() for _ in bodies]
    for txn, each in zip(txns, bodies, strict=True):
        for body in each:
            assert isinstance(sender.outcome(data(body), txn=txn), TransactionalState)
    other = begin().sender(address)
    with _one_batch(service, session, other.session):
        beside = other.post(data(b"6"))
        discharges = [control.request(Discharge(txn_id=txn, fail=False)) for txn in txns]
    states = [control.answer_to(number).state for number in discharges]
    assert states[::2] == [Accepted(), Accepted()]
    assert condition(states[1]) == "amqp:transaction:rollback"
    assert other.answer_to(beside).state == Accepted()
    assert condition(control.discharge(txns[1])) == "amqp:transaction:rollback"  # and it stays so
    assert sorted(session.receiver(address).bodies()) == [b"1", b"2", b"5", b"6"]


@pytest.mark.rule("H3", "T23")
def test_a_half_of_a_checkable_transaction_is_refused(service: Service, begin: Begin, address: str) -> None:
    """In a transactional state; the transaction can only roll back, another goes on."""
    session = begin()
    control, sender = in_group(session), session.sender(address)
    bad, good = control.declare(), control.declare()
    assert isinstance(sender.outcome(data(b"0"), txn=bad), TransactionalState)
    with _one_batch(service, session):
        numbers = [sender.post(data(body), txn=txn) for body, txn in ((b"1", good), (BAD, bad), (b"2", good))]
    states = [sender.answer_to(number).state for number in numbers]
    assert states[::2] == [TransactionalState(txn_id=good, outcome=Accepted())] * 2
    assert isinstance(states[1], TransactionalState)
    assert condition(states[1].outcome) == FATAL
    assert condition(control.discharge(bad)) == "amqp:transaction:rollback"
    control.commit(good)
    assert session.receiver(address).bodies() == [b"1", b"2"]
