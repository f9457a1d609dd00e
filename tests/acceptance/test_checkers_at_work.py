"""A checker that is full of checks and answers them slowly keeps those that it has not answered (H11)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_check_back import plant
from tests.fix_service import Service, running_service
from tests.fix_wire import Ask, Begin, decided
from tests.wire.frames import Accepted, Released, State
from tests.wire.messages import data

#: how long a checker may answer none before it is sent others in their place
INTERVAL = 1.5


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"check.immunity_seconds": "0", "check.interval_seconds": f"{INTERVAL}"}) as service:
        yield service


@pytest.mark.rule("H11")
@pytest.mark.parametrize("outcome", [Accepted(), Released()], ids=["a decision", "that it does not know"])
def test_what_a_checker_at_work_has_not_answered_stays_with_it(
    begin: Begin, address: str, ask: Ask, service: Service, outcome: State
) -> None:
    with psycopg.connect(running_url(service.data_dir)) as connection:
        for number in range(130):
            plant(connection, address, address, [data(b"%d" % number)])
    session = begin()
    link = session.receiver(f"$check/{address}", credit=1000)
    checks = link.take_many(100)
    answered = 0
    began = time.monotonic()
    while time.monotonic() < began + 2.5 * INTERVAL:
        checks[answered].disposition(outcome)
        answered += 1
        checks.append(link.take())  # it is full again
        time.sleep(INTERVAL / 8)
    rest = checks[answered:100]
    session.sync()
    assert [each.body for each in rest if session.settlements[each.id]] == []
    rest[-1].disposition(Accepted())
    assert decided(ask, bytes(rest[-1].message.delivery_annotations["x-opt-txn-id"])) == ("commit", "checked")
