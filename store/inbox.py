"""What applications have done the work of (X4): ``coordinator.first_time`` writes it; here it is forgotten."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, DateTime, bindparam, text

from store.errors import boundary
from store.tables import SCHEMA

#: Rows of one SQL transaction: none holds up an application for long.
CHUNK = 10_000


def forget(connection: Connection, age: timedelta, chunk: int = CHUNK) -> int:
    """Delete what was written longer than ``age`` ago, oldest first, ``chunk`` rows at a time; commits. Returns how
    many: a message that comes again later is taken for one that comes for the first time.
    """
    statement = text(
        f"""with old as materialized (
              select ctid, taken_at from {SCHEMA}.inbox
               where taken_at < now() - :age and taken_at >= coalesce(:since, cast('-infinity' as timestamptz))
               order by taken_at limit :chunk for update skip locked),
            gone as (delete from {SCHEMA}.inbox i using old where i.ctid = old.ctid)
            select count(*) as rows, max(taken_at) as last from old"""
    ).bindparams(bindparam("since", type_=DateTime(timezone=True)))
    forgotten = 0
    since: datetime | None = None  # what is deleted stays in the index as long as a snapshot is held
    with boundary():
        while True:
            done = connection.execute(statement, {"age": age, "chunk": chunk, "since": since}).one()
            connection.commit()
            forgotten += int(done.rows)
            if done.rows < chunk:
                return forgotten
            since = done.last
