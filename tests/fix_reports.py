"""Reports of ``coordinator reconcile``, with findings and numbers that a test chooses."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from spark.charts import charts
from spark.finding import Finding
from spark.metrics import AddressBalance, Latency, Metrics, Outcomes
from spark.period import Period
from spark.report import BookTotals, Run
from spark.results import Findings, write_findings
from spark.snapshot import StoreName

#: After all that a test does, however late in a run: the report is never older than what it is about.
SEEN_AT = datetime.now(UTC) + timedelta(days=7)
RUN = f"reconciliation {SEEN_AT.isoformat()}"


def finding(kind: str, repair: str = "look", **about: Any) -> Finding:
    return Finding(kind=kind, severity="error", seen_at=SEEN_AT, detail="d", suggested_repair=repair, **about)


def known(txn_id: UUID, decision: str) -> Finding:
    resolve = f'coordinator transaction resolve {txn_id} --{decision} --reason "as the book says"'
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


#: The moment of the reports below.
AT = datetime(2026, 3, 10, 12, tzinfo=UTC)
BALANCE = dict.fromkeys(
    (
        "posted",
        "committed",
        "rolled_back",
        "undecided",
        "unknown",
        "expected",
        "accepted",
        "dead_lettered",
        "expired",
        "purged",
        "ready",
        "inflight",
        "scheduled",
        "failing",
    ),
    3,
)
TOTALS = {
    "transactions": 1234567,
    "transactions_committed": 3,
    "transactions_rolled_back": 2,
    "transactions_undecided": 1,
    "rolled_back_unstored": 4,
    **BALANCE,
}


EMPTY = Metrics(
    bucket=timedelta(seconds=1),
    outcomes=[],
    unstored=[],
    latencies=[],
    undecided_by_age=[("to 1 min", 0)],
    attempts=[],
    dead_letters=[],
    balances=[],
    totals=dict.fromkeys(TOTALS, 0),
)
SHOP = BookTotals(name="shop", rows=5, messages=6, grace=timedelta(minutes=5))


def a_report(found: Findings, numbers: Metrics, *books: BookTotals) -> Run:
    return Run(
        store=StoreName(database="shop", server="db.example:5432", id="0badcafe", schema="0001"),
        version="1.2.3",
        period=Period(),
        kept_since=None,
        seen_at=AT,
        took=timedelta(seconds=12.3),
        rows_read={"half": 1000},
        metrics=numbers,
        charts=charts(numbers),
        findings=found,
        books=list(books),
    )


def a_day(points: int = 96) -> Metrics:
    """A shop's, in quarters of an hour; the numbers differ a little from one to the next."""
    chance = random.Random(7)
    moments = [AT - timedelta(minutes=15 * number) for number in range(points, 0, -1)]
    return Metrics(
        bucket=timedelta(minutes=15),
        outcomes=[
            Outcomes(
                at=at,
                address=address,
                committed=many + chance.randint(0, many),
                rolled_back=chance.randint(0, many // 8),
                undecided=2 * (at == moments[-1]),
            )
            for at in moments
            for address, many in (("orders", 200), ("prices", 90), ("shipping", 40))
        ],
        unstored=[(at, chance.randint(1, 5)) for at in moments],
        latencies=[
            Latency(at=at, p50=chance.uniform(0.002, 0.004), p95=chance.uniform(0.03, 0.06), p99=chance.uniform(0.5, 2))
            for at in moments
        ],
        undecided_by_age=[("up to 1 s", 3), ("to 10 s", 1), ("to 1 min", 0), ("over 1 day", 2)],
        attempts=[(1, 61_230, 0, 5), (2, 411, 0, 1), (3, 12, 0, 0), (16, 0, 14, 0)],
        dead_letters=[("orders", "billing", "no such customer", 12), ("shipping", "", "expired", 2)],
        balances=[AddressBalance(address=name, counts=BALANCE) for name in ("orders", "prices", "shipping")],
        totals=TOTALS,
    )


def of_a_shop(count: int) -> Findings:
    """The first is order A-1; of each three one is lost, one comes from nowhere, one has no decision."""
    result = Findings()
    for number in range(1, count + 1):
        txn_id = f"0195a3c0-{number % 65536:04x}-7000-8000-{number:012x}"
        named: dict[str, Any] = {"txn_id": txn_id, "address": "orders", "seen_at": AT}
        if number % 3 == 1:
            said = f"book shop, key A-{number}: the book says committed, the coordinator knows nothing of it"
            repair = "post the message again from the book's row"
            each = Finding(
                kind="lost-message", severity="error", key=f"A-{number}", detail=said, suggested_repair=repair, **named
            )
        elif number % 3 == 2:
            said = "committed, and neither waiting nor finished in its group"
            half = (1 << 61) + number
            each = Finding(
                kind="lost-delivery",
                severity="error",
                key=f"A-{number}",
                half_id=half,
                consumer_group="billing",
                detail=said,
                suggested_repair="coordinator repair",
                **named,
            )
        else:
            said = "undecided for 2:10:00; checked 15 times"
            each = Finding(
                kind="overdue",
                severity="warning",
                detail=said,
                suggested_repair=f"coordinator transaction resolve {txn_id}",
                **named,
            )
        result.add(each)
    return result
