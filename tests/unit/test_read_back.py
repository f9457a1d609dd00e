"""What is no report of ``coordinator reconcile`` is told in a line, which names the place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark.read_back import FORMAT, ReportUnusable, read_report

_FINDING: dict[str, Any] = {
    "kind": "lost-delivery",
    "severity": "error",
    "txn_id": None,
    "half_id": 7,
    "address": "shop",
    "consumer_group": "billing",
    "detail": "it is nowhere",
    "suggested_repair": "requeue",
}
_TYPES = {name: pa.int64() if name == "half_id" else pa.string() for name in _FINDING}


def _report(folder: Path, *findings: dict[str, Any], types: dict[str, Any] | None = None, **said: Any) -> None:
    written = [_FINDING | each for each in findings]
    schema = pa.schema(list((_TYPES | (types or {})).items()))
    pq.write_table(pa.Table.from_pylist(written, schema), folder / "findings.parquet")
    whole = {
        "format": FORMAT,
        "store": {"id": "s"},
        "seen_at": "2026-11-28T04:00:00+01:00",
        "findings": {"total": len(written)},
    }
    (folder / "summary.json").write_text(json.dumps(whole | said), "utf-8")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    _report(tmp_path, {}, {"half_id": None})
    report = read_report(tmp_path)
    assert report.stores["s"].seen_at.isoformat() == "2026-11-28T03:00:00+00:00"
    assert [each["half_id"] for each in report.findings()] == [7, None]


def _of_two(folder: Path, *findings: dict[str, Any], **types: Any) -> None:
    stores = [
        {"name": name, "store": {"id": name[-1]}, "seen_at": f"2026-11-28T0{hour}:00:00+00:00"}
        for hour, name in enumerate(("db.example:5432/a", "db.example:5432/b"))
    ]
    _report(folder, *findings, types=types, store=None, stores=stores)


def test_of_several_stores_one_has_its_findings_and_those_of_all(tmp_path: Path) -> None:
    names = ("db.example:5432/a", "db.example:5432/b", None)
    _of_two(tmp_path, *({"half_id": n, "store": name} for n, name in enumerate(names)), store=pa.string())
    report = read_report(tmp_path)
    assert [(id_, of.seen_at.hour, of.name) for id_, of in report.stores.items()] == [
        ("a", 0, "db.example:5432/a"),
        ("b", 1, "db.example:5432/b"),
    ]
    assert [each["half_id"] for each in report.findings("db.example:5432/b")] == [1, 2]
    assert [each["half_id"] for each in report.findings()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda it: _report(it, {}, seen_at="2026-11-28T04:00:00"), "its seen_at, 2026-11-28T04:00:00, has no zone"),
        (lambda it: _report(it, {}, seen_at="9999-12-31T23:59:59-14:00"), "not what coordinator reconcile writes"),
        (lambda it: _report(it, {}, seen_at="0001-01-01T00:00:00+14:00"), "not what coordinator reconcile writes"),
        (lambda it: _report(it, {}, findings={"total": float("inf")}), "not what coordinator reconcile writes"),
        (lambda it: (it / "summary.json").write_text(200_000 * "["), "not what coordinator reconcile writes"),
        (lambda it: _report(it, {"address": 5}, types={"address": pa.int64()}), "address is int64, expected string"),
        (
            lambda it: _report(it, {"half_id": 1.5}, types={"half_id": pa.float64()}),
            "half_id is double, expected int64",
        ),
        (lambda it: _report(it, {"half_id": 1}, types={"half_id": pa.uint64()}), "half_id is uint64, expected int64"),
        (lambda it: _of_two(it, {}), "not of one run"),
        (lambda it: _of_two(it, {"store": 1}, store=pa.int64()), "its column store is int64, expected string"),
        (lambda it: _report(it, {}, stores=[1]), "not what coordinator reconcile writes"),
        (lambda it: _report(it, {}, stores={"a": 1}), "not what coordinator reconcile writes"),
    ],
)
def test_what_is_none_is_refused(tmp_path: Path, edit: Callable[[Path], object], says: str) -> None:
    _report(tmp_path, {})
    edit(tmp_path)
    with pytest.raises(ReportUnusable, match=says):
        read_report(tmp_path)


@pytest.mark.parametrize(
    ("finding", "says"),
    [
        ({"kind": None}, "row 2: it has no kind"),
        ({"severity": None}, "row 2: it has no severity"),
        ({"suggested_repair": None}, "row 2: it has no suggested_repair"),
        ({"address": "sh\0p"}, "row 2: its address has a NUL"),
    ],
)
def test_a_row_that_is_none_is_refused_by_its_number(tmp_path: Path, finding: dict[str, Any], says: str) -> None:
    _report(tmp_path, {}, finding)
    with pytest.raises(ReportUnusable, match=says):
        list(read_report(tmp_path).findings())
