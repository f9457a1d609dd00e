"""A store that refuses a change for a while, though the connection stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

#: what PostgreSQL says of a statement that was cancelled, or took too long
CANCELLED = "57014"


@contextmanager
def refused(url: str, what: str, code: str = CANCELLED) -> Iterator[Callable[[], int]]:
    """Inside the block ``what``, such as ``delete on <table>``, is refused; how often it was."""
    with psycopg.connect(url, autocommit=True) as store:
        store.execute("create sequence tries")
        store.execute(
            "create function refuse() returns trigger language plpgsql security definer as "
            f"$$ begin perform nextval('tries'); raise exception 'refused' using errcode = '{code}'; end $$".encode()
        )
        store.execute(f"create trigger refuse before {what} for each row execute function refuse()".encode())

        def tries() -> int:
            row = store.execute("select case when is_called then last_value else 0 end from tries").fetchone()
            assert row is not None
            return int(row[0])

        try:
            yield tries
        finally:
            store.execute("drop function refuse() cascade")
            store.execute("drop sequence tries")
