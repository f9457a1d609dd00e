"""How long the clients of a killed worker wait: ``python -m tests.benchmarks.kills``, 20 kills of the only worker.

A client connects, posts in a transaction and commits; the worker is killed; it connects again at once, as often as it
takes, until a commit is answered. The time from the kill to that answer is what is told.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import time

from tests.acceptance.engine_client import Client, Lost
from tests.fix_service import Service, running_service

KILLS = 20


def _commit(service: Service, name: str) -> Client:
    """A client whose first commit was answered."""
    while True:
        try:
            client = Client(service.port, name)
            sender = client.sender("orders")
            txn = client.declare()
            client.post(sender, "m", txn=txn)
            if client.discharge(txn, fail=False).accepted:
                return client
            client.close()
        except (Lost, OSError):
            time.sleep(0.005)


def measure(kills: int = KILLS, workers: int = 1) -> list[float]:
    """Seconds, one for each kill."""
    found = []
    with running_service({"workers": str(workers)}) as service:
        client = _commit(service, "client-0")
        for number in range(kills):
            time.sleep(2)  # as kills by faults come: not one into the start after the other
            ready = [line for line in service.log_lines() if line.get("event") == "worker ready"]
            begun = time.monotonic()
            os.kill(ready[-1]["pid"], signal.SIGKILL)
            with contextlib.suppress(Lost, OSError):
                client.until(lambda: False)
            client = _commit(service, f"client-{number + 1}")
            found.append(time.monotonic() - begun)
        client.close()
    return found


def main() -> int:
    found = sorted(measure())
    print(
        f"{len(found)} kills; seconds until a commit is answered: median {statistics.median(found):.2f}, "
        f"p90 {found[int(len(found) * 0.9) - 1]:.2f}, most {found[-1]:.2f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
