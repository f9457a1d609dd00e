"""Patroni decides which server leads: what is acknowledged is kept over each of its decisions (T11, F2)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.committing import Committing
from tests.fix_patroni import Cluster
from tests.fix_service import Service, running

pytestmark = [pytest.mark.night, pytest.mark.rule("T11", "F2")]


@contextmanager
def _committing(cluster: Cluster) -> Iterator[Committing]:
    given = {"database_url": cluster.url, "login.anonymous": "always"}
    with running(lambda folder: Service(folder, given)) as service:
        client = Committing("orders", [service.port])
        try:
            client.goes_on()
            yield client
            client.goes_on()
        finally:
            client.end()
        client.check(service.port)


def test_a_switchover(cluster: Cluster) -> None:
    with _committing(cluster) as client:
        for _ in range(2):
            cluster.switch_over()
            client.goes_on()
            cluster.follows()


def test_a_leader_that_stands_still_and_comes_back(cluster: Cluster) -> None:
    """Another leads meanwhile, and the old one follows it once it has seen that."""
    with _committing(cluster) as client:
        old = cluster.leader()
        old.signal(signal.SIGSTOP)
        cluster.leader(other=old)
        client.goes_on()
        old.signal(signal.SIGCONT)
        client.goes_on()
        cluster.follows()
