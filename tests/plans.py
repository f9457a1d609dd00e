"""Plans of PostgreSQL, as ``explain (format json)`` gives them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The node ``plan``, and all below it."""
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def planned(connection: psycopg.Connection[Any], setup: str, sql: str) -> list[dict[str, Any]]:
    """The nodes of the generic plan of ``sql``, in a session of ``setup``."""
    connection.execute(setup.encode())
    row = connection.execute(b"explain (generic_plan, format json) " + sql.encode()).fetchone()
    assert row is not None
    return list(nodes(row[0][0]["Plan"]))
