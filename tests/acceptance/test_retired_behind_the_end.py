"""Retirements behind the end of their link or session, which their client sends before it knows of the end (rules T26,
T31): no transaction commits without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from coordinator.memory import MOST_FAIR
from tests.fix_night import by_night
from tests.fix_service import Service, running_service
from tests.fix_wire import Begin
from tests.wire.frames import Accepted, Detach, Modified, Source, Target, TransactionalState, Transfer
from tests.wire.links import Control, Delivery, Receiver
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import condition
from tests.wire.types import Symbol

pytestmark = pytest.mark.rule("T26", "T31")

_ROLLBACK = "amqp:transaction:rollback"


@pytest.fixture(scope="module")
def service(both_forms_of_services: None) -> Iterator[Service]:
    with running_service() as service:
        yield service


def _end_session(_begin: Begin, _address: str, receiver: Receiver) -> None:
    """A transfer to a handle that has no link."""
    session = receiver.session
    session.send(Transfer(handle=99, delivery_id=session.next_delivery_id(), delivery_tag=b"1"))


def _end_link(_begin: Begin, _address: str, receiver: Receiver) -> None:
    """A flow that asks for messages in a transaction."""
    receiver.credit(9, properties={Symbol("txn-id"): b"any"})


def _end_link_then_session(begin: Begin, address: str, receiver: Receiver) -> None:
    _end_link(begin, address, receiver)
    _end_session(begin, address, receiver)


def _steal(begin: Begin, address: str, _receiver: Receiver) -> None:
    """Another connection of the same client attaches it."""
    begin(container_id=f"c-{address}").receiver(f"{address}-other", name="stolen")


def _end_link_and_see(begin: Begin, address: str, receiver: Receiver) -> None:
    """The client knows, as most libraries answer a detach by themselves; its application goes on."""
    _end_link(begin, address, receiver)
    receiver.wait_detached()


def _steal_and_see(begin: Begin, address: str, receiver: Receiver) -> None:
    _steal(begin, address, receiver)
    receiver.wait_detached()


def _see_then_end_session(begin: Begin, address: str, receiver: Receiver) -> None:
    _end_link_and_see(begin, address, receiver)
    _end_session(begin, address, receiver)


def _close(_begin: Begin, _address: str, receiver: Receiver) -> None:
    """Its client does."""
    receiver.detach()


def _detach(_begin: Begin, _address: str, receiver: Receiver) -> None:
    """Its client does, and does not close it (part 2, section 2.7.6: what it had is live still)."""
    receiver.detach(closed=False)


def _detach_unseen(_begin: Begin, _address: str, receiver: Receiver) -> None:
    """It does not wait for the answer."""
    receiver.session.send(Detach(handle=receiver.handle, closed=False))


_End = Callable[[Begin, str, Receiver], None]
_THREE = [_end_session, _steal_and_see, _detach_unseen]
_OTHERS = [
    _end_link,
    _end_link_then_session,
    _steal,
    _end_link_and_see,
    _see_then_end_session,
    _close,
    _detach,
]
_all_ends = pytest.mark.parametrize("end", [*_THREE, *_OTHERS])
#: Three by day: by the service, by another client, by its own.
_ends = pytest.mark.parametrize("end", [*_THREE, *map(by_night, _OTHERS)])


class _Work:
    """Two deliveries of a consumer in a session of its own."""

    def __init__(self, begin: Begin, address: str, source: Source) -> None:
        self.session: Session = begin(container_id=f"c-{address}")
        self.control: Control = self.session.control()
        self.sender = self.session.sender(address)
        for body in (b"1", b"2"):
            self.sender.outcome(data(body))
        self.receiver = self.session.peer.begin().receiver(source, name="stolen")
        self.first, self.second = self.receiver.take_many(2)

    def discharge(self, txn: bytes) -> object:
        """None: it was accepted."""
        answer = self.control.discharge(txn)
        return None if answer == Accepted() else condition(answer)


@pytest.fixture
def work(begin: Begin, address: str) -> _Work:
    return _Work(begin, address, Source(address=address))


@_all_ends
@pytest.mark.parametrize(
    ("settled", "told"), [(False, True), (True, False), by_night(False, False), by_night(True, True)]
)
def test_a_transaction_whose_retirement_comes_behind_the_end(
    begin: Begin, address: str, work: _Work, end: _End, settled: bool, told: bool
) -> None:
    """It rolls back, with what it has posted; another commits. ``told``: the service has written the end."""
    txn, other = work.control.declare(), work.control.declare()
    results = work.session.sender(f"{address}-results")
    results.outcome(data(b"result"), txn=txn)
    results.outcome(data(b"other"), txn=other)
    end(begin, address, work.receiver)
    if told:
        work.session.sync()
    work.first.retire(txn, settled=settled)
    assert work.discharge(txn) == _ROLLBACK
    assert work.discharge(other) is None
    assert sorted(work.session.receiver(address).bodies()) == [b"1", b"2"]
    assert work.session.receiver(f"{address}-results").bodies() == [b"other"]


@_ends
@pytest.mark.rule("T34")
@pytest.mark.parametrize("settled", [False, True])
def test_one_that_names_a_decided_transaction_does_nothing(
    begin: Begin, address: str, work: _Work, end: _End, settled: bool
) -> None:
    txn, other = work.control.declare(), work.control.declare()
    work.first.retire(txn, settled=False)
    work.session.sync()
    end(begin, address, work.receiver)
    assert work.discharge(txn) is None
    for delivery in (work.first, work.second):
        delivery.retire(txn, settled=settled)
    work.sender.outcome(data(b"3"), txn=other)
    assert work.discharge(other) is None
    assert sorted(work.session.receiver(address).bodies()) == [b"2", b"3"]


@_ends
def test_what_is_said_outside_transactions_does_nothing(begin: Begin, address: str, work: _Work, end: _End) -> None:
    """Also of a delivery that is part of one already."""
    txn = work.control.declare()
    work.first.retire(txn, settled=False)
    end(begin, address, work.receiver)
    work.first.disposition(None)
    work.second.disposition(Accepted(), settled=False)
    work.second.disposition(Modified(delivery_failed=True))
    assert work.discharge(txn) is None
    assert work.session.receiver(address).bodies() == [b"2"]


@_ends
@pytest.mark.rule("T34")
def test_what_is_part_of_the_transaction_already_stays_so(begin: Begin, address: str, work: _Work, end: _End) -> None:
    """A client that frees a link settles all that it has of it, in the state that each has (as Proton does)."""
    txn = work.control.declare()
    for delivery in (work.first, work.second):
        delivery.retire(txn, settled=False)
    end(begin, address, work.receiver)
    work.first.retire(txn)
    assert work.discharge(txn) is None
    assert work.session.receiver(address).bodies() == []


@_ends
def test_one_of_a_delivery_that_was_settled_does_nothing(begin: Begin, address: str, work: _Work, end: _End) -> None:
    txn = work.control.declare()
    work.sender.outcome(data(b"3"), txn=txn)
    for delivery in (work.first, work.second):
        delivery.disposition(Accepted(), settled=False)
        delivery.settlement()
    end(begin, address, work.receiver)
    work.first.retire(txn)
    assert work.discharge(txn) is None


@_ends
@pytest.mark.rule("T29")
def test_one_of_a_delivery_that_another_transaction_has(begin: Begin, address: str, work: _Work, end: _End) -> None:
    """The first keeps it."""
    first, second = work.control.declare(), work.control.declare()
    work.first.retire(first, settled=False)
    end(begin, address, work.receiver)
    work.first.retire(second)
    assert work.discharge(second) == _ROLLBACK
    assert work.discharge(first) is None
    assert work.session.receiver(address).bodies() == [b"2"]


@_ends
@pytest.mark.rule("P8")
def test_what_a_browser_says_does_nothing(begin: Begin, address: str, end: _End) -> None:
    work = _Work(begin, address, Source(address=address, distribution_mode="copy"))
    txn = work.control.declare()
    end(begin, address, work.receiver)
    work.first.retire(txn)
    assert work.discharge(txn) is None


@_ends
def test_a_range_of_deliveries(begin: Begin, address: str, work: _Work, end: _End) -> None:
    """Of which one is settled."""
    txn = work.control.declare()
    work.first.disposition(Accepted(), settled=False)
    work.first.settlement()
    end(begin, address, work.receiver)
    work.first.disposition(TransactionalState(txn_id=txn, outcome=Accepted()), last=work.second)
    assert work.discharge(txn) == _ROLLBACK
    assert work.session.receiver(address).bodies() == [b"2"]


_closed = pytest.mark.parametrize("closed", [True, False])


def test_a_detach_settles_nothing(begin: Begin, address: str, work: _Work) -> None:
    """A client might take it for the end of what it retires."""
    work.receiver.detach(closed=False)
    work.receiver.session.sync()
    assert not work.receiver.session.settlements[work.first.id]


@pytest.mark.rule("D1")
def test_a_lasting_subscription_that_was_detached(begin: Begin, address: str, work: _Work) -> None:
    """It has its messages again when it is attached again on the same session, whatever the first link retires."""
    source = Source(address=f"{address}-topic", durable=2, expiry_policy="never", capabilities=(Symbol("topic"),))
    session, txn = work.session, work.control.declare()
    receiver = session.receiver(source, name="lasting")
    session.sender(Target(address=f"{address}-topic", capabilities=(Symbol("topic"),))).outcome(data(b"1"))
    had = receiver.take()
    receiver.detach(closed=False)
    again = session.receiver(source, name="lasting").take()
    had.retire(txn)
    assert work.discharge(txn) == _ROLLBACK
    txn = work.control.declare()
    again.retire(txn)
    assert work.discharge(txn) is None
    again.receiver.detach(closed=False)
    assert session.receiver(source, name="lasting").bodies() == []


@_closed
def test_another_link_of_the_name_of_one_that_was_detached(
    begin: Begin, address: str, work: _Work, closed: bool
) -> None:
    """What the first left and what the second has are told apart."""
    txn, other = work.control.declare(), work.control.declare()
    work.receiver.detach(closed=closed)
    again = work.receiver.session.receiver(address, name="stolen")
    first, _ = again.take_many(2)
    first.retire(other)
    assert work.discharge(other) is None
    work.second.retire(txn)
    assert work.discharge(txn) == _ROLLBACK
    again.detach()
    assert work.session.receiver(address).bodies() == [b"2"]


def _left_by_a_link(session: Session, address: str, count: int, *, closed: bool) -> list[Delivery]:
    """What a link had that its client has detached."""
    receiver = session.receiver(address)
    taken = receiver.take_many(count)
    receiver.detach(closed=closed)
    return taken


@_closed
def test_what_links_have_left_is_kept_up_to_a_bound(begin: Begin, address: str, work: _Work, closed: bool) -> None:
    """A session may stay for months. Of many links the last counts, and of many deliveries the first: they may be in an
    application's hands.
    """
    earlier, first, last = (work.control.declare() for _ in range(3))
    for _ in range(8):
        work.sender.outcome(data(bytes(MOST_FAIR // 8)))
    work.receiver.detach(closed=closed)
    session = work.receiver.session
    of_one, of_the_next = (_left_by_a_link(session, address, 10, closed=closed) for _ in range(2))
    of_one[0].retire(earlier)
    of_the_next[0].retire(first)
    of_the_next[-1].retire(last)
    assert work.discharge(earlier) is None
    assert work.discharge(first) == _ROLLBACK
    assert work.discharge(last) is None


@_closed
def test_of_large_messages_that_links_have_left_the_last_is_known(
    begin: Begin, address: str, work: _Work, closed: bool
) -> None:
    """Each is larger than the bound."""
    earlier, txn = work.control.declare(), work.control.declare()
    for body in (b"1", b"2"):
        work.sender.outcome(data(body * 2 * MOST_FAIR))
    (of_one,), (of_the_next,) = (_left_by_a_link(work.session, address, 1, closed=closed) for _ in range(2))
    of_one.retire(earlier)
    of_the_next.retire(txn)
    assert work.discharge(earlier) is None
    assert work.discharge(txn) == _ROLLBACK


@_closed
def test_a_session_that_ends_after_its_links_goes_on_no_more(
    begin: Begin, address: str, work: _Work, closed: bool
) -> None:
    """Nor does its connection; the engine has nothing of them then."""
    work.receiver.detach(closed=closed)
    work.receiver.session.end()
    txn = work.control.declare()
    (first, *_) = work.session.peer.begin().receiver(address).take_many(2)
    first.retire(txn)
    assert work.discharge(txn) is None
    work.session.peer.close()
    assert begin().receiver(address).bodies() == [b"2"]
