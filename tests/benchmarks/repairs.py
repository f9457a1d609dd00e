"""``python -m tests.benchmarks.repairs``: what ``coordinator repair --apply`` takes for a finding of each kind (R34).

With ``--other FOLDER`` the same is asked of another checkout, in turn, in the same run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

from store import runs
from store.database import connected
from store.embedded.server import EmbeddedServer
from store.ids import id_at
from store.migrations import upgrade
from store.partitions import make_ahead, make_days
from store.tables import DROPPING, SCHEMA

ROOT: Final = Path(__file__).parents[2]

_TXN: Final = f"""insert into {SCHEMA}.txn (id, instance_id, owner, declared_at, timeout_at, posted, retired,
      producer_group, next_check_at, check_immunity_ms, check_interval_ms, most_checks, checks)
    select (lpad(to_hex(%(ms)s + i), 12, '0') || '7' || substr(md5(i::text), 1, 3) || '8'
            || substr(md5(i::text), 4, 15))::uuid, 1, 'client', now(), now(), 1, 0, 'shop', now() - interval '1 hour',
           6000, 30000, 15, 15
      from generate_series(1, %(many)s) i"""
_HALF: Final = f"""insert into {SCHEMA}.half (id, txn_id, address_id, message)
    select %(first)s + (row_number() over (order by id) << 22), id, 1, '\\x005375a00178' from {SCHEMA}.txn"""
_PENDING: Final = f"insert into {SCHEMA}.pending (txn_id, half_id, address_id) select txn_id, id, 1 from {SCHEMA}.half"
_ENTRY: Final = f"insert into {SCHEMA}.entry (group_id, id, half_id, lease) select 1, id, id, 4711 from {SCHEMA}.half"
_DECIDED: Final = f"""insert into {SCHEMA}.op (id, decision, txn_id, posted, decided_at)
    select id, 'commit', id, 1, now() - interval '1 hour' from {SCHEMA}.txn"""
_BURIED: Final = f"""insert into {SCHEMA}.op (id, decision, reason, half_ids, group_ids, decided_at)
    select overlay(txn_id::text placing '9' from 20)::uuid, 'dead-letter', 'tried', array[id], array[1],
           to_timestamp(%(ms)s / 1000.0) + (row_number() over (order by id)) * interval '1 ms'
      from {SCHEMA}.half"""
_ADDRESS: Final = f"""insert into {SCHEMA}.address (id, name, created_at) overriding system value
    values (1, 'orders', %s) on conflict do nothing"""
_GROUP: Final = f"""insert into {SCHEMA}.consumer_group (id, address_id, created_at) overriding system value
    values (1, 1, %s) on conflict do nothing"""
#: What each kind needs, besides transactions with a half each.
_KINDS: Final = {
    "undecided-but-known": (_PENDING,),
    "overdue": (_PENDING,),
    "stuck-delivery": (_DECIDED, f"delete from {SCHEMA}.txn", _ENTRY),
    "lost-delivery": (_DECIDED, f"delete from {SCHEMA}.txn"),
    "dead-letter-mismatch": (_DECIDED, f"delete from {SCHEMA}.txn", _BURIED),
}


def fill(url: str, kind: str, many: int) -> int:
    """A store with ``many`` findings of this kind; the number of its run."""
    since = datetime.now(UTC) - timedelta(hours=2)
    values = {"ms": int(since.timestamp() * 1000), "many": many, "first": id_at(since)}
    with connected(url) as made:
        make_ahead(made)
        make_days(made, sorted({since.date(), datetime.now(UTC).date()}))
    with psycopg.connect(url) as connection:
        tables = ", ".join(f"{SCHEMA}.{name}" for name in ("half", "op", "txn", "pending", "entry"))
        connection.execute(f"set local {DROPPING} = 'on'".encode())
        connection.execute(f"truncate {tables}".encode())
        for statement in (_ADDRESS, _GROUP):
            connection.execute(statement.encode(), [since])
        for statement in (_TXN, _HALF, *_KINDS[kind]):
            connection.execute(statement.encode(), values if "%(" in statement else None)
        rows = connection.execute(f"select id, txn_id from {SCHEMA}.half order by id".encode()).fetchall()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"vacuum analyze")
    with connected(url) as made:
        of = runs.Run(since=None, until=None, books=(kind,), seen_at=datetime.now(UTC), version="1")
        return runs.store(made, of, (_finding(kind, *row) for row in rows))


def _finding(kind: str, half_id: int, txn_id: object) -> dict[str, Any]:
    resolve = f'coordinator transaction resolve {txn_id} --commit --reason "as the book says"'
    delivery = kind.endswith(("delivery", "mismatch"))
    return {
        "kind": kind,
        "severity": "error",
        "txn_id": None if delivery else txn_id,
        "half_id": half_id if delivery else None,
        "address": "orders",
        "consumer_group": "" if delivery else None,
        "detail": "d",
        "suggested_repair": resolve if kind == "undecided-but-known" else "coordinator repair",
    }


class Took(NamedTuple):
    """What the command took: of ``processor`` and ``octets``, the most at one time, its own part."""

    seconds: float
    processor: float
    octets: int


def repair(url: str, number: int, folder: Path) -> Took:
    began = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        started = subprocess.Popen(
            [sys.executable, "-m", "coordinator", "repair", "--run", str(number), "--apply"],
            cwd=folder,
            env={**os.environ, "COORDINATOR_DATABASE_URL": url},
            stdout=said,
        )
        _, status, used = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        assert started.returncode == 0, said.read()[-1000:]
    return Took(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss << 10)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.repairs", description=__doc__)
    parser.add_argument("--findings", type=int, default=20_000, help="of each kind")
    parser.add_argument("--kinds", nargs="*", default=list(_KINDS), choices=_KINDS)
    parser.add_argument("--other", type=Path, help="another checkout, measured first")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="coordinator-bench-") as root:
        Path(root).chmod(0o755)
        server = EmbeddedServer(Path(root) / "data")
        try:
            url = server.start()
            upgrade(url)
            for kind in given.kinds:
                for folder in (*([given.other] if given.other else []), ROOT):
                    took = repair(url, fill(url, kind, given.findings), folder)
                    which = "other" if folder == given.other else "this"
                    print(
                        f"{kind:20} {which:5} {given.findings:,} findings: {took.seconds:.1f} s,"
                        f" {1000 * took.seconds / given.findings:.2f} ms each; of the command processor time"
                        f" {1000 * took.processor / given.findings:.2f} ms each, and {took.octets >> 20} MiB",
                        flush=True,
                    )
        finally:
            server.stop()


if __name__ == "__main__":
    main()
