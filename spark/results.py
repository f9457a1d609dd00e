"""Write findings to a Parquet file and a CSV file, and keep what the report and the exit status need of them."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark.finding import Finding, visible
from spark.read_back import SCHEMA
from spark.schemas import SEVERITIES

#: So many findings are sorted, in memory; the others are written in chunks of :data:`_CHUNK`.
SORTED: Final = 100_000
_CHUNK: Final = 10_000
#: A spreadsheet treats a cell that begins so as a formula; the last four are the full-width forms of the first four.
_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
#: The number of findings that the report shows, and the least of each kind; the others are in the files.
SHOWN: Final = 100_000
SHOWN_OF_A_KIND: Final = 1_000


@dataclass(kw_only=True)
class Findings:
    """Counts findings, and keeps those that the report shows.

    These are the first ``SHOWN``, and of a kind with fewer among these its first ``SHOWN_OF_A_KIND``."""

    by_kind: Counter[str] = field(default_factory=Counter)
    by_severity: Counter[str] = field(default_factory=Counter)
    severities: dict[str, str] = field(default_factory=dict)
    shown: dict[str, list[Finding]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.by_kind.total()

    def at_or_above(self, severity: str) -> int:
        """Return how many findings are of ``severity`` or worse."""
        return sum(self.by_severity[name] for name in SEVERITIES[SEVERITIES.index(severity) :])

    def add(self, finding: Finding) -> None:
        self.by_kind[finding.kind] += 1
        self.by_severity[finding.severity] += 1
        worst = self.severities.get(finding.kind)
        if worst is None or SEVERITIES.index(finding.severity) > SEVERITIES.index(worst):
            self.severities[finding.kind] = finding.severity
        shown = self.shown.setdefault(finding.kind, [])
        if self.total <= SHOWN or len(shown) < SHOWN_OF_A_KIND:
            shown.append(finding)


def write_findings(found: Iterable[Finding], out: Path, on_rows: Callable[[int], None]) -> Findings:
    """Write ``findings.parquet`` and ``findings.csv`` into ``out``, completely or not at all.

    The first ``SORTED`` findings are sorted, the others in the order of ``found``. ``on_rows`` receives how many were
    written so far."""
    result = Findings()
    names = SCHEMA.names
    parquet, table = out / "findings.parquet", out / "findings.csv"
    partial = {path: path.with_name(f".{path.name}.partial") for path in (parquet, table)}
    try:
        with (
            pq.ParquetWriter(partial[parquet], SCHEMA) as parquet_writer,
            partial[table].open("w", encoding="utf-8", newline="") as file,
        ):
            csv_writer = csv.writer(file)
            csv_writer.writerow(names)
            for chunk in _chunks(found):
                for item in chunk:
                    result.add(item)
                columns = [pa.array([getattr(item, name) for item in chunk], SCHEMA.field(name).type) for name in names]
                parquet_writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
                csv_writer.writerows([_cell(getattr(item, name)) for name in names] for item in chunk)
                on_rows(result.total)
        # left by an earlier run into the same folder: it would mark the files there as complete
        (out / "summary.json").unlink(missing_ok=True)
        for path, written in partial.items():
            written.replace(path)
    finally:
        for written in partial.values():
            written.unlink(missing_ok=True)
    return result


def _chunks(found: Iterable[Finding]) -> Iterator[list[Finding]]:
    rows = iter(found)
    first = sorted(islice(rows, SORTED), key=_place)
    if first:
        yield first
    while chunk := list(islice(rows, _CHUNK)):
        yield chunk


def _place(item: Finding) -> tuple[object, ...]:
    """Return the sort key of a finding: its kind, then its object; a finding without one precedes."""
    about = (item.store, item.address, item.consumer_group, item.half_id, item.txn_id)
    return (item.kind, *((value is not None, value if value is not None else 0) for value in about), item.detail)


def _cell(value: object) -> object:
    """Return a value as a cell of the CSV: one line, and never a spreadsheet's formula (S7). Parquet has the value."""
    if isinstance(value, datetime):
        return value.isoformat()
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
