"""No client posts where the service puts messages aside: dead letters, and what no checker has answered (D4, H10)."""

from __future__ import annotations

import pytest

from coordinator.address.addresses import UNANSWERED
from tests.acceptance.permitted import addressed
from tests.fix_wire import Begin
from tests.wire.frames import Accepted, Error, Rejected, Target, TransactionalState
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import condition, dead_letters, post

pytestmark = pytest.mark.rule("D4", "H10", "P9")


@pytest.fixture(params=["letters", "no letters yet", "no such group", UNANSWERED])
def box(request: pytest.FixtureRequest, begin: Begin, address: str) -> str:
    session = begin()
    if request.param == UNANSWERED:
        return UNANSWERED
    if request.param != "no such group":
        post(session, address, b"x")
    if request.param == "letters":
        session.receiver(address).take().disposition(Rejected())
        dead_letters(session, address).detach()
    return f"%DLQ%{address}"


def _refused(error: Error | None, box: str) -> None:
    assert error is not None
    assert error.condition == "amqp:not-allowed"
    assert error.description is not None
    assert f"the address '{box}'" in error.description
    assert "the service's own" in error.description


def _there(session: Session, box: str) -> list[bytes]:
    link = session.receiver(box)
    return [] if link.answer.source is None else [each.body for each in link.drain()]


def test_on_a_link_of_its_own(begin: Begin, box: str) -> None:
    """Refused alike whether the address is there or not."""
    session = begin()
    sender = session.sender(box)
    assert sender.answer.target is None
    _refused(sender.wait_detached().error, box)


def test_on_the_relay(begin: Begin, box: str, address: str) -> None:
    """Rejected; the link goes on."""
    session = begin()
    relay = session.sender(Target())
    forged = addressed(box).replace(data(b"x"), data(b"forged"))
    state = relay.outcome(forged)
    assert isinstance(state, Rejected)
    _refused(state.error, box)
    assert relay.outcome(addressed(f"{address}-other")) == Accepted()
    assert b"forged" not in _there(session, box)


def test_on_the_relay_in_a_transaction(begin: Begin, box: str) -> None:
    """T23: it can only roll back."""
    session = begin()
    control, relay = session.control(), session.sender(Target())
    txn = control.declare()
    state = relay.outcome(addressed(box), txn=txn)
    assert isinstance(state, TransactionalState)
    assert isinstance(state.outcome, Rejected)
    _refused(state.outcome.error, box)
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"


def test_an_application_moves_a_letter_back(begin: Begin, address: str) -> None:
    """In one transaction: it takes the letter, and posts its message where that came from."""
    session = begin()
    post(session, address, b"x")
    session.receiver(address, name="failing").take().disposition(Rejected())
    letter = dead_letters(session, address).take()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    letter.retire(txn)
    sender.outcome(letter.message.bare, txn=txn)
    control.commit(txn)
    assert session.receiver(address, name="again").take().body == b"x"
