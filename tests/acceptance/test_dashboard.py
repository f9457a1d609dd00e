"""The queries of ``docs/how-to/dashboard.json``, asked of a Prometheus that scrapes two services of one store (H19)."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.fix_prometheus import Prometheus, Sample, scraping
from tests.fix_service import PATIENCE, REPOSITORY, Service, running_service
from tests.fix_wire import BeginAt
from tests.wire.checkable import in_group, named
from tests.wire.frames import Accepted, Rejected, Released
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import dead_letters, post
from tests.wire.types import UInt

pytestmark = pytest.mark.rule("H19")


_OF_WORKERS = re.compile("coordinator_(connections|links|batch|commit|checks|build|look)_?")


class Query(NamedTuple):
    title: str
    legend: str
    expression: str

    @property
    def of_workers(self) -> bool:
        """Whether each service tells of its own processes, not of the store."""
        return _OF_WORKERS.search(self.expression) is not None

    def told_by(self, service: str) -> str:
        """The same of what one service has told."""
        own = rf'instance="{service}"'
        return re.sub(
            r"(coordinator_\w+)(\{)?", lambda at: f"{at[1]}{{{own}" + (", " if at[2] else "}"), self.expression
        )


def _queries() -> list[Query]:
    dashboard = json.loads((REPOSITORY / "docs/how-to/dashboard.json").read_text("utf-8"))
    return [
        Query(panel["title"], each["legendFormat"], each["expr"].replace("$__rate_interval", "1m"))
        for panel in dashboard["panels"]
        for each in panel.get("targets", ())
    ]


#: What is 0 where all is well, by the name in the legend.
_NONE = {
    *("parts that failed", "groups estimated", "groups paused", "silent instances", "on their way"),
    *("worker {{worker}}", "disk low", "deliveries held by them"),
}
#: What has no panel: how a reconciliation, or a watch, came out; and spans, which are told where a collector is named.
_ELSEWHERE = re.compile("coordinator_(findings|reconciled|watch|spans)_?")
_NAMES = re.compile("`(coordinator_[a-z_]+)`")
_QUERIES = _queries()


def test_each_metric_has_a_panel() -> None:
    text = (REPOSITORY / "docs/how-to/watch-it-run.md").read_text("utf-8")
    metrics = [
        name for line in text.splitlines() if line.startswith("| `coordinator_") for name in _NAMES.findall(line)
    ]
    shown = "\n".join(query.expression for query in _QUERIES)
    assert len(metrics) > 20
    assert [name for name in metrics if name not in shown and not _ELSEWHERE.match(name)] == []


@pytest.fixture(scope="module")
def services(module_database_url: str) -> Iterator[list[Service]]:
    settings = {"database_url": module_database_url, "metrics.listen": "http://127.0.0.1:0"}
    with running_service(settings) as one, running_service(settings) as other:
        yield [one, other]


def _places(services: list[Service]) -> list[str]:
    lines = [[line for line in each.log_lines() if line.get("event") == "metrics"] for each in services]
    return [urlsplit(each[-1]["listen"][0]).netloc for each in lines]


@pytest.fixture(scope="module")
def prometheus(services: list[Service], prometheus_program: str) -> Iterator[Prometheus]:
    with scraping(prometheus_program, _places(services)) as found:
        yield found


def _stays(session: Session) -> None:
    """One of each thing that waits."""
    consumers = [session.receiver(each) for each in ("dashboard", "dashboard::billing")]
    post(session, "dashboard", b"1", b"2", b"3")
    for consumer in consumers:
        consumer.take()
    post(session, "dashboard-bad", b"bad")
    session.receiver("dashboard-bad", credit=1).take().disposition(Rejected())
    dead_letters(session, "dashboard-bad")
    session.sender("dashboard").outcome(data(b"open"), txn=session.control().declare())
    checker = session.receiver("$check/dashboard-asked", credit=1)
    for group in ("dashboard-asked", "dashboard-away"):
        control = in_group(session, group)
        at_once = named(b"left", check_immunity_ms=UInt(0))
        session.sender("dashboard-left").outcome(at_once, txn=control.declare())
        control.detach()
    checker.take().disposition(Released())


def _turns(session: Session) -> None:
    """One of each thing that is counted."""
    control, sender = session.control(), session.sender("dashboard-turns")
    for fail in (False, True):
        txn = control.declare()
        sender.outcome(data(b"x"), txn=txn)
        assert control.discharge(txn, fail=fail) == Accepted()
    checker = session.receiver("$check/dashboard-turns", credit=2)
    for outcome in (Accepted(), Released()):
        control = in_group(session, "dashboard-turns")
        txn = control.declare()
        sender.outcome(named(b"x", check_immunity_ms=UInt(0)), txn=txn)
        control.detach()
        checker.take().disposition(outcome)
    in_group(session, "dashboard-turns").roll_back(txn)
    checker.detach()


def _wrong(query: Query, found: list[Sample]) -> bool:
    """Whether a panel would be empty, or a line of it without its name."""
    known = {label for each in found for label in each.labels}  # a label that is empty is none: the default group's
    if not found or not known.issuperset(re.findall(r"{{(\w+)}}", query.legend)):
        return True
    values = [each.value for each in found]
    return not all(map(math.isfinite, values)) or (max(values) <= 0 and query.legend not in _NONE)


#: What stays, by title and legend: the figures of the store, once.
_STAYING = {
    ("Dead letters", "waiting"): {(): 1},
    ("Dead letters, by address", "{{address}}"): {("%DLQ%dashboard-bad",): 1},
    ("Messages in flight, by group", "{{address}} {{group}}"): {("dashboard", ""): 1, ("dashboard", "billing"): 1},
    ("Undecided transactions and checks", "{{kind}}"): {("plain",): 1, ("checkable",): 2},
    ("Undecided transactions and checks", "checks sent for them"): {(): 1},
    ("Undecided messages, by address", "{{address}}"): {("dashboard-left",): 2},
    ("Checks due", "due"): {(): 1},
}


def _lines(query: Query, found: list[Sample]) -> dict[tuple[str, ...], float]:
    """The values above 0, by the labels in the legend."""
    labels = re.findall(r"{{(\w+)}}", query.legend)
    return {tuple(each.labels.get(label, "") for label in labels): each.value for each in found if each.value > 0}


def _counted_twice(prometheus: Prometheus, query: Query, places: list[str]) -> bool:
    """Whether two services that tell of one store show what neither of them tells."""
    now = time.time()
    shown, *alone = (
        _lines(query, prometheus.query(re.sub(r"rate\((.*?)\[1m\]\)", r"\1", each), now))  # the counts themselves
        for each in (query.expression, *map(query.told_by, places))
    )
    told = [[each.get(line, 0.0) for each in alone] for line in shown]
    return not all(min(values) <= value <= max(values) for value, values in zip(shown.values(), told, strict=True))


def _until_none(found: Callable[[], Sequence[object]]) -> None:
    deadline = time.monotonic() + PATIENCE
    while wrong := found():
        assert time.monotonic() < deadline, wrong
        time.sleep(0.5)


@pytest.mark.night
def test_each_query_finds_what_clients_do_once(
    services: list[Service], prometheus: Prometheus, begin_at: BeginAt
) -> None:
    places = _places(services)
    _until_none(
        lambda: [each for each in places if not prometheus.query(f'coordinator_store_up{{instance="{each}"}} == 1')]
    )
    session = begin_at(services[0])
    _stays(session)
    turns = 0

    def empty() -> list[Query]:
        nonlocal turns
        _turns(session)
        turns += 1
        return [query for query in _QUERIES if _wrong(query, prometheus.query(query.expression))]

    _until_none(empty)

    def late() -> list[Sample]:
        """Services that have not told of the last turn yet: each has two commits and two rollbacks."""
        told = prometheus.query("sum by (instance) (coordinator_decisions_total)")
        assert len(told) == len(places)
        return [each for each in told if each.value != 4 * turns]

    _until_none(late)
    of_store = [query for query in _QUERIES if not query.of_workers]
    _until_none(lambda: [query for query in of_store if _counted_twice(prometheus, query, places)])

    def differing() -> list[tuple[object, ...]]:
        shown = [(query, _lines(query, prometheus.query(query.expression))) for query in of_store]
        assert _STAYING.keys() <= {query[:2] for query, _ in shown}
        return [(query, lines) for query, lines in shown if lines != _STAYING.get(query[:2], lines)]

    _until_none(differing)
