"""Policies that a consumer group has of its own (rules D2, D4), given and taken back while the service runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.fix_service import Service, running_service
from tests.fix_wire import Ask, Begin, BeginAt
from tests.wire.frames import Modified
from tests.wire.links import Receiver
from tests.wire.peer import PATIENCE, Session
from tests.wire.queues import dead_letters, post

pytestmark = pytest.mark.rule("D2")

FAILED = Modified(delivery_failed=True)

_ATTEMPTS = """
    select g.name, e.attempts, e.available_at is not null
      from coordinator.entry e join coordinator.consumer_group g on g.id = e.group_id
      join coordinator.address a on a.id = g.address_id where a.name = %s and e.attempts > 0 order by 1"""


def _attached(*receivers: Receiver) -> None:
    for each in receivers:
        assert each.answer.source is not None, each.error


def _known(session: Session, address: str) -> None:
    """The worker asks for what was changed before it asks for the second of these."""
    for number in range(2):
        session.sender(f"{address}-{number}-{time.monotonic_ns()}")


@pytest.mark.rule("D1", "D3")
def test_each_group_retries_by_its_own_policy(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    """The group waits an hour, the queue itself not at all."""
    session = begin()
    own = session.receiver(f"{address}::own", credit=2)
    default = session.receiver(address, credit=2)
    _attached(own, default)
    service.cli("group", "set", f"{address}::own", "--retry", "ladder 1h")
    _known(session, address)
    post(session, address, b"x")
    own.take().disposition(FAILED)
    default.take().disposition(FAILED)
    assert default.take().count == 1
    deadline = time.monotonic() + PATIENCE
    while ask(_ATTEMPTS, address) != [("", 1, False), ("own", 1, True)]:
        assert time.monotonic() < deadline, "the group does not wait"
        session.sync()


@pytest.mark.rule("D4")
def test_the_attempts_of_a_group_are_its_own_until_they_are_taken_back(
    begin: Begin, service: Service, address: str
) -> None:
    service.cli("address", "add", address, "--topic", "--max-attempts", "2")
    session = begin()
    own = session.receiver(f"{address}::{address}", credit=9)
    _attached(own)
    service.cli("group", "set", f"{address}::{address}", "--max-attempts", "1")
    _known(session, address)
    post(session, address, b"once")
    own.take().disposition(FAILED)
    letters = dead_letters(session, address)
    assert letters.take().message.annotations["x-opt-last-error"] == "attempts used up: 1 of 1"
    service.cli("group", "set", f"{address}::{address}", "--max-attempts", "inherit")
    _known(session, address)
    post(session, address, b"twice")
    own.take().disposition(FAILED)
    own.take().disposition(FAILED)
    assert letters.take().message.annotations["x-opt-last-error"] == "attempts used up: 2 of 2"


@pytest.mark.rule("H18")
def test_policies_of_groups_are_listed(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    _attached(begin().receiver(f"{address}::own"))
    said = service.cli("group", "set", f"{address}::own", "--retry", " exponential 1s  2 10m", "--on-expiry", "drop")
    assert said == f"'{address}::own': on_expiry drop, retry exponential 1s 2 10m\n"
    service.cli("group", "set", address, "--max-attempts", "7")
    wanted = ("group", "on_expiry", "max_attempts", "retry", "own_policies")
    lines = [[line[name] for name in wanted] for line in json.loads(service.cli("group", "list", address, "--json"))]
    assert lines == [
        ["", "drop", 7, "immediate", ["max_attempts"]],
        ["own", "drop", 16, "exponential 1s 2 10m", ["on_expiry", "retry"]],
    ]
    viewed = "select retry, own_policies from coordinator.groups where address = %s order by consumer_group"
    assert ask(viewed, address) == [("immediate", ["max_attempts"]), ("exponential 1s 2 10m", ["on_expiry", "retry"])]
    said = service.cli("group", "set", f"{address}::own", "--retry", "inherit", "--on-expiry", "inherit")
    assert said == f"'{address}::own': on_expiry inherit, retry inherit\n"
    assert "own-policies" in service.cli("group", "list", address).splitlines()[0]
    assert [each["own_policies"] for each in json.loads(service.cli("group", "list", address, "--json"))] == [
        ["max_attempts"],
        [],
    ]


@pytest.mark.rule("S7")
@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("none", "--retry", "ladder"), 1, "there is no address 'none'"),
        (("some::none", "--retry", "ladder"), 1, "the address 'some' has no group 'none'"),
        (("topic", "--retry", "ladder"), 1, "'topic' is a topic, which has no default group: name a subscription"),
        (("some",), 2, "give at least one of --on-expiry, --max-attempts and --retry"),
        (("some", "--retry", "soon"), 2, "--retry: the retry policy 'soon': expected immediate"),
        (("some", "--retry", "ladder 1s 9"), 2, "the wait '9'"),
        (("some", "--max-attempts", "0"), 2, "--max-attempts: expected a number from 1 to 32767 or inherit, not '0'"),
        (("some", "--max-attempts", "³"), 2, "--max-attempts: expected a number from 1 to 32767 or inherit"),
        (("some", "--on-expiry", "burn"), 2, "--on-expiry: expected drop, dead-letter or inherit, not 'burn'"),
    ],
)
def test_a_policy_that_cannot_be(addresses: Service, arguments: tuple[str, ...], status: int, says: str) -> None:
    done = addresses.command("group", "set", *arguments)
    assert done.returncode == status
    assert says in done.stderr


@pytest.fixture(scope="module")
def addresses(service: Service) -> Service:
    service.cli("address", "add", "some")
    service.cli("address", "add", "topic", "--topic")
    return service


@pytest.fixture
def two() -> Iterator[Service]:
    with running_service({"workers": "2"}) as service:
        yield service


@pytest.mark.rule("D4")
@pytest.mark.parametrize("changed", [("group", "set", "orders::billing"), ("address", "set", "orders")], ids=" ".join)
def test_a_change_reaches_every_worker(two: Service, begin_at: BeginAt, changed: tuple[str, ...]) -> None:
    """Whichever worker a consumer is at: each has read the change when it answers what it is asked after it."""
    sessions = [begin_at(two) for _ in range(6)]
    consumers = [session.receiver("orders::billing", credit=1) for session in sessions]
    _attached(*consumers)
    two.cli(*changed, "--max-attempts", "1")
    for session in sessions:
        _known(session, "other")
    post(sessions[0], "orders", *(b"%d" % number for number in range(6)))
    for consumer in consumers:
        consumer.take().disposition(FAILED)
    letters = dead_letters(sessions[0], "billing")
    assert sorted(letter.body for letter in letters.take_many(6)) == [b"%d" % number for number in range(6)]
