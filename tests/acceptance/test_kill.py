"""Kill -9 of the service, and of its worker alone, at random moments under transacted load; 50 times with
``COORDINATOR_TEST_KILLS=50``.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from store.embedded.running import running_url
from tests.acceptance.engine_client import Client
from tests.acceptance.history import Consumer, History, Mover, Producer, Worker, decisions, left
from tests.fix_compiled import BOTH_RULES
from tests.fix_night import by_night
from tests.fix_service import Service
from tests.workers import pid_of_worker

pytestmark = BOTH_RULES

#: COORDINATOR_TEST_KILLS: how many in a long run.
KILLS = [int(os.environ.get("COORDINATOR_TEST_KILLS", "8")), by_night(20)]


def _start_load(history: History, service: Service) -> list[Worker]:
    kinds: list[type[Worker]] = [Producer, Producer, Producer, Consumer, Consumer, Mover]
    load = [kind(history, lambda: service.port, f"{kind.__name__}-{n}", n) for n, kind in enumerate(kinds)]
    for worker in load:
        worker.start()
    return load


@pytest.mark.rule("T7", "T8", "T11", "T13", "H4", "H5", "H13")
@pytest.mark.parametrize("kills", KILLS)
def test_nothing_acknowledged_is_lost_and_nothing_rolled_back_is_seen(
    own_service: Service, record_property: Callable[[str, object], None], kills: int
) -> None:
    service = own_service
    dice = random.Random(50)
    history = History()
    worker = pid_of_worker(service)
    load = _start_load(history, service)
    for number in range(kills):
        time.sleep(dice.uniform(0.02, 0.6))
        seen = len(service.log_lines())
        history.kills += 1
        if number % 2:
            os.kill(worker, signal.SIGKILL)
        else:
            service.kill()
            service.restart()
        worker = pid_of_worker(service, seen)
    time.sleep(1.0)
    history.stopping = True
    for thread in load:
        thread.join(60)
        assert not thread.is_alive(), thread.name
    client = Client(service.port, "end")
    for thread in load:
        thread.resolve(client)
    # what was asked again gets the same answer as before
    for txn in history.txns:
        if txn.known is not None and (txn.posted or txn.retired):
            again = client.discharge(txn.txn_id, fail=txn.wish == "rollback")
            assert again.accepted == txn.known.accepted, txn
    url = running_url(service.data_dir)
    there = left(client, url)
    client.close()
    record_property("history", history.summary())
    found = history.violations(there, decisions(url))
    assert not found, "\n".join(found)
    assert len(history.seen) > 10 * kills
    assert any(txn.answer is None and txn.committed for txn in history.txns), "no commit's answer was ever lost"
