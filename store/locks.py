"""What one process at a time does, by locks that only the owner of the store and its service can take.

PostgreSQL gives its advisory locks to every role that may connect to the database: one that only posts in SQL could
keep the service from starting.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, text

from store.errors import Contended, boundary
from store.schema import SCHEMA

#: The names of the locks, and what those that have them do.
NAMES: Final = {
    "slots": "choose the slot of an instance's ids",
    "giving up": "give up instances that are dead",
    "days": "make the partitions of a day",
    "places": "give entries that are due their places",
    "notice": "give the notice of what applications commit",
}

#: The row of each lock, for a ``select ... for update``, or PL/pgSQL's ``perform``.
ROW_OF: Final = {name: f"from {SCHEMA}.lock l where l.name = '{name}'" for name in NAMES}


def take(connection: Connection, name: str) -> None:
    """Wait for the lock; the SQL transaction has it until its end.

    :raises Contended: another has it for longer than the connection waits for a lock.
    """
    connection.execute(text(f"select {ROW_OF[name]} for update"))


@contextmanager
def over_commits(connection: Connection, table: str, mode: str, *, at_once: bool = False) -> Iterator[bool]:
    """Have a lock of a table over commits of ``connection``, by a connection beside it: a transaction with such a lock
    alone holds back neither vacuum nor those that read what is committed. False: with ``at_once``, another has one that
    excludes it.
    """
    with boundary(), connection.engine.connect() as beside:
        mine = True
        try:
            with boundary():
                beside.execute(text(f"lock table {SCHEMA}.{table} in {mode} mode{' nowait' if at_once else ''}"))
        except Contended:
            mine = False
        yield mine
