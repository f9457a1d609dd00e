"""A policy that an operator asks for and that cannot be (rules D2, D4, H1, H7): the command says why, and all policies
stay as they were, in the store and at a service that runs; also what the same command asks for that could be.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fix_night import by_night
from tests.fix_service import Service
from tests.fix_wire import Ask
from tests.wire.frames import Modified, TransactionalState, frame
from tests.wire.messages import data
from tests.wire.peer import PATIENCE, Peer, Session
from tests.wire.queues import post
from tests.wire.types import Symbol

pytestmark = pytest.mark.rule("D2", "D4", "H1", "H7", "S7")

ADDRESS = "orders"
GROUP = f"{ADDRESS}::billing"
OF_ADDRESS = ("--kind", "mixed", "--max-attempts", "9", "--retry", "ladder 1h", "--on-expiry", "dead-letter")
OF_CHECKS = ("--retention-hours", "5", "--check-immunity", "0.5", "--check-interval", "7", "--check-most", "3")
OF_GROUP = ("--max-attempts", "8", "--retry", "exponential 2h 2 1d", "--on-expiry", "drop")

#: Of each group the wait of a failed delivery in hours, as its policy says.
_WAITS = f"""
    select g.name, ceil(extract(epoch from e.available_at - now()) / 3600)::int4
      from coordinator.entry e join coordinator.consumer_group g on g.id = e.group_id
      join coordinator.address a on a.id = g.address_id
     where a.name = '{ADDRESS}' and e.available_at is not null and e.attempts = 1 order by g.name"""
_TERMS = """select check_immunity_ms, check_interval_ms, most_checks from coordinator.txn
             where id = encode(%s, 'hex')::uuid"""


@pytest.fixture(scope="module")
def session(service: Service) -> Iterator[Session]:
    """At a service that has read the policies of address and group."""
    service.cli("address", "add", ADDRESS)
    peer = Peer(service.port)
    peer.open()
    session = peer.begin()
    assert session.receiver(GROUP).answer.source is not None
    service.cli("address", "set", ADDRESS, *OF_ADDRESS, *OF_CHECKS)
    service.cli("group", "set", GROUP, *OF_GROUP)
    _known(session)
    yield session
    peer.close_socket()


@pytest.fixture(scope="module")
def before(session: Session, service: Service) -> Any:
    return _policies(service)


def _known(session: Session) -> None:
    """The worker asks for what was changed before it asks for the second of these."""
    for number in range(2):
        session.sender(f"other-{number}-{time.monotonic_ns()}")


def _policies(service: Service) -> Any:
    """All that is stored of them, and what was noted of their changes."""
    shown = json.loads(service.cli("address", "show", ADDRESS, "--json"))
    groups = json.loads(service.cli("group", "list", ADDRESS, "--json"))
    return shown, groups, service.cli("audit", "--format", "json")


@pytest.mark.parametrize(
    ("command", "options", "status", "says"),
    [
        ("address", ("--retry", "soon"), 2, "--retry: the retry policy 'soon': expected immediate"),
        by_night("address", ("--retry", ""), 2, "--retry: the retry policy '': expected immediate"),
        by_night("address", ("--retry", "ladder 1s 9"), 2, "--retry: the wait '9'"),
        by_night("address", ("--retry", "ladder 1s 31d"), 2, "--retry: the wait '31d': expected 1ms to 30d"),
        by_night("address", ("--retry", "ladder" + " 1s" * 200), 2, "--retry: a "),
        ("address", ("--retry", "ladder 1s\n2s\x1b[2J"), 2, "--retry: the wait '2s\\x1b[2J'"),
        by_night("address", ("--max-attempts", "3", "--retry", "ladder 1s,5s"), 2, "--retry: the wait '1s,5s'"),
        by_night("address", ("--retry", "exponential 1m 0.5 1h"), 2, "--retry: the factor '0.5'"),
        by_night("address", ("--retry", "exponential 1h 2 1m"), 2, "--retry: the longest wait 1m is shorter"),
        by_night(
            "address", ("--retry", "immediate", "--kind", "batch"), 2, "--kind: expected normal, transaction, fifo"
        ),
        by_night("address", ("--retry", "immediate", "--kind", "fifo"), 1, "to or from fifo no address changes"),
        by_night(
            "address", ("--retry", "immediate", "--on-expiry", "burn"), 2, "--on-expiry: expected drop or dead-letter"
        ),
        ("address", ("--retry", "immediate", "--check-most", "0"), 2, "--check-most: expected a number from 1"),
        by_night("address", ("--check-most", "4", "--check-interval", "nan"), 2, "--check-interval: expected seconds"),
        by_night("address", ("--check-most", "4", "--check-immunity", "3601"), 2, "--check-immunity: expected seconds"),
        by_night("address", ("--retry", "immediate", "--max-attempts", "0"), 2, "--max-attempts"),
        by_night("address", ("--retry", "immediate", "--retention-hours", "-1"), 2, "--retention-hours"),
        ("address", (), 2, "give at least one of"),
        by_night("group", ("--retry", "ladder 1s 9"), 2, "--retry: the wait '9'"),
        by_night("group", ("--max-attempts", "3", "--retry", "ladder 0s"), 2, "--retry: the wait '0s'"),
        by_night(
            "group", ("--retry", "inherit", "--max-attempts", "32768"), 2, "--max-attempts: expected a number from 1"
        ),
        by_night("group", ("--retry", "inherit", "--on-expiry", "burn"), 2, "--on-expiry: expected drop, dead-letter"),
    ],
)
def test_nothing_changes(
    session: Session, before: Any, service: Service, command: str, options: tuple[str, ...], status: int, says: str
) -> None:
    session.peer.send_octets(frame(None))  # all of these may last longer than the service waits for a sign of life
    done = service.command(command, "set", ADDRESS if command == "address" else GROUP, *options)
    assert (done.returncode, done.stdout) == (status, "")
    assert says in done.stderr
    assert _policies(service) == before


def test_a_ladder_that_cannot_be_makes_no_address(service: Service) -> None:
    done = service.command("address", "add", "never", "--retry", "ladder 1s 9")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--retry: the wait '9'" in done.stderr
    service.cli("address", "show", "never", status=1)


def test_the_service_goes_by_those_that_were_in_force(session: Session, service: Service, ask: Ask) -> None:
    """It looks for changes after the refusals: address and group wait as before, and so do checks."""
    service.cli("address", "set", ADDRESS, "--retry", "ladder 1s 9", "--check-most", "9", status=2)
    service.cli("group", "set", GROUP, "--max-attempts", "1", "--retry", "soon", status=2)
    _known(session)
    consumers = [session.receiver(name, credit=1) for name in (ADDRESS, GROUP)]
    post(session, ADDRESS, b"x")
    for consumer in consumers:
        consumer.take().disposition(Modified(delivery_failed=True))
    deadline = time.monotonic() + PATIENCE
    while ask(_WAITS) != [("", 1), ("billing", 2)]:
        assert time.monotonic() < deadline, ask(_WAITS)
        session.sync()
    control = session.control(properties={Symbol("coordinator:producer-group"): "shop"})
    txn = control.declare()
    assert isinstance(session.sender(ADDRESS).outcome(data(b"x"), txn=txn), TransactionalState)
    assert ask(_TERMS, txn) == [(500, 7_000, 3)]
    control.roll_back(txn)
