"""What workers tell of themselves for the metrics (H19): counters never fall, and telling never waits."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from coordinator.process.children import Offered
from coordinator.process.worker_reports import Workers
from store.figures import BATCH_ROWS, COMMIT_SECONDS, Histogram

pytestmark = pytest.mark.rule("H19")


def _figures(count: int, connections: int = 0) -> dict[str, Any]:
    return {
        "connections": connections,
        "links": 2 * connections,
        "rows": [count, *[0] * len(BATCH_ROWS)],
        "rows_total": count,
        "seconds": [*[0] * len(COMMIT_SECONDS), count],
        "seconds_total": count * 20.0,
        "checks": [3 * count, 2 * count, count],
        "spans": [count, 0],
    }


def test_what_a_worker_that_died_has_counted_stays() -> None:
    workers = Workers()
    workers.receive(0, 10, _figures(1, connections=4))
    workers.receive(1, 11, _figures(5, connections=1))
    workers.receive(0, 10, _figures(2, connections=3))
    assert workers.counted().checks == [21, 14, 7]
    workers.receive(0, 12, _figures(1, connections=2))  # another process in its place
    counted = workers.counted()
    assert (counted.rows[0], counted.rows_total) == (8, 8)
    assert (counted.seconds[-1], counted.seconds_total) == (8, 160.0)
    assert counted.checks == [24, 16, 8]
    assert (workers.now("connections"), workers.now("links")) == ({0: 2, 1: 1}, {0: 4, 1: 2})


def test_a_value_is_in_the_range_that_it_does_not_exceed() -> None:
    histogram = Histogram((1, 10))
    for value in (0, 1, 1.5, 10, 11, 1000):
        histogram.add(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 2], 1023.5)


def test_one_that_reads_nothing_is_not_waited_for_and_gets_whole_lines() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        offered = Offered(ours)
        for number in range(5000):
            offered.offer({"number": number, "text": "x" * 1000})
        got = b""
        for _ in range(20):
            theirs.settimeout(0.1)
            try:
                while octets := theirs.recv(1 << 20):
                    got += octets
            except TimeoutError:
                offered.offer({"number": -1})
        lines = [json.loads(line) for line in got.splitlines()]
    numbers = [line["number"] for line in lines]
    first = numbers[: numbers.index(-1)]
    assert first == list(range(len(first)))
    assert 0 < len(first) < 5000
    assert set(numbers[len(first) :]) == {-1}


def test_one_that_has_ended_is_no_error() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        Offered(ours).offer({"number": 1})
