"""Read a reconciliation's report from its folder: the run, and its findings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

#: The format of ``summary.json`` (:func:`spark.report.summary`).
FORMAT: Final = 1
#: The columns of ``findings.parquet``.
SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("severity", pa.string()),
        ("txn_id", pa.string()),
        ("half_id", pa.int64()),
        ("address", pa.string()),
        ("consumer_group", pa.string()),
        ("key", pa.string()),
        ("seen_at", pa.timestamp("us", tz="UTC")),
        ("detail", pa.string()),
        ("suggested_repair", pa.string()),
        ("store", pa.string()),
    ]
)
_TEXTS: Final = ("kind", "severity", "txn_id", "address", "consumer_group", "detail", "suggested_repair")
_COLUMNS: Final = {name: SCHEMA.field(name).type for name in (*_TEXTS, "half_id")}
#: Besides, of a report of several stores.
_STORE: Final = "store"
#: Columns without nulls.
_ALWAYS: Final = ("kind", "severity", "suggested_repair")


class ReportUnusable(Exception):
    """The folder has no complete report; the text names the file and the reason."""


@dataclass(frozen=True, kw_only=True)
class OfStore:
    """A store of a report. ``seen_at``: the moment of its snapshot. ``name``: as findings have it, in a report of
    several; None: it is the only one."""

    seen_at: datetime
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """A complete report. ``stores``: the stores that were read, by their ids."""

    folder: Path
    stores: dict[str, OfStore]
    total: int

    def findings(self, name: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the findings, each with the columns that repairs need. ``name``: of the store whose findings these are,
        with those that are of all stores; None: all.

        :raises ReportUnusable: a part of the file cannot be read.
        """
        path, row = self.folder / "findings.parquet", 0
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(columns=[*_COLUMNS, *([] if name is None else [_STORE])]):
                    for finding in batch.to_pylist():
                        row += 1
                        _check(finding, f"{path}: row {row}")
                        if name is None or finding[_STORE] in (name, None):
                            yield finding
        except (OSError, pa.ArrowException) as error:
            raise ReportUnusable(f"{path}: it cannot be read to its end: {str(error).splitlines()[0]}") from None


def _check(finding: dict[str, Any], where: str) -> None:
    """:raises ReportUnusable: the report writes no such finding; no text of a database has a NUL."""
    for name in _TEXTS:
        if finding[name] is None and name in _ALWAYS:
            raise ReportUnusable(f"{where}: it has no {name}")
        if "\0" in (finding[name] or ""):
            raise ReportUnusable(f"{where}: its {name} has a NUL")


def read_report(folder: Path) -> Report:
    """Read the report in ``folder``. The run is complete if ``summary.json`` exists, as that is written last.

    :raises ReportUnusable: a file is missing, cannot be read, or is not of the same run.
    """
    summary, findings = folder / "summary.json", folder / "findings.parquet"
    try:
        said = json.loads(summary.read_text("utf-8"))
        if said["format"] != FORMAT:
            raise ReportUnusable(f"{summary}: its format is {said['format']!r}, expected {FORMAT}")
        if several := said.get("stores"):
            stores = {str(each["store"]["id"]): _of_store(each, summary, str(each["name"])) for each in several}
        else:
            stores = {str(said["store"]["id"]): _of_store(said, summary, None)}
        report = Report(folder=folder, stores=stores, total=int(said["findings"]["total"]))
    except OSError as error:
        raise ReportUnusable(f"{summary}: {error.strerror}; is that the --out of coordinator reconcile?") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ReportUnusable(f"{summary}: not what coordinator reconcile writes") from None
    try:
        with findings.open("rb") as opened, pq.ParquetFile(opened) as file:
            rows, schema = file.metadata.num_rows, file.schema_arrow
    except OSError as error:
        raise ReportUnusable(f"{findings}: {error.strerror or 'it cannot be read'}") from None
    except pa.ArrowInvalid:
        raise ReportUnusable(f"{findings}: no whole Parquet file") from None
    needed = _COLUMNS if len(stores) == 1 else {**_COLUMNS, _STORE: SCHEMA.field(_STORE).type}
    if rows != report.total or not set(needed) <= set(schema.names):
        raise ReportUnusable(f"{findings}: {rows} findings, where summary.json has {report.total}: not of one run")
    for name, expected in needed.items():
        if schema.field(name).type != expected:
            raise ReportUnusable(f"{findings}: its column {name} is {schema.field(name).type}, expected {expected}")
    return report


def _of_store(said: Mapping[str, Any], summary: Path, name: str | None) -> OfStore:
    seen_at = datetime.fromisoformat(said["seen_at"])
    if seen_at.tzinfo is None:
        raise ReportUnusable(f"{summary}: its seen_at, {said['seen_at']}, has no zone")
    return OfStore(seen_at=seen_at.astimezone(UTC), name=name)
