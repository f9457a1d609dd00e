"""Findings on disk: sorted while they are few, and never more in memory than are sorted."""

from __future__ import annotations

import csv
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark import results
from spark.finding import Finding
from spark.results import write_findings

AT = datetime(2026, 3, 10, 12, tzinfo=UTC)


def finding(half_id: int | None, address: str | None = "orders", kind: str = "lost-delivery") -> Finding:
    return Finding(
        kind=kind, severity="error", half_id=half_id, address=address, seen_at=AT, detail="x", suggested_repair="y"
    )


@pytest.mark.rule("R30")
def test_findings_are_sorted_by_kind_and_by_what_they_are_about(tmp_path: Path) -> None:
    found = [finding(2), finding(1), finding(None), finding(3, None), finding(9, kind="double-delivery")]
    write_findings(found, tmp_path, lambda count: None)
    with (tmp_path / "findings.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["kind"], row["address"], row["half_id"]) for row in csv.DictReader(file)]
    assert rows == [
        ("double-delivery", "orders", "9"),
        ("lost-delivery", "", "3"),
        ("lost-delivery", "orders", ""),
        ("lost-delivery", "orders", "1"),
        ("lost-delivery", "orders", "2"),
    ]


@pytest.mark.rule("R30")
def test_more_findings_than_are_sorted_are_all_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "SORTED", 5)
    monkeypatch.setattr(results, "_CHUNK", 3)
    told: list[int] = []
    found = write_findings((finding(number) for number in range(12, 0, -1)), tmp_path, told.append)
    written = pq.read_table(tmp_path / "findings.parquet").column("half_id").to_pylist()
    assert Counter(written) == Counter(range(1, 13))
    assert written[:5] == [8, 9, 10, 11, 12]
    assert told == [5, 8, 11, 12]
    assert found.total == 12
