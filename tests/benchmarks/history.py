"""``python -m tests.benchmarks.history``: what ``transaction show`` and ``message show`` take (H15).

The store, of some size and age, is that of ``tests.benchmarks.reconciliation``, over as many days as asked for.
Besides, a message that was retired weeks after it was posted, one that failed weeks ago and waits, and one of a group
that was moved: of these all ops since then are looked at. Each question is asked by the command, start included.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import psycopg

from store.ids import id_at
from store.migrations import upgrade
from store.tables import SCHEMA
from tests.benchmarks.reconciliation import QUEUES, fill
from tests.fix_store_rows import NOW

#: How often each is asked; the fastest and the slowest count.
TIMES: Final = 3
_HALF: Final = (
    f"insert into {SCHEMA}.half (id, address_id, message, posted_at) values (%s, %s, '\\x005375a0027b7d', %s)"
)


def plant(connection: psycopg.Connection, days: int) -> dict[str, int]:
    """Halves that were posted in the store's first days, and what is slow to find of each; by what it is."""
    at = NOW - timedelta(days=days - 1)
    first = id_at(at) + 4095
    late, failed, moved = (first + (number << 22) for number in range(3))
    named = {"retired weeks later": late, "failed, and waits since": failed, "of a group that was moved": moved}
    for number, half_id in enumerate((late, failed, moved)):
        connection.execute(_HALF.encode(), [half_id, number + 1, at])
    accept = (
        f"insert into {SCHEMA}.op (id, decision, half_ids, group_ids, instance_id, decided_at)"
        " values (uuidv7(), 'accept', array[%s::int8], array[%s::int4], 1, now())"
    )
    connection.execute(accept.encode(), [late, 1])
    connection.execute(accept.encode(), [moved, 3])
    connection.execute(
        f"insert into {SCHEMA}.entry (group_id, id, half_id, attempts, acquired) values (2, %s, %s, 3, true)".encode(),
        [failed, failed],
    )
    moving = (
        f"insert into {SCHEMA}.seek (group_id, back, to_id, position) values (3, true, 0, 0) on conflict do nothing"
    )
    connection.execute(moving.encode())
    return named


def questions(connection: psycopg.Connection, days: int) -> dict[str, list[str]]:
    """The arguments of each."""
    middle = id_at(NOW - timedelta(days=days / 2))
    found = connection.execute(
        f"select id, txn_id from {SCHEMA}.half where id >= %s order by id limit 1".encode(), [middle]
    ).fetchone()
    waits = connection.execute(f"select half_id from {SCHEMA}.entry order by id desc limit 1".encode()).fetchone()
    assert found is not None
    assert waits is not None
    planted = plant(connection, days)
    return {
        "a transaction": ["transaction", "show", str(found[1])],
        "a message that was retired": ["message", "show", str(found[0])],
        "a message that waits": ["message", "show", str(waits[0])],
        **{f"a message {what}": ["message", "show", str(half_id)] for what, half_id in planted.items()},
        "a message that is not known": ["message", "show", str(found[0] ^ 1 << 12)],
        "a transaction that is not known": ["transaction", "show", str(found[1])[:-4] + "0000"],
        "a client's message-id, of one day": ["message", "show", "none-has-it", "--since", "24h"],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.history", description=__doc__)
    parser.add_argument("--database-url", required=True, help="an empty database; its store is made anew")
    parser.add_argument("--halves", type=int, default=3_000_000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--keep", action="store_true", help="ask the store that is there")
    asked = parser.parse_args(arguments)
    if not asked.keep:
        with psycopg.connect(asked.database_url, autocommit=True) as connection:
            connection.execute(f"drop schema if exists {SCHEMA} cascade".encode())
        upgrade(asked.database_url)
        fill(asked.database_url, asked.halves, timedelta(days=asked.days - 1))
    with psycopg.connect(asked.database_url) as connection:
        wanted = questions(connection, asked.days)
    print(
        f"{asked.halves:,} halves at {QUEUES} queues in {asked.days} days; seconds, the fastest and the slowest"
        f" of {TIMES}"
    )
    for what, question in wanted.items():
        took = []
        for _ in range(TIMES):
            began = time.perf_counter()
            ran = subprocess.run(
                [sys.executable, "-m", "coordinator", *question],
                env={**os.environ, "COORDINATOR_DATABASE_URL": asked.database_url},
                capture_output=True,
                text=True,
                check=False,
            )
            took.append(time.perf_counter() - began)
        said = (ran.stdout or ran.stderr).strip().splitlines()
        print(
            f"{what:35} {min(took):5.2f} {max(took):5.2f}  {ran.returncode}: {len(said)} lines, {said[-1][:70]}",
            flush=True,
        )


if __name__ == "__main__":
    main()
