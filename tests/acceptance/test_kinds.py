"""What each kind of address takes, in every manner of posting (rule H1)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.fix_night import by_night
from tests.fix_service import Service, running_service
from tests.fix_wire import Begin
from tests.wire.frames import Accepted, Rejected, Target, TransactionalState
from tests.wire.messages import MESSAGE_ANNOTATIONS, Properties, data, section
from tests.wire.queues import condition
from tests.wire.types import Symbol, ULong

pytestmark = pytest.mark.rule("H1")


class Manner(NamedTuple):
    """How a message comes: with a delivery time that is past, so that it is delivered at once; with a group-id."""

    in_txn: bool = False
    later: bool = False
    grouped: bool = False

    def message(self, to: str) -> bytes:
        properties = Properties(to=to, group_id="g" if self.grouped else None)
        later = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-delivery-time"): ULong(1)}) if self.later else b""
        return later + properties.encoded() + data(b"x")


PLAIN, LATER, GROUPED = Manner(), Manner(later=True), Manner(grouped=True)
IN_TXN, LATER_IN_TXN, GROUPED_IN_TXN = (each._replace(in_txn=True) for each in (PLAIN, LATER, GROUPED))
MANNERS = (PLAIN, LATER, GROUPED, IN_TXN, LATER_IN_TXN, GROUPED_IN_TXN)

#: What an address of this kind takes.
TAKES = {
    "normal": MANNERS,
    "mixed": MANNERS,
    "fifo": MANNERS,
    "transaction": (IN_TXN, GROUPED_IN_TXN),
    "delay": (LATER, LATER_IN_TXN),
}
CASES = [(kind, manner, manner in taken) for kind, taken in TAKES.items() for manner in MANNERS]
TAKEN = [(kind, manner) for kind, manner, takes in CASES if takes]
REFUSED = [(kind, manner) for kind, manner, takes in CASES if not takes]
OUTSIDE = [(kind, manner) for kind, manner in REFUSED if not manner.in_txn]
INSIDE = [(kind, manner) for kind, manner in REFUSED if manner.in_txn]
WAYS = pytest.mark.parametrize("relay", [False, True], ids=["link", "relay"])


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Addresses are of the kind with which their names begin."""
    patterns = [{"match": f"{kind}-*", "kind": kind} for kind in TAKES]
    with running_service({"addresses.patterns": json.dumps(patterns)}) as service:
        yield service


def _target(address: str, relay: bool) -> Target:
    return Target() if relay else Target(address=address)


def _says(refused: object, address: str, kind: str) -> None:
    """The refusal names the address, its kind, and what came."""
    assert isinstance(refused, Rejected)
    assert refused.error is not None
    assert condition(refused) == "amqp:precondition-failed"
    description = str(refused.error.description)
    assert address[:60] in description
    assert f"is of kind {kind}" in description
    came = ("the message came in none", "came without x-opt-delivery-time", "cannot be delivered later")
    assert any(each in description for each in came)


@pytest.mark.parametrize(
    ("settled", "relay"),
    [(False, False), (True, True), by_night(True, False), by_night(False, True)],
    ids=["link", "relay-settled", "link-settled", "relay"],
)
@pytest.mark.parametrize(("kind", "manner"), TAKEN)
def test_what_it_takes(begin: Begin, address: str, kind: str, manner: Manner, settled: bool, relay: bool) -> None:
    address = f"{kind}-{address}"
    session = begin()
    control, sender = session.control(), session.sender(_target(address, relay))
    txn = control.declare() if manner.in_txn else None
    sender.post(manner.message(address), txn=txn, settled=settled)
    control.commit(txn or control.declare())
    assert session.receiver(address).take().body == b"x"


@WAYS
@pytest.mark.parametrize(("kind", "manner"), OUTSIDE)
def test_what_it_refuses_outside_transactions(
    begin: Begin, address: str, kind: str, manner: Manner, relay: bool
) -> None:
    """A post that was sent settled ends its link."""
    address = f"{kind}-{address}"
    session = begin()
    sender = session.sender(_target(address, relay))
    _says(sender.outcome(manner.message(address)), address, kind)
    sender.post(manner.message(address), settled=True)
    assert sender.error == "amqp:precondition-failed"
    assert session.receiver(address).bodies() == []


@WAYS
@pytest.mark.parametrize(("kind", "manner"), INSIDE)
def test_what_it_refuses_in_transactions(begin: Begin, address: str, kind: str, manner: Manner, relay: bool) -> None:
    """The transaction can only roll back, however the post was sent (T22, T23)."""
    address = f"{kind}-{address}"
    session = begin()
    control, sender = session.control(), session.sender(_target(address, relay))
    txn = control.declare()
    refused = sender.outcome(manner.message(address), txn=txn)
    assert isinstance(refused, TransactionalState)
    _says(refused.outcome, address, kind)
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    txn = control.declare()
    sender.post(manner.message(address), txn=txn, settled=True)
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    assert session.receiver(address).bodies() == []


def test_one_that_is_changed_keeps_its_messages(service: Service, begin: Begin, address: str) -> None:
    """What it takes counts from the next post on, at links that are there; to or from fifo it does not change."""
    service.cli("address", "add", address)
    session = begin()
    sender = session.sender(address)
    assert sender.outcome(PLAIN.message(address)) == Accepted()
    assert service.cli("address", "set", address, "--kind", "delay").endswith(": kind delay\n")
    deadline = time.monotonic() + 60
    while (answer := sender.outcome(PLAIN.message(address))) == Accepted():
        assert time.monotonic() < deadline
    _says(answer, address, "delay")
    assert sender.outcome(LATER.message(address)) == Accepted()
    service.cli("address", "set", address, "--kind", "mixed")
    while sender.outcome(PLAIN.message(address)) != Accepted():
        assert time.monotonic() < deadline
    assert len(session.receiver(address).bodies()) >= 3
    said = service.command("address", "set", address, "--kind", "fifo")
    assert (said.returncode, said.stdout) == (1, "")
    assert "is of kind mixed; to or from fifo no address changes" in said.stderr


@pytest.mark.parametrize("command", ["add", "set"])
def test_one_that_there_is_not(service: Service, address: str, command: str) -> None:
    said = service.command("address", command, address, "--kind", "batch")
    assert said.returncode == 2
    assert "--kind: expected normal, transaction, fifo, delay or mixed, not 'batch'" in said.stderr
