"""A store that was put back from a dump, in the ways that docs/how-to/back-up-and-upgrade.md names (F6)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection

from store import permissions, recovery, users
from store.embedded import programs
from store.permissions import Grantee, Verb
from tests.fix_store import Rows

pytestmark = pytest.mark.rule("F6")

_WHOLE = [""]
_APART = ["--section=pre-data", "--section=data", "--section=post-data"]


def _rows(url: str) -> dict[str, int]:
    """How many each table has."""
    tables = "select oid::regclass::text from pg_class where relnamespace = 'coordinator'::regnamespace"
    with psycopg.connect(url) as connection:
        found = connection.execute(f"{tables} and relkind in ('r', 'p')".encode()).fetchall()
        counts = {name: connection.execute(f"select count(*) from {name}".encode()).fetchone() for (name,) in found}
    return {name: row[0] for name, row in counts.items() if row is not None}


@pytest.mark.parametrize("steps", [_WHOLE, _APART], ids=["whole", "in three steps"])
def test_a_dump_comes_back_whole(
    database: Connection, database_url: str, empty_database_url: str, rows: Rows, tmp_path: Path, steps: list[str]
) -> None:
    recovery.register(database, "1")
    users.add(database, "alice", {})
    permissions.grant(database, Grantee(user="alice"), [Verb.SEND], "orders")
    rows.entry(rows.queue("orders"))
    dump = tmp_path / "dump"
    found = programs._programs_found()
    tools = found[max(found)]
    made: list[str | Path] = [
        tools / "pg_dump",
        "--format=custom",
        "--schema=coordinator",
        f"--file={dump}",
        database_url,
    ]
    subprocess.run(made, check=True)
    for step in steps:
        restored: list[str | Path] = [
            tools / "pg_restore",
            "--exit-on-error",
            *step.split(),
            f"--dbname={empty_database_url}",
            dump,
        ]
        subprocess.run(restored, check=True)
    assert _rows(empty_database_url) == _rows(database_url)
