"""What the metrics know of a real store: derived from rows, each decision once, and bounded (H19)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Connection, insert, text

from coordinator.process.metrics import REST, label, registry
from coordinator.process.worker_reports import Workers
from store import figures, reasons, recovery, watched
from store.figures import BUCKETS, BY_HAND, MOST_REASONS, OTHER, Decided, FigureReader, Figures, GroupFigures
from store.tables import op
from tests.fix_reports import SEEN_AT, finding, lost
from tests.fix_runs import a_batch, a_run, store_run
from tests.fix_store import Rows

pytestmark = pytest.mark.rule("H19")


def _decided(connection: Connection, since: int) -> Decided:
    found = Decided()
    until = figures.position(connection)
    while since < until:
        since = figures.add_decided(connection, found, since, until)
    return found


def _op(
    rows: Rows, decision: str, reason: str | None = None, instance_id: int | None = 1, seconds: float = 0.0
) -> UUID:
    """The op of a transaction that was declared so long before its decision."""
    txn_id = UUID(bytes=rows.txn_ids.next())
    declared = (txn_id.int >> 80) / 1000
    decided_at = text(f"to_timestamp({declared + seconds!r})")
    values = {"id": txn_id, "txn_id": txn_id, "decision": decision, "reason": reason, "posted": 1}
    rows.connection.execute(insert(op).values(**values, instance_id=instance_id, decided_at=decided_at))
    rows.connection.commit()
    return txn_id


def test_decisions_are_counted_by_reason(database: Connection, rows: Rows) -> None:
    since = figures.position(database)
    told = (
        ("commit", None, 1, reasons.DISCHARGED),
        ("commit", "checked", 1, "checked"),
        ("commit", "asked for by a person", None, BY_HAND),
        ("commit", "application", None, "application"),
        ("rollback", "instance-lost", None, "instance-lost"),
        ("rollback", "", 1, reasons.DISCHARGED),
        ("rollback", "timeout", 1, "timeout"),
        ("rollback", "rollback-only: amqp:not-found", 1, "rollback-only"),
        ("rollback", "Über alles\n", 1, OTHER),
        ("rollback", "x" * 41, 1, OTHER),
        ("rollback", "timeout", None, BY_HAND),
    )
    expected: dict[tuple[str, str], int] = {}
    for decision, reason, instance_id, shown in told:
        _op(rows, decision, reason, instance_id)
        expected[decision, shown] = expected.get((decision, shown), 0) + 1
    # Of a delivery.
    database.execute(
        text("insert into coordinator.op (id, decision) values (:id, 'accept')"),
        {"id": UUID(bytes=rows.txn_ids.next())},
    )
    database.commit()
    assert _decided(database, since).counts == expected


def test_reasons_that_are_told_apart_are_bounded(database: Connection, rows: Rows) -> None:
    since = figures.position(database)
    letters = [f"r{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(MOST_REASONS + 20)]
    for reason in letters:
        _op(rows, "rollback", reason)
    counts = _decided(database, since).counts
    assert len(counts) <= MOST_REASONS + 1
    assert sum(counts.values()) == len(letters)
    assert counts["rollback", OTHER] == 20


def test_the_time_from_declare_to_decision(database: Connection, rows: Rows) -> None:
    since = figures.position(database)
    for seconds in (-1.0, 0.0, 0.005, 0.006, 3.0, 4000.0):
        _op(rows, "commit", seconds=seconds)
    _op(rows, "rollback", seconds=0.2)
    found = _decided(database, since)
    # 0.005 may be a microsecond above, as a float of seconds since 1970 is.
    assert sum(found.times["commit"][:2]) == 4
    assert found.times["commit"][0] >= 2
    assert found.times["commit"][2:] == [int(each in (5.0, None)) for each in (*BUCKETS, None)][2:]
    assert found.times["rollback"].index(1) == BUCKETS.index(0.25)
    assert found.seconds["commit"] == pytest.approx(4003.011, abs=0.001)


def test_a_decision_that_is_committed_late_is_counted_once(database: Connection, rows: Rows, database_url: str) -> None:
    looks = FigureReader(database_url)
    assert looks.read().decided.counts == {}
    with psycopg.connect(database_url) as slow:
        number = UUID(bytes=rows.txn_ids.next())
        slow.execute(
            "insert into coordinator.op (id, decision, txn_id, posted) values (%s, 'commit', %s, 1)", (number, number)
        )
        _op(rows, "rollback", "timeout")
        # What is written after one under way is counted later.
        assert looks.read().decided.counts == {}
        slow.commit()
    counts = {("commit", BY_HAND): 1, ("rollback", "timeout"): 1}
    assert looks.read().decided.counts == counts
    assert looks.read().decided.counts == counts


def test_many_decisions_since_the_last_look_are_counted_in_steps(
    database: Connection, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = figures.position(database)
    monkeypatch.setattr(figures, "_STEP", 2)
    for _ in range(9):
        _op(rows, "commit")
    assert figures.add_decided(database, Decided(), since, since + 9) == since + 2
    assert _decided(database, since).counts == {("commit", reasons.DISCHARGED): 9}


def test_decisions_are_found_by_the_index(database: Connection) -> None:
    """And not by the day or by all that is kept."""
    database.execute(text("set enable_seqscan = off"))
    question = figures._DECIDED.bindparams(since=1, until=2, bounds=[0.0])
    plan = database.scalars(text(f"explain {question.text}").bindparams(since=1, until=2, bounds=[0.0])).all()
    database.rollback()
    assert (scans := [line for line in plan if " Scan on op_" in line])
    assert all("Bitmap" in line for line in scans), plan


def test_entries_by_group_the_largest_by_name(database: Connection, rows: Rows) -> None:
    for number in range(5):
        group = rows.queue(f"q{number}", group="g")
        for _ in range(number):
            rows.entry(group)
    rows.entry(group, failed="x")
    rows.entry(group, lease=1)
    found = figures.entries(database, named=2)
    assert found == (
        GroupFigures(address="q4", group="g", ready=4, inflight=1, scheduled=0, failed=1, estimated=0),
        GroupFigures(address="q3", group="g", ready=3, inflight=0, scheduled=0, failed=0, estimated=0),
        GroupFigures(address=None, group=None, ready=3, inflight=0, scheduled=0, failed=0, estimated=0),
    )


def test_a_long_queue_is_estimated(database: Connection, rows: Rows) -> None:
    group = rows.queue("long")
    rows.entry(group, lease=1)
    database.execute(
        text(
            "insert into coordinator.entry (group_id, id, half_id) select :g, g + (1::int8 << 60), g "
            "from generate_series(1, 5000) g"
        ),
        {"g": group},
    )
    database.commit()
    database.execute(text("analyze coordinator.entry"))
    database.commit()
    (found,) = figures.entries(database, most=10)
    assert (found.estimated, found.inflight) == (1, 1)
    assert found.ready == pytest.approx(5000, rel=0.1)
    (found,) = figures.entries(database, most=10_000)
    assert (found.estimated, found.ready) == (0, 5000)


@pytest.mark.parametrize(("of", "first"), [("txn", "half_ids[1]"), ("pending", "half_id")])
def test_undecided_halves_by_address(database: Connection, rows: Rows, of: str, first: str) -> None:
    """Some are in the rows of their transactions, and some have rows of their own: both may be the oldest."""
    orders, bills, more = (rows.address_of(rows.queue(name)) for name in ("orders", "bills", "more"))
    rows.txn(1)
    rows.checkable(1, orders, orders, bills)
    rows.checkable(1, orders, more)
    database.execute(
        text(
            "update coordinator.txn set checks = 2, declared_at = now() - interval '1 hour', "
            "next_check_at = now() - interval '1 s' where producer_group is not null"
        )
    )
    database.execute(text("update coordinator.txn set checks = 7 where producer_group is null"))
    database.commit()
    found = figures.undecided(database, named=1)
    assert (found.plain, found.checkable, found.checks, found.waiting) == (1, 2, 4, 2)
    assert found.oldest_seconds >= 3600
    assert [(each.address, each.count) for each in found.halves] == [("orders", 3), (None, 2)]
    assert all(0 <= each.oldest_seconds < 3600 for each in found.halves)
    database.execute(text(f"update coordinator.{of} set {first} = {first} - :hour"), {"hour": 3_600_000 << 22})
    database.commit()
    assert figures.undecided(database, named=1).halves[0].oldest_seconds >= 3600


def test_dead_letters(database: Connection, rows: Rows) -> None:
    rows.entry(rows.queue("orders"))
    rows.queue("%DLQ%none", origin="dead-letter")
    rows.entry(rows.queue("%DLQ%orders", origin="dead-letter"))
    assert [(each.address, each.count) for each in figures.dead_letters(database)] == [("%DLQ%orders", 1)]


def test_the_state_of_the_store(database: Connection, rows: Rows) -> None:
    recovery.register(database, "1")
    rows.instance()
    database.execute(
        text("update coordinator.heartbeat set beaten_at = now() - interval '1 min' where instance_id = 2")
    )
    database.commit()
    found = figures.state(database)
    assert (found.schema, found.instances_alive, found.instances_silent) == (True, 1, 1)
    assert found.days_ahead >= 13
    database.execute(text("update coordinator.alembic_version set version_num = '0001'"))
    database.commit()
    assert not figures.state(database).schema


@contextmanager
def _locked(url: str, table: str) -> Iterator[None]:
    with psycopg.connect(url) as other:
        other.execute(f"lock table coordinator.{table} in access exclusive mode".encode())
        yield


def test_a_part_that_cannot_be_read_hides_no_other(database: Connection, rows: Rows, database_url: str) -> None:
    rows.entry(rows.queue("orders"))
    looks = FigureReader(database_url)
    looks.read()
    with _locked(database_url, "pending"):
        _op(rows, "commit")
        seen = looks.read()
    assert seen.failed == ("undecided",)
    assert seen.undecided is None
    assert seen.entries is not None
    names = {metric.name for metric in _families(seen)}
    assert "coordinator_entries" in names
    assert "coordinator_undecided_halves" not in names


def test_a_store_that_is_away() -> None:
    seen = FigureReader("postgresql://hunter2@127.0.0.1:1/x").read()
    (up,) = (metric.samples for metric in _families(seen) if metric.name == "coordinator_store_up")
    assert up[0].value == 0
    assert "hunter2" not in generate_latest(registry(seen, _workers())).decode()


def _families(seen: Figures) -> list[Any]:
    return list(text_string_to_metric_families(generate_latest(registry(seen, _workers())).decode()))


def test_ten_thousand_addresses_are_told_in_bounded_text(database: Connection, database_url: str) -> None:
    database.execute(
        text("insert into coordinator.address (name) select repeat('é\"\\', 339) || g from generate_series(1, 10000) g")
    )
    database.execute(
        text(
            "insert into coordinator.consumer_group (address_id, name) select id, repeat('x', 5000) "
            "from coordinator.address"
        )
    )
    database.execute(
        text("insert into coordinator.entry (group_id, id, half_id) select id, 1, 1 from coordinator.consumer_group")
    )
    database.execute(
        text(
            "insert into coordinator.pending (txn_id, half_id, address_id) select gen_random_uuid(), 1, id "
            "from coordinator.address"
        )
    )
    database.execute(text("update coordinator.address set origin = 'dead-letter'"))
    database.commit()
    seen = FigureReader(database_url).read()
    told = generate_latest(registry(seen, _workers()))
    assert len(told) < 1_000_000
    values = {metric.name: metric.samples for metric in text_string_to_metric_families(told.decode())}
    for name, series in (("entries", 4), ("dead_letters", 1), ("undecided_halves", 1)):
        samples = values[f"coordinator_{name}"]
        assert len(samples) == (figures.MOST_NAMED + 1) * series
        assert sum(sample.value for sample in samples) == 10_000


NAMES = (
    'a"b',
    "a\\b",
    "a\nb",
    "a\\nb",
    "a\rb",
    "\u2028",
    "a{b}",
    'a,b="c"',
    "#",
    "x" * 1024,
    "x" * 1023 + "y",
    REST,
    "",
)


def test_any_name_is_a_label_of_its_own(rows: Rows, database: Connection) -> None:
    groups = tuple(
        GroupFigures(address=name, group=name, ready=1, inflight=0, scheduled=0, failed=0, estimated=0)
        for name in NAMES
    )
    rest = GroupFigures(address=None, group=None, ready=5, inflight=0, scheduled=0, failed=0, estimated=0)
    seen = Figures(decided=Decided(), entries=(*groups, rest))
    (samples,) = (metric.samples for metric in _families(seen) if metric.name == "coordinator_entries")
    ready = {sample.labels["address"]: sample.value for sample in samples if sample.labels["state"] == "ready"}
    assert ready == {**{label(name): 1.0 for name in NAMES}, REST: 6.0}
    assert len(ready) == len(NAMES)
    assert all(len(each) <= 200 and each.isprintable() for each in ready)


def _workers() -> Workers:
    workers = Workers()
    figures = {"connections": 3, "links": 5, "commit_waits": 0.0, "rows": [1] * 5, "rows_total": 9}
    workers.receive(0, 7, {**figures, "seconds": [1] * 14, "seconds_total": 0.5, "checks": [4, 2, 1], "spans": [3, 1]})
    return workers


def test_the_dashboard_asks_for_what_there_is(database: Connection, rows: Rows, database_url: str) -> None:
    """Each metric that docs/ names is there, and each that is there is named."""
    looks = FigureReader(database_url)
    looks.read()
    letters = rows.queue("%DLQ%orders", origin="dead-letter")
    rows.entry(letters)
    rows.checkable(1, rows.address_of(letters))
    _op(rows, "commit")
    store_run(database, [lost(1)])
    watched.count(database, uuid4(), a_batch(counts={"half": 1}, findings=[vars(lost(1))]), "1.2.3")
    there = set()
    for metric in _families(looks.read()):
        there |= {sample.name for sample in metric.samples} or {metric.name}
    root = Path(__file__).resolve().parent.parent.parent / "docs" / "how-to"
    dashboard = json.loads((root / "dashboard.json").read_text("utf-8"))
    asked = _names(" ".join(target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())))
    assert asked
    assert asked - there == set()
    page = _names((root / "watch-it-run.md").read_text("utf-8"))
    described = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in there}
    assert described - page == set()
    assert page - described == set()


def _names(told: str) -> set[str]:
    return set(re.findall(r"\bcoordinator_\w+", told))


@pytest.mark.rule("R32")
def test_the_findings_of_the_last_run(database: Connection, database_url: str) -> None:
    """By kind and severity; kinds of another's making are bounded."""

    def told() -> tuple[dict[tuple[str, ...], float], list[float]]:
        found = {family.name: family.samples for family in _families(FigureReader(database_url).read())}
        counts = found.get("coordinator_findings", [])
        return (
            {(sample.labels["kind"], sample.labels["severity"]): sample.value for sample in counts},
            [sample.value for sample in found.get("coordinator_reconciled_timestamp_seconds", [])],
        )

    assert told() == ({}, [])
    store_run(database, [finding("overdue"), finding("overdue"), lost(1)])
    assert told() == ({("overdue", "error"): 2, ("lost-delivery", "error"): 1}, [SEEN_AT.timestamp()])
    odd = [finding(f"kind-{number}") for number in range(60) for _ in range(1 + (number < 50))]
    later = SEEN_AT + timedelta(hours=1)
    store_run(database, odd, a_run(later))
    counts, at = told()
    assert (len(counts), counts[REST, "error"], at) == (51, 10, [later.timestamp()])
    store_run(database, [], a_run(later + timedelta(hours=1)))
    assert told() == ({}, [(later + timedelta(hours=1)).timestamp()])


@pytest.mark.rule("R33")
def test_how_far_behind_a_watch_is(database: Connection, database_url: str, rows: Rows) -> None:
    """It is told, whether it runs or not, with what it has counted and found; and not as a run's."""

    def told() -> dict[str, list[tuple[dict[str, str], float]]]:
        families = _families(FigureReader(database_url).read())
        return {each.name: [(sample.labels, sample.value) for sample in each.samples] for each in families}

    names = ("coordinator_watch_counted", "coordinator_watch_findings", "coordinator_watch_rows_behind")
    assert not set(names) & set(told())
    until = figures.position(database)
    batch = a_batch(until=until, counts={"half": 3, "op commit": 1}, findings=[vars(lost(1))])
    watched.count(database, uuid4(), batch, "1.2.3")
    _op(rows, "commit")
    now = told()
    assert now["coordinator_watch_counted"] == [({"what": "half"}, 3), ({"what": "op commit"}, 1)]
    assert now["coordinator_watch_findings"] == [({"kind": "lost-delivery", "severity": "error"}, 1)]
    assert now["coordinator_watch_rows_behind"] == [({}, 1)]
    assert [labels for labels, _ in now["coordinator_watch_lag_seconds"]] == [{}]
    assert now.get("coordinator_findings", []) == []
