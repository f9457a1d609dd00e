"""Patroni decides which server leads: what is acknowledged is kept over each of its decisions (T11, F2)."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.fix_patroni import Cluster
from tests.fix_service import PATIENCE, Service, running
from tests.wire.messages import data
from tests.wire.peer import Peer

pytestmark = [pytest.mark.night, pytest.mark.rule("T11", "F2")]


class Load:
    """Commits one message after the other, with another connection where one is lost. ``acknowledged``: which."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ends = False
        self._number = 0
        self.acknowledged: list[bytes] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends:
            with suppress(AssertionError, OSError):
                self._commit()
            time.sleep(0.1)

    def _commit(self) -> None:
        peer = Peer(self._service.port)
        try:
            peer.open()
            session = peer.begin()
            control, sender = session.control(), session.sender("orders")
            while not self._ends:
                self._number += 1
                body = b"%d" % self._number
                txn = control.declare()
                sender.outcome(data(body), txn=txn)
                control.commit(txn)
                self.acknowledged.append(body)
        finally:
            peer.close_socket()

    def goes_on(self) -> None:
        """Wait until more is acknowledged."""
        seen, deadline = len(self.acknowledged), time.monotonic() + 2 * PATIENCE
        while len(self.acknowledged) < seen + 10:
            assert time.monotonic() < deadline, "no commit is answered"
            time.sleep(0.1)

    def end(self) -> None:
        self._ends = True
        self._thread.join()


@contextmanager
def _load(cluster: Cluster) -> Iterator[Load]:
    """At its end what was acknowledged is there, and nothing is twice."""
    given = {"database_url": cluster.url, "login.anonymous": "always"}
    with running(lambda folder: Service(folder, given)) as service:
        load = Load(service)
        try:
            load.goes_on()
            yield load
            load.goes_on()
        finally:
            load.end()
        peer = Peer(service.port)
        peer.open()
        bodies = peer.begin().receiver("orders", credit=len(load.acknowledged) + 1000).bodies()
    assert max(Counter(bodies).values()) == 1
    assert set(load.acknowledged) - set(bodies) == set()


def test_a_switchover(cluster: Cluster) -> None:
    with _load(cluster) as load:
        for _ in range(2):
            cluster.switch_over()
            load.goes_on()
            cluster.follows()


def test_a_leader_that_stands_still_and_comes_back(cluster: Cluster) -> None:
    """Another leads meanwhile, and the old one follows it once it has seen that."""
    with _load(cluster) as load:
        old = cluster.leader()
        old.signal(signal.SIGSTOP)
        cluster.leader(other=old)
        load.goes_on()
        old.signal(signal.SIGCONT)
        load.goes_on()
        cluster.follows()
