"""A message that always fails among many good ones: it delays none, and ends in the dead letters (rules D2 to D4)."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from store.channels import DUE
from store.embedded.running import running_url
from tests.acceptance.fifo import message, post_each, settle
from tests.fix_service import Service, running_service
from tests.fix_wire import Begin
from tests.wire.frames import Accepted, Modified, State
from tests.wire.links import Receiver
from tests.wire.queues import dead_letters

COUNT = 10_000
GROUPS = 100
POISON = 5_000
LADDER = "ladder 1h 2h 3h"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service() as service:
        yield service


def _one_waits(service: Service) -> None:
    """One message waits, for an hour or more; then its time has come."""
    with psycopg.connect(running_url(service.data_dir), autocommit=True) as connection:
        done = connection.execute(
            "update coordinator.entry set available_at = now() where available_at > now() + interval '50 minutes'"
        )
        assert done.rowcount == 1
        connection.execute(f"notify {DUE}".encode())


def _consume(consumer: Receiver, count: int, outcome: State) -> list[int]:
    """So many deliveries: the poison gets its outcome, all others are accepted. What came, in order."""
    found: list[int] = []
    while len(found) < count:
        batch = consumer.take_many(min(100, count - len(found)))
        for delivery in batch:
            delivery.disposition(outcome if delivery.body == POISON else Accepted(), settled=False)
        for delivery in batch:
            delivery.settlement()
        found += [delivery.body for delivery in batch]
    return found


@pytest.mark.rule("D2", "D3", "D4")
@pytest.mark.parametrize("kind", ["normal", "fifo"])
def test_poison_among_ten_thousand(begin: Begin, service: Service, address: str, kind: str) -> None:
    """All others are consumed while it waits, each time anew; on a fifo address those of other message groups."""
    service.cli("address", "add", address, "--kind", kind, "--retry", LADDER, "--max-attempts", "3")
    session = begin()
    sender, consumer = session.sender(address), session.receiver(address)
    failed = Modified(delivery_failed=True)
    for start in range(0, COUNT, 500):
        post_each(sender, *(message(number, f"g{number % GROUPS}") for number in range(start, start + 500)))
    behind = [number for number in range(POISON + 1, COUNT) if kind == "fifo" and number % GROUPS == POISON % GROUPS]
    found = _consume(consumer, COUNT - len(behind), failed)
    assert sorted(found) == sorted(set(range(COUNT)) - set(behind))
    for attempts in (1, 2):
        post_each(sender, *(message(number, "others") for number in range(1000)))
        assert _consume(consumer, 1000, failed) == list(range(1000))
        _one_waits(service)
        (poison,) = consumer.take_many(1)
        assert (poison.body, poison.count) == (POISON, attempts)
        settle(failed, poison)
    letter = dead_letters(session, address).take()
    assert letter.body == POISON
    assert letter.message.annotations["x-opt-delivery-count"] == 3
    assert letter.message.annotations["x-opt-last-error"] == "attempts used up: 3 of 3"
    assert consumer.bodies() == behind
