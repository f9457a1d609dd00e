"""Store what ``coordinator watch`` has counted and found (R33).

**Decision.** The position, the counts and the findings of a batch are written in one SQL transaction. Spark repeats a
batch whose end it has not noted, with the same rows: then the store has it already, and nothing is added. So each row
counts once, wherever a process is killed. A batch that is neither the next nor the last one belongs to another
checkpoint, or to one that was copied or restored, and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, Row, delete, func, insert, select, text, update

from store.database import BY_INDEX
from store.errors import StoreError, boundary
from store.ids import begin_of
from store.runs import COLUMNS
from store.tables import SCHEMA, retention, run, watch

#: The most rows of each table that are counted to determine how far behind a watch is.
MOST_BEHIND: Final = 100_000
#: The most findings that are kept: the first ones.
MOST_KEPT: Final = 100_000
_WRITTEN: Final = "(written_xid::text)::bigint"


class CannotWatch(StoreError):
    """The store cannot be watched, or not from this checkpoint; the message has the reason."""


@dataclass(frozen=True, kw_only=True)
class Lag:
    """How far behind a watch is: ``rows`` that are not counted, or ``more``, and the age of the oldest."""

    rows: int
    more: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class WatchState:
    """The state of the watch. ``counts``: by kind of row and decision; ``findings``: by kind and severity."""

    id: UUID
    batch: int
    position: int
    counts: Mapping[str, int]
    findings: Mapping[tuple[str, str], int]
    missed_before: date | None
    lag: Lag


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The rows that the SQL transactions from ``since`` on, below ``until``, have written.

    Findings are mappings with :data:`store.runs.COLUMNS` and ``seen_at``.
    """

    number: int
    since: int
    until: int
    counts: Mapping[str, int]
    findings: Sequence[Mapping[str, Any]]


def count(connection: Connection, watch_id: UUID, batch: Batch, version: str) -> list[Mapping[str, Any]]:
    """Count a batch, unless it is counted already; commits. Returns the new findings.

    :raises CannotWatch: another checkpoint has counted meanwhile.
    """
    with boundary():
        found = _own(connection, watch_id)
        if (found.batch, found.position) == (batch.number, batch.until):
            connection.rollback()
            return []
        if (found.batch, found.position) != (batch.number - 1, batch.since):
            connection.rollback()
            raise CannotWatch(
                f"the store has counted batch {found.batch}, up to SQL transaction {found.position}, and this is batch"
                f" {batch.number}, from {batch.since} on: the checkpoint was copied, or one of them restored"
            )
        counts = dict(found.counts)
        for name, number in batch.counts.items():
            counts[name] = counts.get(name, 0) + number
        connection.execute(update(watch).values(batch=batch.number, position=batch.until, counts=counts))
        new = _add(connection, watch_id, batch.findings, version)
        connection.commit()
    return new


def record(
    connection: Connection, watch_id: UUID, findings: Sequence[Mapping[str, Any]], version: str
) -> tuple[WatchState, list[Mapping[str, Any]]]:
    """Add findings that no batch has, and note how far behind the watch is, and which days were dropped; commits.

    Returns the state of the watch, and the new findings.

    :raises CannotWatch: another checkpoint has counted meanwhile.
    """
    with boundary():
        found = _own(connection, watch_id)
        kept_from = connection.scalar(select(func.max(retention.c.kept_from)))
        values: dict[str, Any] = {"kept_from": kept_from}
        if (
            kept_from is not None
            and (found.kept_from is None or found.kept_from < kept_from)
            and (found.up_to_date_at is None or found.up_to_date_at < begin_of(kept_from))
        ):
            values["missed_before"] = kept_from
        if not _lag(connection, found.position).rows:
            values["up_to_date_at"] = func.now()
        connection.execute(update(watch).values(values))
        new = _add(connection, watch_id, findings, version)
        connection.commit()
    now = state(connection)
    assert now is not None
    return now, new


def state(connection: Connection) -> WatchState | None:
    """Return the state of the watch, or None. Reads the rows behind, up to :data:`MOST_BEHIND` of a table."""
    with boundary():
        row = connection.execute(select(watch)).one_or_none()
        if row is None:
            connection.rollback()
            return None
        counted = connection.scalar(select(run.c.counts).where(run.c.watch_id == row.id)) or []
        lag = _lag(connection, row.position)
        connection.rollback()
    return WatchState(
        id=row.id,
        batch=row.batch,
        position=row.position,
        counts=row.counts,
        findings={(each["kind"], each["severity"]): each["findings"] for each in counted},
        missed_before=row.missed_before,
        lag=lag,
    )


def check(connection: Connection, watch_id: UUID | None, ended: int) -> None:
    """Check that the store can be watched from the checkpoint ``watch_id`` (None: a new one).

    ``ended``: the last batch whose end Spark has noted there (-1: no batch).

    :raises CannotWatch: it cannot; the message has the reason.
    """
    with boundary():
        row = connection.execute(select(watch.c.id, watch.c.batch)).one_or_none()
        connection.rollback()
    if row is None:
        if ended >= 0:
            raise CannotWatch("the store knows nothing of this checkpoint; begin anew, in an empty folder")
    elif watch_id is None or row.id != watch_id:
        raise CannotWatch(
            f"the store is watched from another checkpoint ({row.id}); give its folder, or begin anew with --anew in"
            " an empty one"
        )
    elif row.batch not in (ended, ended + 1):
        raise CannotWatch(
            f"the store has counted up to batch {row.batch}, and the checkpoint up to {ended}: one of them was"
            " restored; begin anew with --anew in an empty folder"
        )


def place(connection: Connection) -> dict[str, Any]:
    """Return the server's system and the database, and the SQL transaction below which all have ended."""
    with boundary():
        row = connection.execute(
            text(
                "select system_identifier::text as system, current_database()::text as database,"
                " pg_snapshot_xmin(pg_current_snapshot())::text::bigint as ended from pg_control_system()"
            )
        ).one()
        connection.rollback()
    return dict(row._mapping)


def forget(connection: Connection) -> None:
    """Delete the watch with its counts and findings; commits."""
    with boundary():
        connection.execute(delete(run).where(run.c.watch_id.is_not(None)))
        connection.execute(delete(watch))
        connection.commit()


def _own(connection: Connection, watch_id: UUID) -> Row[Any]:
    """Lock and return the row of this watch, which is inserted if there is none."""
    kept_from = select(func.max(retention.c.kept_from)).scalar_subquery()
    # lock order: 9
    question = select(watch).with_for_update()
    row = connection.execute(question).one_or_none()
    if row is None:
        connection.execute(insert(watch).values(id=watch_id, kept_from=kept_from))
        row = connection.execute(question).one()
    if row.id != watch_id:
        connection.rollback()
        raise CannotWatch(f"the store is watched from another checkpoint ({row.id}) meanwhile")
    return row


def _lag(connection: Connection, position: int) -> Lag:
    """Count the visible rows written from ``position`` on, also those that wait for an older SQL transaction to end."""
    connection.execute(BY_INDEX)
    looks = " union all ".join(
        f"select count(*) as rows, min(at) as oldest from (select {at} as at from {SCHEMA}.{table}"
        f" where {_WRITTEN} >= :since and {_WRITTEN} < :until limit :most) {table}"
        for table, at in (("half", "posted_at"), ("op", "decided_at"))
    )
    # rows with a higher number were restored from another server's dump
    until = connection.scalar(text("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"))
    row = connection.execute(
        text(
            "select sum(rows)::bigint as rows, max(rows) >= :most as more,"
            f" coalesce(greatest(0, extract(epoch from clock_timestamp() - min(oldest))), 0)::float8 as seconds"
            f" from ({looks}) behind"
        ),
        {"since": position, "until": until, "most": MOST_BEHIND},
    ).one()
    return Lag(rows=row.rows, more=row.more, seconds=row.seconds)


def _add(
    connection: Connection, watch_id: UUID, findings: Sequence[Mapping[str, Any]], version: str
) -> list[Mapping[str, Any]]:
    """Add findings to the watch, unless it has one of the same kind about the same object. Returns the new ones."""
    if not findings:
        return []
    known = connection.execute(select(run.c.id, run.c.counts).where(run.c.watch_id == watch_id)).one_or_none()
    if known is None:
        values = {"books": [], "seen_at": func.now(), "version": version, "counts": [], "watch_id": watch_id}
        known = connection.execute(insert(run).values(values).returning(run.c.id, run.c.counts)).one()
    about = ("kind", "txn_id", "half_id", "consumer_group")
    same = " and ".join(f"coalesce(f.{name}::text, '') = coalesce(s.{name}::text, '')" for name in about)
    columns = ", ".join((*COLUMNS, "seen_at"))
    rows = connection.execute(
        text(
            f"""with above as (select coalesce(max(number), 0) as number from {SCHEMA}.finding where run_id = :run)
                insert into {SCHEMA}.finding (run_id, number, {columns})
                select :run, above.number + row_number() over (order by s.place), {
                ", ".join(f"s.{name}" for name in (*COLUMNS, "seen_at"))
            }
                  from (select distinct on ({", ".join(about)}) * from rows from (
                          jsonb_to_recordset(:found) as (kind text, severity text, txn_id uuid, half_id int8,
                            address text, consumer_group text, detail text, suggested_repair text,
                            seen_at timestamptz)) with ordinality
                            s(kind, severity, txn_id, half_id, address, consumer_group, detail, suggested_repair,
                              seen_at, place)
                         order by {", ".join(about)}, place) s
                 cross join above
                 where not exists (select from {SCHEMA}.finding f where f.run_id = :run and {same})
                 order by s.place limit greatest(0, :most - (select number from above))
                returning kind, severity, txn_id, half_id, address, consumer_group, detail, suggested_repair, seen_at
            """
        ),
        {"run": known.id, "found": json.dumps([dict(each) for each in findings], default=_plain), "most": MOST_KEPT},
    ).all()
    counts = {(each["kind"], each["severity"]): each["findings"] for each in known.counts}
    for row in rows:
        counts[row.kind, row.severity] = counts.get((row.kind, row.severity), 0) + 1
    told = [{"kind": kind, "severity": severity, "findings": number} for (kind, severity), number in counts.items()]
    connection.execute(
        update(run).where(run.c.id == known.id).values(counts=sorted(told, key=lambda each: each["kind"]))
    )
    return [dict(row._mapping) for row in rows]


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
