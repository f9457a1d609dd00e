"""A client that commits all the time, and must be served while others do their worst."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from store.recovery import STALE_SECONDS
from tests.acceptance.engine_client import Client
from tests.fix_service import Service


class Neighbour(threading.Thread):
    """Commits one transaction after the other, and notes how long the slowest took."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._client = Client(port, "neighbour")
        self._sender = self._client.sender("neighbour")
        self._ended = threading.Event()
        self.commits = 0
        self.slowest = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                begun = time.monotonic()
                txn = self._client.declare()
                self._client.post(self._sender, "x", txn=txn)
                assert self._client.discharge(txn, fail=False).accepted
                self.slowest = max(self.slowest, time.monotonic() - begun)
                self.commits += 1
        except BaseException as error:  # noqa: BLE001 - told by the test's thread
            self.error = error

    def stop(self) -> None:
        self._ended.set()
        self.join()
        self._client.close()


@contextmanager
def neighbour(service: Service) -> Iterator[Neighbour]:
    """Served within the time in which others would give the instance up; and no worker ends meanwhile."""
    seen = len(service.log_lines())
    beside = Neighbour(service.port)
    beside.start()
    try:
        yield beside
        before = beside.commits
        deadline = time.monotonic() + STALE_SECONDS
        while beside.commits < before + 2 and beside.error is None:
            assert time.monotonic() < deadline, "the neighbour is not served"
            time.sleep(0.01)
    finally:
        beside.stop()
    assert beside.error is None, beside.error
    assert beside.slowest < STALE_SECONDS
    events = {line.get("event") for line in service.log_lines()[seen:]}
    assert not events & {"worker ended", "this instance was given up by another", "internal error"}
