"""``python -m tests.benchmarks.metrics_costs``: what a look for the metrics costs, in milliseconds, part by part.

* ``--ops N``: with N decisions that are kept, of which the last 10,000 are new;
* ``--entries N``: with N messages that wait, four of five in one group, the others in 10,000.

The median of some, one connection, the embedded server.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, text

from store import figures, migrations, partitions
from store.database import connected
from store.embedded.server import EmbeddedServer
from store.figures import Decided
from tests.benchmarks.planting import NEW_OP_ID

_AT_ONCE = 10_000
_REPEATS = 5
_GROUPS = 10_000

_OPS = f"""
    insert into coordinator.op (id, decision, txn_id, posted, reason, instance_id)
    select t, case when g % 10 = 0 then 'rollback' else 'commit' end, t, 1, case when g % 10 = 0 then 'timeout' end, 1
      from (select g, {NEW_OP_ID} as t from generate_series(1, :count) g) made"""
_ENTRY = "insert into coordinator.entry (group_id, id, half_id)"


def _fill(connection: Connection, ops: int, entries: int) -> None:
    connection.execute(text("set synchronous_commit = off"))
    for _ in range(ops // _AT_ONCE):
        connection.execute(text(_OPS.replace("::", "\\:\\:")), {"count": _AT_ONCE})
        connection.commit()
    connection.execute(
        text(f"insert into coordinator.address (name) select 'a' || g from generate_series(1, {_GROUPS}) g")
    )
    connection.execute(text("insert into coordinator.consumer_group (address_id) select id from coordinator.address"))
    first = "(select min(id) from coordinator.consumer_group)"
    connection.execute(
        text(f"{_ENTRY} select {first}, g, g from generate_series(1, :count) g"), {"count": entries * 4 // 5}
    )
    others = f"coordinator.consumer_group o where o.id > {first}"
    connection.execute(
        text(f"{_ENTRY} select o.id, g, g from generate_series(1, :count) g, {others}"),
        {"count": entries // 5 // _GROUPS},
    )
    connection.commit()
    connection.execute(text("analyze coordinator.entry"))
    connection.commit()


def _median(ask: Callable[[], object]) -> float:
    took = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        ask()
        took.append((time.perf_counter() - begun) * 1000)
    return statistics.median(took)


def _measure(connection: Connection) -> None:
    now = figures.position(connection)
    last = connection.scalar(text("select max(written_xid::text::int8) from coordinator.op")) or now
    connection.rollback()
    parts: dict[str, Callable[[], object]] = {
        "state": lambda: figures.state(connection),
        "no decision": lambda: figures.add_decided(connection, Decided(), now, now),
        f"{_AT_ONCE} decisions": lambda: figures.add_decided(connection, Decided(), last, now),
        "entries": lambda: figures.entries(connection),
        "dead letters": lambda: figures.dead_letters(connection),
        "undecided": lambda: figures.undecided(connection),
        "the view groups": lambda: connection.execute(text("select * from coordinator.groups")).all(),
    }
    for name, ask in parts.items():
        print(f"{name:<20} {_median(ask):8.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, default=1_000_000)
    parser.add_argument("--entries", type=int, default=100_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="coordinator-metrics-") as folder:
        Path(folder).chmod(0o755)
        server = EmbeddedServer(Path(folder) / "data")
        try:
            url = server.start()
            migrations.upgrade(url)
            with connected(url) as connection:
                partitions.make_ahead(connection)
                _fill(connection, given.ops, given.entries)
                _measure(connection)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
