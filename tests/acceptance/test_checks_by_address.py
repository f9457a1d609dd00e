"""Check terms of an address (rule H7): for transactions whose first message goes to it, from the change on."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.fix_service import Service
from tests.fix_wire import Ask, Begin
from tests.wire.frames import TransactionalState
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.types import Symbol, UInt

pytestmark = pytest.mark.rule("H7")

GROUP = {Symbol("coordinator:producer-group"): "shop"}

_TERMS = """select check_immunity_ms, check_interval_ms, most_checks from coordinator.txn
             where id = encode(%s, 'hex')::uuid"""


def _terms(session: Session, ask: Ask, *addresses: str, **properties: Any) -> tuple[Any, ...]:
    """Of a checkable transaction with a message to each of the addresses: they are on their way at once."""
    asked = {Symbol(f"coordinator:check-{name.replace('_', '-')}"): value for name, value in properties.items()}
    control = session.control(properties={**GROUP, **asked})
    txn = control.declare()
    senders = [session.sender(address) for address in addresses]
    posted = [(sender, sender.post(data(b"x"), txn=txn)) for sender in senders]
    for sender, number in posted:
        assert isinstance(sender.answer_to(number).state, TransactionalState)
    (found,) = ask(_TERMS, txn)
    control.roll_back(txn)
    return found


def _known(session: Session, address: str) -> None:
    """The worker asks for what was changed before it asks for the second of these."""
    for number in range(2):
        session.sender(f"{address}-{number}-{time.monotonic_ns()}")


def test_the_first_address_says_how_it_is_checked(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    """While the service runs; the client's own immunity goes before it, and taken back it is as the settings say."""
    session = begin()
    own, other = f"{address}-own", f"{address}-other"
    settings = _terms(session, ask, own, other)
    assert settings == (6_000, 30_000, 15)
    said = service.cli("address", "set", own, "--check-immunity", "0.5", "--check-interval", "2", "--check-most", "3")
    assert said == f"'{own}': check_immunity_ms 500, check_interval_ms 2000, check_most 3\n"
    service.cli("address", "set", other, "--check-most", "4")
    _known(session, address)
    assert _terms(session, ask, own, other) == (500, 2_000, 3)
    assert _terms(session, ask, other, own) == (6_000, 30_000, 4)
    assert _terms(session, ask, own, immunity_ms=UInt(70)) == (70, 2_000, 3)
    assert _terms(session, ask, own, interval_ms=UInt(7_000), most=UInt(9)) == (500, 7_000, 9)
    shown = json.loads(service.cli("address", "show", own, "--json"))
    assert (shown["check_immunity_ms"], shown["check_interval_ms"], shown["check_most"]) == (500, 2_000, 3)
    service.cli("address", "set", own, "--check-immunity", "inherit", "--check-most", "inherit")
    _known(session, address)
    assert _terms(session, ask, own) == (6_000, 2_000, 15)


@pytest.mark.rule("S7")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--check-immunity", "3601"), "--check-immunity: expected seconds from 0 to 3600, or inherit, not '3601'"),
        (("--check-immunity", "-1"), "--check-immunity: expected seconds from 0 to 3600"),
        (("--check-interval", "0"), "--check-interval: expected seconds from 0.001 to 86400, or inherit, not '0'"),
        (("--check-interval", "nan"), "--check-interval: expected seconds from 0.001 to 86400"),
        (("--check-interval", "inf"), "--check-interval: expected seconds from 0.001 to 86400"),
        (("--check-most", "1.5"), "--check-most: expected a number from 1 to 1000, or inherit, not '1.5'"),
    ],
)
def test_terms_that_cannot_be(service: Service, options: tuple[str, ...], says: str) -> None:
    done = service.command("address", "set", "any", *options)
    assert done.returncode == 2
    assert says in done.stderr
