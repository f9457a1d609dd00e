"""A permission that is revoked in the midst of what it was needed for (rule S3)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from store.permissions import Verb
from tests.fix_permissions import Enter
from tests.fix_service import Service, running_service
from tests.fix_users import EVERYTHING, revoke
from tests.wire.frames import Accepted, Rejected, TransactionalState
from tests.wire.links import Sender
from tests.wire.messages import data

pytestmark = pytest.mark.rule("S3")

UNAUTHORIZED = "amqp:unauthorized-access"
_LARGE = bytes(3 << 20)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"login.plain": "always"}) as service:
        yield service


def _begin(sender: Sender, txn: bytes | None) -> int:
    """The first frame of a delivery; its id."""
    number = sender.session.next_delivery_id()
    state = None if txn is None else TransactionalState(txn_id=txn)
    first = {"delivery_id": number, "delivery_tag": b"part", "message_format": 0, "state": state}
    sender.transfer(data(_LARGE)[:50_000], **first, more=True)
    return number


def _ended(sender: Sender) -> str:
    """The error with which the service ends it; unanswered."""
    while sender.detached is None:
        sender.session.peer.step()
    assert sender.detached.error is not None
    return str(sender.detached.error.condition)


@pytest.mark.parametrize("part", [b"\xff" * 40_000, b""], ids=["its last frame comes", "no more comes"])
def test_a_message_that_has_come_in_part(enter: Enter, service: Service, address: str, part: bytes) -> None:
    session = enter([(Verb.SEND, "*"), (Verb.CREATE, "*")], user=address)
    sender, owner = session.sender(address), enter(EVERYTHING)
    number = _begin(sender, None)
    session.sync()
    revoke(service, [(Verb.SEND, "*")], user=address)
    assert _ended(sender) == UNAUTHORIZED
    if part:
        sender.transfer(part, delivery_id=number)
    assert sender.error == UNAUTHORIZED
    assert session.sender(address).error == UNAUTHORIZED
    assert owner.receiver(address).bodies() == []


@pytest.mark.rule("T22")
@pytest.mark.parametrize("sends_on", [False, True])
def test_a_transaction_with_a_message_and_a_part_of_another(
    enter: Enter, service: Service, address: str, sends_on: bool
) -> None:
    """What has come whole may be committed by a client that stops; what has come in part is never seen. One that sends
    on has not seen the end of its link: it may take the commit for that of both.
    """
    session = enter([(Verb.SEND, "*"), (Verb.CREATE, "*")], user=address)
    sender, control, owner = session.sender(address), session.control(), enter(EVERYTHING)
    txn = control.declare()
    whole = sender.answer_to(sender.post(data(b"whole"), txn=txn))
    assert whole.state == TransactionalState(txn_id=txn, outcome=Accepted())
    number = _begin(sender, txn)
    session.sync()
    revoke(service, [(Verb.SEND, "*")], user=address)
    assert _ended(sender) == UNAUTHORIZED
    for _ in range(sends_on):
        sender.transfer(b"\xff" * 40_000, delivery_id=number)
    assert sender.error == UNAUTHORIZED
    assert isinstance(control.discharge(txn), Rejected if sends_on else Accepted)
    assert owner.receiver(address).bodies() == [b"whole"] * (not sends_on)


def test_a_large_message_on_its_way_to_its_consumer(enter: Enter, service: Service, address: str) -> None:
    session = enter([(Verb.RECEIVE, "*"), (Verb.CREATE, "*")], user=address)
    owner = enter(EVERYTHING)
    sender = owner.sender(address)
    for number in range(3):
        assert sender.outcome(data(b"%d" % number + _LARGE)) == Accepted()
    receiver = session.receiver(address)
    receiver.credit(3)
    first = receiver.take()
    revoke(service, [(Verb.RECEIVE, "*")], user=address)
    assert receiver.error == UNAUTHORIZED
    assert first.body[:1] == b"0"
    assert [body[:1] for body in owner.receiver(address).bodies()] == [b"0", b"1", b"2"]
    assert session.receiver(address).error == UNAUTHORIZED


def test_a_delivery_that_was_retired_in_a_transaction(enter: Enter, service: Service, address: str) -> None:
    """It may be committed, too."""
    session = enter([(Verb.RECEIVE, "*"), (Verb.CREATE, "*")], user=address)
    owner = enter(EVERYTHING)
    assert owner.sender(address).outcome(data(b"1")) == Accepted()
    receiver, control = session.receiver(address), session.control()
    delivery = receiver.take()
    txn = control.declare()
    delivery.retire(txn, settled=False)
    session.sync()
    revoke(service, [(Verb.RECEIVE, "*")], user=address)
    assert receiver.error == UNAUTHORIZED
    control.commit(txn)
    assert owner.receiver(address).bodies() == []
