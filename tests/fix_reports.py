"""Reports of ``coordinator reconcile``, with findings that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from spark.finding import Finding
from spark.results import write_findings

#: After all that a test does, however late in a run: the report is never older than what it is about.
SEEN_AT = datetime.now(UTC) + timedelta(days=7)
RUN = f"reconciliation {SEEN_AT.isoformat()}"


def finding(kind: str, repair: str = "look", **about: Any) -> Finding:
    return Finding(kind=kind, severity="error", seen_at=SEEN_AT, detail="d", suggested_repair=repair, **about)


def known(txn_id: UUID, decision: str) -> Finding:
    resolve = f'coordinator resolve {txn_id} --{decision} --reason "as the book says"'
    return finding("undecided-but-known", resolve, txn_id=str(txn_id), address="orders")


def lost(half_id: int, group: str = "", address: str = "orders") -> Finding:
    return finding("lost-delivery", half_id=half_id, address=address, consumer_group=group)


def write_report(out: Path, findings: Sequence[Finding], store_id: str, **values: Any) -> Path:
    out.mkdir()
    write_findings(findings, out, lambda _: None)
    said = {
        "format": 1,
        "store": {"id": store_id},
        "seen_at": SEEN_AT.isoformat(),
        "findings": {"total": len(findings)},
        **values,
    }
    (out / "summary.json").write_text(json.dumps(said), "utf-8")
    return out
