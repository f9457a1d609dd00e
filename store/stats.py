"""The store in figures, as ``coordinator stats`` prints them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from sqlalchemy import Connection, func, select, text

from store.addresses import STATES, Counts
from store.errors import boundary
from store.partitions import days_ahead
from store.recovery import ALIVE
from store.tables import SCHEMA, address, consumer_group, pending, retention, txn
from store.views import groups


@dataclass(frozen=True, kw_only=True)
class Stats:
    """What was counted: exactly, and so at the cost of reading all entries."""

    instances_alive: int
    addresses: int
    groups: int
    #: entries of all groups
    counts: Counts
    #: entries of the addresses of dead letters; they are in ``counts``, too
    dead_letters: int
    #: transactions without a decision that are older than a moment, and the seconds since the oldest was declared
    undecided: int
    oldest_undecided_seconds: float | None
    #: messages of undecided checkable transactions
    pending: int
    #: days after today that have their partitions; -1: not even today
    days_ahead: int
    #: from which day on all messages and all decisions are there; None: none was ever dropped
    messages_kept_from: date | None
    decisions_kept_from: date | None
    #: of the database on disk, with what else is in it
    database_bytes: int


def look(connection: Connection) -> Stats:
    """Count them, as of one moment."""
    ahead = days_ahead(connection)
    with boundary():
        connection.execute(text("set transaction isolation level repeatable read, read only"))
        counted = connection.execute(select(*(func.sum(groups.c[state]).label(state) for state in STATES))).one()
        letters = connection.scalar(
            text(
                f"select sum(ready + inflight + scheduled + failed) from {SCHEMA}.addresses "
                "where origin = 'dead-letter'"
            )
        )
        undecided = connection.execute(
            select(
                func.count().label("all"),
                func.extract("epoch", func.now() - func.min(txn.c.declared_at)).label("age"),
            )
        ).one()
        rows = connection.execute(select(retention.c.table_name, retention.c.kept_from))
        kept = {row.table_name: row.kept_from for row in rows}
        found = Stats(
            instances_alive=connection.scalar(ALIVE) or 0,
            addresses=connection.scalar(select(func.count()).select_from(address)) or 0,
            groups=connection.scalar(select(func.count()).select_from(consumer_group)) or 0,
            counts=Counts(**{state: int(getattr(counted, state) or 0) for state in STATES}),
            dead_letters=int(letters or 0),
            undecided=undecided.all,
            oldest_undecided_seconds=None if undecided.age is None else max(0.0, float(undecided.age)),
            pending=connection.scalar(
                select(
                    select(func.count()).select_from(pending).scalar_subquery()
                    + func.coalesce(func.sum(func.cardinality(txn.c.half_ids)), 0)
                )
            )
            or 0,
            days_ahead=ahead,
            messages_kept_from=kept.get("half"),
            decisions_kept_from=kept.get("op"),
            database_bytes=connection.scalar(text("select pg_database_size(current_database())")) or 0,
        )
        connection.rollback()
    return found
