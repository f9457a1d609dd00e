"""A report of a reconciliation read back from its folder: which run it is, and its findings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

#: The format of ``summary.json`` that this reads (:func:`spark.report.summary`).
FORMAT: Final = 1
_COLUMNS: Final = (
    *("kind", "severity", "txn_id", "half_id", "address", "consumer_group"),
    *("detail", "suggested_repair"),
)


class ReportUnusable(Exception):
    """The folder has no whole report; says which file and why."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """``store_id``: of the store that was read, ``seen_at``: as of when; it names the run."""

    folder: Path
    store_id: str
    seen_at: datetime
    total: int

    def findings(self) -> Iterator[dict[str, Any]]:
        """Each with the columns of ``findings.parquet`` that say what it is about and what to do.

        :raises ReportUnusable: a part of the file cannot be read.
        """
        path = self.folder / "findings.parquet"
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(columns=list(_COLUMNS)):
                    yield from batch.to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise ReportUnusable(f"{path}: it cannot be read to its end: {str(error).splitlines()[0]}") from None


def read_report(folder: Path) -> Report:
    """The report in ``folder``. ``summary.json`` is written last: where it is there, the run is whole.

    :raises ReportUnusable: a file is missing, cannot be read, or is not of the same run.
    """
    summary, findings = folder / "summary.json", folder / "findings.parquet"
    try:
        said = json.loads(summary.read_text("utf-8"))
        if said["format"] != FORMAT:
            raise ReportUnusable(f"{summary}: its format is {said['format']!r}, expected {FORMAT}")
        report = Report(
            folder=folder,
            store_id=str(said["store"]["id"]),
            seen_at=datetime.fromisoformat(said["seen_at"]),
            total=int(said["findings"]["total"]),
        )
    except OSError as error:
        raise ReportUnusable(f"{summary}: {error.strerror}; is that the --out of coordinator reconcile?") from None
    except (ValueError, KeyError, TypeError):
        raise ReportUnusable(f"{summary}: not what coordinator reconcile writes") from None
    try:
        with findings.open("rb") as opened, pq.ParquetFile(opened) as file:
            rows, names = file.metadata.num_rows, file.schema_arrow.names
    except OSError as error:
        raise ReportUnusable(f"{findings}: {error.strerror or 'it cannot be read'}") from None
    except pa.ArrowInvalid:
        raise ReportUnusable(f"{findings}: no whole Parquet file") from None
    if rows != report.total or not set(_COLUMNS) <= set(names):
        raise ReportUnusable(f"{findings}: {rows} findings, where summary.json has {report.total}: not of one run")
    return report
