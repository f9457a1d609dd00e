"""What applications have done the work of (X4): ``coordinator.first_time`` writes it; here it is forgotten."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection, text

from store.errors import boundary
from store.tables import SCHEMA

#: Rows of one SQL transaction: none holds up an application for long.
CHUNK = 10_000


def forget(connection: Connection, age: timedelta, chunk: int = CHUNK) -> int:
    """Delete what was written longer than ``age`` ago, oldest first, ``chunk`` rows at a time; commits. Returns how
    many: a message that comes again later is taken for one that comes for the first time.
    """
    statement = text(
        f"""with old as (select ctid from {SCHEMA}.inbox where taken_at < now() - :age
                        order by taken_at limit :chunk for update skip locked)
            delete from {SCHEMA}.inbox i using old where i.ctid = old.ctid"""
    )
    forgotten = 0
    with boundary():
        while True:
            done = connection.execute(statement, {"age": age, "chunk": chunk}).rowcount
            connection.commit()
            forgotten += done
            if done < chunk:
                return forgotten
