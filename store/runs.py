"""Store the runs of reconciliations, with their findings (R32).

**Decision.** A run is known by its period and its books: one over the same period takes the place of the one before, so
that a run repeated leaves no doubles. Its findings go to a temporary table first, and all that changes is changed in
one SQL transaction: a run that is stopped leaves the store as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import psycopg
from sqlalchemy import Connection, Row, delete, select, text
from sqlalchemy.dialects.postgresql import insert

from store.errors import StoreError, boundary
from store.tables import SCHEMA, finding, run

#: The most runs that are kept: those that read the store last.
KEPT: Final = 30
#: Findings that are read at a time.
_PAGE: Final = 1_000
#: The columns of a finding's content; the others are its place.
COLUMNS: Final = (
    *("kind", "severity", "txn_id", "half_id", "address", "consumer_group"),
    *("detail", "suggested_repair"),
)
_RIGHTS: Final = ("select", "insert", "update", "delete")
#: Of ``coordinator reconcile``: the findings of ``coordinator watch`` are a run that has no end.
_REPEATED: Final = run.c.watch_id.is_(None)
#: a run without its report, which may have some hundred kB
_RUN: Final = select(*[each for each in run.c if each.name != "report"])


class CannotStore(StoreError):
    """The findings of a run cannot be stored here; the message has the reason."""


class Superseded(StoreError):
    """The store has a run of the same period that read the store later."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is stored of a run beside its findings. ``since``, ``until``: the period that was asked for; None: without
    a bound."""

    since: datetime | None
    until: datetime | None
    books: tuple[str, ...]
    seen_at: datetime
    version: str


@dataclass(frozen=True, kw_only=True)
class Stored(Run):
    """A stored run. ``counts``: findings by kind and severity. ``watch_id``: of ``coordinator watch``, if it is its."""

    id: int
    stored_at: datetime
    watch_id: UUID | None
    counts: Mapping[tuple[str, str], int]

    @property
    def findings(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A stored finding. ``number``: its place in the report, from 1 on."""

    number: int
    kind: str
    severity: str
    txn_id: UUID | None
    half_id: int | None
    address: str | None
    consumer_group: str | None
    detail: str
    suggested_repair: str


def check_rights(connection: Connection, *tables: str) -> None:
    """See that a run can be stored through this connection, before any work is done for it; and written to the other
    ``tables``.

    :raises CannotStore: its role lacks a right, or the server only reads.
    """
    names = ["run", "finding", *tables]
    missing = text(
        "select r.name, t.name from unnest(cast(:rights as text[])) r(name), unnest(cast(:tables as text[])) t(name)"
        f" where not has_table_privilege('{SCHEMA}.' || t.name, r.name) limit 1"
    )
    with boundary():
        if connection.scalar(text("show transaction_read_only")) == "on":
            raise CannotStore("the database only reads: a standby, or a role or database set to read only")
        lacks = connection.execute(missing, {"rights": list(_RIGHTS), "tables": names}).one_or_none()
        temporary = connection.scalar(text("select has_database_privilege(current_database(), 'temporary')"))
        connection.rollback()
    if lacks is not None:
        raise CannotStore(
            f"the database's role may not {lacks[0]} in {SCHEMA}.{lacks[1]}; let its owner run:"
            f" grant {', '.join(_RIGHTS)} on {', '.join(f'{SCHEMA}.{name}' for name in names)} to ..."
        )
    if not temporary:
        raise CannotStore("the database's role may make no temporary table; let its owner run: grant temporary on ...")


def store(
    connection: Connection,
    of: Run,
    found: Iterable[Mapping[str, Any]],
    *,
    report: bytes | None = None,
    kept: int = KEPT,
) -> int:
    """Store a run, its findings, mappings with :data:`COLUMNS`, and its ``report``, HTML packed by gzip, in place of
    one over the same period with the same books; the oldest beyond ``kept`` go. Commits, once. Returns its number.

    :raises Superseded: that one read the store later; nothing was changed.
    """
    with boundary():
        connection.execute(
            text(
                f"create temporary table staged_finding on commit drop as select number, {', '.join(COLUMNS)}"
                f" from {SCHEMA}.finding with no data"
            )
        )
        counts = _stage(connection, found)
        # runs are stored one after the other
        # lock order: 10
        connection.execute(text(f"lock table {SCHEMA}.run in share row exclusive mode"))
        number = _enter(connection, of, counts, report)
        _merge(connection, number, counts.total())
        old = select(run.c.id).where(_REPEATED).order_by(run.c.seen_at.desc(), run.c.id.desc()).offset(kept)
        connection.execute(delete(run).where(run.c.id.in_(old)))
        connection.commit()
    return number


def _stage(connection: Connection, found: Iterable[Mapping[str, Any]]) -> Counter[tuple[str, str]]:
    """Copy findings, one by one, into the temporary table. Returns how many there are by kind and severity."""
    counts: Counter[tuple[str, str]] = Counter()
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    statement = f"copy staged_finding (number, {', '.join(COLUMNS)}) from stdin"
    with driver.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        for number, each in enumerate(found, 1):
            copy.write_row((number, *(_without_nul(each[name]) for name in COLUMNS)))
            counts[each["kind"], each["severity"]] += 1
    return counts


def _without_nul(value: object) -> object:
    """Make a value fit for PostgreSQL's text, which has no NUL; values of books and messages may have one."""
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value


def _enter(connection: Connection, of: Run, counts: Mapping[tuple[str, str], int], report: bytes | None) -> int:
    made = insert(run).values(
        since=of.since,
        until=of.until,
        books=sorted(of.books),
        seen_at=of.seen_at,
        version=of.version,
        counts=[
            {"kind": kind, "severity": severity, "findings": count}
            for (kind, severity), count in sorted(counts.items())
        ],
        report=report,
    )
    given = {name: made.excluded[name] for name in ("seen_at", "stored_at", "version", "counts", "report")}
    again = made.on_conflict_do_update(
        constraint="run_period_key", set_=given, where=run.c.seen_at <= made.excluded.seen_at
    )
    number = connection.scalar(again.returning(run.c.id))
    if number is None:
        connection.rollback()
        raise Superseded("a run over the same period that read the store later is stored already")
    return int(number)


def _merge(connection: Connection, number: int, total: int) -> None:
    """What is as it was is not written again."""
    mine, theirs = (", ".join(f"{table}.{name}" for name in COLUMNS) for table in ("f", "s"))
    connection.execute(
        text(
            f"merge into {SCHEMA}.finding f using staged_finding s on f.run_id = :run and f.number = s.number"
            f" when matched and ({mine}) is distinct from ({theirs}) then"
            f" update set {', '.join(f'{name} = s.{name}' for name in COLUMNS)}"
            f" when not matched then insert (run_id, number, {', '.join(COLUMNS)}) values (:run, s.number, {theirs})"
        ),
        {"run": number},
    )
    connection.execute(delete(finding).where(finding.c.run_id == number, finding.c.number > total))


def runs(connection: Connection) -> list[Stored]:
    """Return all stored runs, the last to read the store first."""
    with boundary():
        rows = connection.execute(_RUN.order_by(run.c.seen_at.desc(), run.c.id.desc())).all()
        connection.rollback()
    return [_stored(row) for row in rows]


def run_of(connection: Connection, number: int) -> Stored | None:
    with boundary():
        row = connection.execute(_RUN.where(run.c.id == number)).one_or_none()
        connection.rollback()
    return None if row is None else _stored(row)


def report_of(connection: Connection, number: int) -> bytes | None:
    """Return the report of a run, HTML packed by gzip; None: it has none."""
    with boundary():
        found = connection.scalar(select(run.c.report).where(run.c.id == number))
        connection.rollback()
    return found


def last(connection: Connection) -> Stored | None:
    """Return the run that read the store last, except that of ``coordinator watch``."""
    newest = _RUN.where(_REPEATED).order_by(run.c.seen_at.desc(), run.c.id.desc()).limit(1)
    with boundary():
        row = connection.execute(newest).one_or_none()
        connection.rollback()
    return None if row is None else _stored(row)


def _stored(row: Row[Any]) -> Stored:
    values = dict(row._mapping)
    counts = {(each["kind"], each["severity"]): each["findings"] for each in values.pop("counts")}
    return Stored(**{**values, "books": tuple(values["books"])}, counts=counts)


def findings(connection: Connection, of: Stored, *, kinds: Sequence[str] = (), above: int = 0) -> Iterator[Finding]:
    """The findings of a run in the order of its report, of these kinds alone where any are named, those with a number
    above ``above``; read in pages, so that the connection may commit in between.

    :raises Superseded: the run was repeated meanwhile.
    """
    columns = [finding.c[name] for name in ("number", *COLUMNS)]
    of_run = select(*columns).join(run, run.c.id == finding.c.run_id)
    of_run = of_run.where(run.c.id == of.id, run.c.seen_at == of.seen_at).order_by(finding.c.number).limit(_PAGE)
    if kinds:
        of_run = of_run.where(finding.c.kind.in_(kinds))
    while True:
        with boundary():
            rows = connection.execute(of_run.where(finding.c.number > above)).all()
            connection.rollback()
        yield from (Finding(**row._mapping) for row in rows)
        if len(rows) < _PAGE:
            break
        above = rows[-1].number
    known = run_of(connection, of.id)
    if known is None or known.seen_at != of.seen_at:
        raise Superseded(f"run {of.id} was repeated, or dropped, meanwhile")
