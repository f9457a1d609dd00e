"""Failed deliveries that wait before the next (rules D2 to D5), by policy or as the consumer asks.

That nothing comes before its time is asserted by what the store has noted, or by what comes meanwhile; nothing here
depends on how late it comes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fix_service import Service, running_service
from tests.fix_wire import Ask, Begin, BeginAt
from tests.wire.frames import Accepted, Modified, Rejected
from tests.wire.messages import Header, section
from tests.wire.peer import PATIENCE, Session
from tests.wire.queues import dead_letters, post, select
from tests.wire.types import Int, Long, Raw, Symbol, UInt

pytestmark = pytest.mark.rule("D2")

FAILED = Modified(delivery_failed=True)
LATER = "ladder 1h"


def _level(level: Any, *, failed: bool = True) -> Modified:
    return Modified(delivery_failed=failed, message_annotations={Symbol("x-opt-delay-level"): level})


def _add(service: Service, address: str, *options: str) -> None:
    service.cli("address", "add", address, *options)


_WAITS = """
    select e.attempts, e.acquired, extract(epoch from e.available_at - o.decided_at)::float8
      from coordinator.entry e join coordinator.consumer_group g on g.id = e.group_id
      join coordinator.address a on a.id = g.address_id
      join lateral (select max(decided_at) as decided_at from coordinator.op
                     where e.half_id = any(half_ids) and decision = 'modify') o on true
     where a.name = %s and e.available_at is not null and e.lease = 0"""


_READY_AGAIN = """
    select count(*) from coordinator.entry e join coordinator.consumer_group g on g.id = e.group_id
      join coordinator.address a on a.id = g.address_id
     where a.name = %s and e.available_at is null and e.attempts = 1"""


def _wait_of(ask: Ask, session: Session, address: str) -> tuple[int, float]:
    """Attempts, and seconds from the last outcome until it may be delivered again, of the one that waits."""
    deadline = time.monotonic() + PATIENCE
    while not (rows := ask(_WAITS, address)):
        assert time.monotonic() < deadline, "nothing waits"
        session.sync()
    ((attempts, acquired, seconds),) = rows
    assert acquired
    return attempts, seconds


@pytest.mark.rule("D3", "D6")
def test_a_failed_delivery_waits_and_holds_up_nothing(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    """The levels of the ladder one after the other; others are delivered meanwhile. The count is kept."""
    _add(service, address, "--retry", "ladder 300ms 2h")
    session = begin()
    post(session, address, b"1", b"2")
    consumer = session.receiver(address, credit=3)
    first, second = consumer.take(), consumer.take()
    first.disposition(FAILED)
    second.disposition(Accepted())
    again = consumer.take()
    assert (again.body, again.count, again.message.header.first_acquirer) == (b"1", 1, False)
    again.disposition(FAILED)
    attempts, seconds = _wait_of(ask, session, address)
    assert attempts == 2
    assert 7100 < seconds < 7201
    post(session, address, b"3")
    assert consumer.bodies() == [b"3"]


def test_the_waits_grow_exponentially(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    _add(service, address, "--retry", "exponential 100ms 1000 1h")
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address)
    consumer.take().disposition(FAILED)
    consumer.take().disposition(FAILED)
    attempts, seconds = _wait_of(ask, session, address)
    assert attempts == 2
    assert 90 < seconds < 101


@pytest.mark.rule("D5")
def test_what_a_lost_link_had_comes_back_at_once_in_order(begin: Begin, service: Service, address: str) -> None:
    """It may not have failed at all: a policy is for what a consumer says has failed."""
    _add(service, address, "--retry", LATER)
    session, lost = begin(), begin()
    post(session, address, b"1", b"2", b"3")
    consumer = lost.receiver(address, credit=2)
    consumer.take()
    consumer.take()
    lost.peer.close_socket()
    found = session.receiver(address).take_many(3)
    assert [(each.body, each.count) for each in found] == [(b"1", 1), (b"2", 1), (b"3", 0)]


@pytest.mark.rule("P11")
def test_released_and_undeliverable_here_do_not_wait(begin: Begin, service: Service, address: str) -> None:
    """What one consumer cannot take, another may take now."""
    _add(service, address, "--retry", LATER)
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address)
    consumer.take().disposition(Modified(delivery_failed=True, undeliverable_here=True))
    assert consumer.drain() == []
    found = session.receiver(address, name="other").take()
    assert (found.body, found.count) == (b"x", 1)


@pytest.mark.rule("P11", "P18")
@pytest.mark.parametrize(
    ("kind", "retry", "selector"),
    [("normal", "ladder 300ms", None), ("normal", "ladder 300ms", "1 = 1"), ("fifo", "immediate", None)],
)
def test_what_a_link_cannot_take_is_not_sent_there_after_a_wait(
    begin: Begin, service: Service, ask: Ask, address: str, kind: str, retry: str, selector: str | None
) -> None:
    """It has another id then. On an address of kind fifo it comes back at once."""
    _add(service, address, "--kind", kind, "--retry", retry)
    session = begin()
    post(session, address, b"x")
    refusing = select(session, address, selector) if selector else session.receiver(address, name="refusing")
    refusing.credit(2)
    refusing.take().disposition(Modified(undeliverable_here=True))
    failing = session.receiver(address, name="failing", credit=1)
    failing.take().disposition(FAILED)
    deadline = time.monotonic() + PATIENCE
    while ask(_READY_AGAIN, address) != [(1,)]:
        assert time.monotonic() < deadline, "it waits for ever"
        session.sync()
    assert refusing.drain() == []
    failing.credit(1)
    assert failing.take().count == 1


@pytest.mark.rule("D4")
def test_the_last_failure_does_not_wait(begin: Begin, service: Service, address: str) -> None:
    _add(service, address, "--retry", "ladder 200ms 1h", "--max-attempts", "2")
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address)
    consumer.take().disposition(FAILED)
    consumer.take().disposition(FAILED)
    letter = dead_letters(session, address).take()
    assert letter.message.annotations["x-opt-delivery-count"] == 2
    assert letter.message.annotations["x-opt-last-error"] == "attempts used up: 2 of 2"


@pytest.mark.rule("D4")
def test_a_rejected_message_does_not_wait(begin: Begin, service: Service, address: str) -> None:
    _add(service, address, "--retry", LATER)
    session = begin()
    post(session, address, b"x")
    session.receiver(address).take().disposition(Rejected())
    assert dead_letters(session, address).take().body == b"x"


@pytest.mark.parametrize(
    ("level", "attempts", "seconds"),
    [(Long(5), 1, 60), (Int(2), 1, 5), (Long(99), 1, 7200)],
)
def test_a_consumer_asks_for_a_level(
    begin: Begin, ask: Ask, address: str, level: Any, attempts: int, seconds: float
) -> None:
    """RocketMQ's ``delayLevelWhenNextConsume``, under the policy that says nothing else; beyond the last, the last."""
    session = begin()
    post(session, address, b"x")
    session.receiver(address).take().disposition(_level(level))
    found, wait = _wait_of(ask, session, address)
    assert found == attempts
    assert seconds - 5 < wait < seconds + 1


def test_a_level_without_a_failure_does_not_count(begin: Begin, ask: Ask, address: str) -> None:
    session = begin()
    post(session, address, b"x")
    session.receiver(address).take().disposition(_level(Int(4), failed=False))
    attempts, wait = _wait_of(ask, session, address)
    assert attempts == 0
    assert 25 < wait < 31


@pytest.mark.rule("D4")
def test_a_level_below_0_is_the_dead_letters_at_once(begin: Begin, address: str) -> None:
    session = begin()
    post(session, address, b"x")
    session.receiver(address).take().disposition(_level(Int(-1)))
    letter = dead_letters(session, address).take()
    assert letter.body == b"x"
    assert "x-opt-delay-level -1" in letter.message.annotations["x-opt-last-error"]


@pytest.mark.parametrize("level", ["5", True, None, Int(0), [Int(1)] * 1000])
def test_a_level_that_is_none_says_nothing(begin: Begin, address: str, level: Any) -> None:
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address)
    consumer.take().disposition(_level(level))
    assert consumer.take().count == 1


@pytest.mark.parametrize("level", [b"\xa1\x01\xff", b"\xa3\x01\xff", b"\x00\xa1\x01\xff\x40"])
def test_nor_does_one_that_cannot_be_read(begin: Begin, address: str, level: bytes) -> None:
    """Text in no encoding, or a value that is described by it; the next consumer does not get it either."""
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address)
    annotations = {Symbol("x-opt-why"): "late", Symbol("x-opt-delay-level"): Raw(level)}
    consumer.take().disposition(Modified(delivery_failed=True, message_annotations=annotations))
    again = consumer.take()
    assert again.octets.startswith(section(Header.CODE, [False, None, None, False, UInt(1)]))
    assert again.message.annotations == {"x-opt-why": "late"}


def test_in_a_transaction_it_waits_from_the_commit_on(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    _add(service, address, "--retry", LATER)
    session = begin()
    control = session.control()
    post(session, address, b"committed", b"rolled back")
    consumer = session.receiver(address, credit=2)
    committed, undone = consumer.take(), consumer.take()
    txn, other = control.declare(), control.declare()
    committed.retire(txn, FAILED)
    undone.retire(other, FAILED, settled=False)
    session.sync()
    assert ask(_WAITS, address) == []
    control.commit(txn)
    control.roll_back(other)
    attempts, seconds = _wait_of(ask, session, address)
    assert attempts == 1
    assert 3500 < seconds < 3601
    undone.disposition(Accepted())  # still with its consumer (T27)


@pytest.mark.rule("D1")
def test_each_group_of_a_topic_waits_for_itself(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    _add(service, address, "--topic", "--retry", LATER)
    session = begin()
    failing, other = session.receiver(f"{address}::failing", credit=1), session.receiver(f"{address}::other", credit=1)
    post(session, address, b"x")
    failing.take().disposition(FAILED)
    assert other.take().count == 0
    assert _wait_of(ask, session, address)[0] == 1


def test_a_policy_changes_while_the_service_runs(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    """Consumers that are there stay; it counts for outcomes from then on."""
    session = begin()
    consumer = session.receiver(address, credit=1)
    post(session, address, b"x")
    consumer.take().disposition(FAILED)
    second = consumer.take()
    service.cli("address", "set", address, "--retry", LATER, "--max-attempts", "9")
    for number in range(2):  # the worker asks for the policies before it asks for the second of these
        session.sender(f"{address}-{number}")
    second.disposition(FAILED)
    attempts, seconds = _wait_of(ask, session, address)
    assert attempts == 2
    assert seconds > 3500
    shown = json.loads(service.cli("address", "show", address, "--json"))
    assert (shown["retry"], shown["max_attempts"]) == (LATER, 9)


@pytest.fixture
def own() -> Iterator[Service]:
    with running_service({"addresses.patterns": '[{"match": "shortly*", "retry": "ladder 1s"}]'}) as service:
        yield service


@pytest.mark.rule("D6")
def test_a_wait_outlives_the_service(own: Service, begin_at: BeginAt) -> None:
    """By a pattern of the settings; killed while it waits, the service delivers it afterwards, counted."""
    session = begin_at(own)
    post(session, "shortly", b"x")
    delivery = session.receiver("shortly").take()
    delivery.disposition(FAILED, settled=False)
    delivery.settlement()
    own.kill()
    own.start()
    found = begin_at(own).receiver("shortly").take()
    assert (found.body, found.count) == (b"x", 1)
