"""An application whose commit is still at work holds an AMQP transaction: its neighbours go on, and its rivals get an
answer (X3).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fix_application import Application, committing, neighbour_goes_on
from tests.fix_service import Service, running_service
from tests.fix_wire import Ask, Begin, decided
from tests.wire.checkable import accept, in_group
from tests.wire.frames import Accepted, Discharge, Released
from tests.wire.links import Control
from tests.wire.types import Symbol, UInt

pytestmark = pytest.mark.rule("X3")

TXN_ID = Symbol("x-opt-txn-id")


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """It waits for seconds less."""
    with running_service(constants={"store.commit.rescue.LONGEST_LOCKED_SECONDS": 5.0}) as service:
        yield service


@pytest.fixture
def undecided(begin: Begin, address: str, chain: None) -> tuple[Control, bytes]:
    """Of a client."""
    session = begin()
    control = in_group(session)
    txn = control.declare()
    accept(session.sender(address), b"1", txn)
    return control, txn


@pytest.mark.parametrize("fail", [False, True])
def test_a_rival_waits_for_it_and_is_told_what_stands(
    service: Service, begin: Begin, address: str, beside: Application, undecided: tuple[Control, bytes], fail: bool
) -> None:
    control, txn = undecided
    neighbour = begin()
    with committing(service, beside, txn) as ended:
        since = len(service.log_lines())
        asked = control.request(Discharge(txn_id=txn, fail=fail))
        service.wait_for(lambda line: line.get("event") == "batch is sent again", since=since)
        neighbour_goes_on(neighbour, address)
    assert ended == [None]
    told = str(control.answer_to(asked).state)
    assert re.search("committed before at .* by an application, in SQL" if fail else "^Accepted", told)


def test_a_rival_of_one_that_takes_too_long_is_told_to_ask_again(
    service: Service, begin: Begin, address: str, ask: Ask, beside: Application, undecided: tuple[Control, bytes]
) -> None:
    control, txn = undecided
    neighbour = begin()
    with committing(service, beside, txn) as ended:
        refused = control.discharge(txn, fail=True)
        assert (refused.error.condition, refused.error.description) == (
            "amqp:internal-error",
            "the store cannot say now what became of it: discharge it again",
        )
        neighbour_goes_on(neighbour, address)
        assert ended == []
    assert ended == [None]
    assert decided(ask, txn) == ("commit", "application")
    assert control.discharge(txn) == Accepted()
    assert begin().receiver(address).bodies() == [b"1"]


def test_checkers_operators_and_askers_are_told_that_it_takes_too_long(
    service: Service, begin: Begin, address: str, ask: Ask, beside: Application, chain: None
) -> None:
    """All at once, and beside others that are checked and asked for. The commit decides."""
    session, neighbour, stranger = begin(), begin(), begin()
    owner = in_group(session, address, check_immunity_ms=UInt(0))
    txn, other = owner.declare(), owner.declare()
    for each in (txn, other):
        accept(session.sender(address), b"1", each)
    checker = neighbour.receiver(f"$check/{address}", credit=2)
    session.peer.close_socket()
    checks = {check.message.delivery_annotations[TXN_ID]: check for check in checker.take_many(2)}
    with committing(service, beside, txn) as ended, ThreadPoolExecutor() as pool:
        arguments = (str(uuid.UUID(bytes=txn)), "--commit", "--reason", "x")
        resolved = pool.submit(service.command, "transaction", "resolve", *arguments)
        asking = stranger.control()
        asked = asking.request(Discharge(txn_id=txn, fail=True))
        checks[txn].disposition(Accepted(), settled=False)
        checks[other].disposition(Accepted(), settled=False)
        assert checks[other].settlement().state == Accepted()
        neighbour_goes_on(neighbour, address)
        assert checks[txn].settlement().state == Released()
        assert "the store cannot say now what became of it: ask again" in str(asking.answer_to(asked).state)
        command = resolved.result()
        assert (command.returncode, command.stderr) == (
            1,
            f"error: transaction {arguments[0]} is being decided by another, whose commit takes long: "
            "ask for its outcome later\n",
        )
        assert ended == []
    assert ended == [None]
    assert decided(ask, txn) == ("commit", "application")
