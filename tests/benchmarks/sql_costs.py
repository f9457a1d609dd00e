"""``python -m tests.benchmarks.sql_costs``: processor time of PostgreSQL for what applications call in SQL (X2, X4).

Beside ``coordinator.post`` stands ``send`` of the queue extension pgmq, written again here with the same table and the
same statement; beside ``coordinator.first_time`` a plain insert with a unique key. In turns, a backend each: the time
that the kernel has counted for it, per call, with its part of the commit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg

from store import migrations
from store.embedded.running import running_url
from tests.fix_service import running_service

_BESIDE = """
create table sent (
  msg_id bigint generated always as identity primary key, read_ct int default 0 not null,
  enqueued_at timestamptz default now() not null, vt timestamptz not null, message jsonb, headers jsonb);
create index on sent (vt);
create function send(queue text, message jsonb, headers jsonb, due timestamptz) returns setof bigint
language plpgsql as $$ begin
  return query execute format('insert into %I (vt, message, headers) values ($2, $1, $3) returning msg_id', queue)
    using message, due, headers;
end $$;
create function send(queue text, message jsonb) returns setof bigint language sql as $$
  select * from send(queue, message, null, clock_timestamp()) $$;
create table keyed (consumer text, message_id text, at timestamptz default now(), primary key (consumer, message_id));
"""
#: 256 octets
_BODY = json.dumps({"order": 17, "customer": "customer-312", "note": "x" * 205})
_CALLS: dict[str, tuple[str, Callable[[], list[Any]]]] = {
    "send": ("select send('sent', %s::jsonb)", lambda: [_BODY]),
    "post": ("select coordinator.post('costs', %s::jsonb)", lambda: [_BODY]),
    "insert": ("insert into keyed values ('costs', %s) on conflict do nothing", lambda: [str(uuid.uuid4())]),
    "first_time": ("select coordinator.first_time('costs', %s)", lambda: [str(uuid.uuid4())]),
}
_MANY = "select coordinator.post_many('costs', %s::jsonb[])"


class _Backend:
    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, prepare_threshold=0)
        self._seconds = Path(f"/proc/{self.connection.info.backend_pid}/schedstat")

    def cost(self, work: Callable[[psycopg.Connection[Any]], object]) -> float:
        """Microseconds of processor time."""
        before = int(self._seconds.read_text().split()[0])
        work(self.connection)
        return (int(self._seconds.read_text().split()[0]) - before) / 1000


def _calls(name: str, calls: int, each: int) -> Callable[[psycopg.Connection[Any]], None]:
    statement, arguments = _CALLS[name]

    def work(connection: psycopg.Connection[Any]) -> None:
        for number in range(calls):
            connection.execute(statement.encode(), arguments())
            if number % each == each - 1:
                connection.commit()

    return work


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=1000, help="of each function in a round (1000)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts (3)")
    parser.add_argument("--database-url", help="of an empty database, whose server runs here; else the embedded one's")
    asked = parser.parse_args(arguments)
    given = {} if asked.database_url is None else {"database_url": asked.database_url}
    if given:
        migrations.upgrade(asked.database_url)
    with running_service(given) as service:
        service.cli("address", "add", "costs")
        url = asked.database_url or running_url(service.data_dir)
        with psycopg.connect(url) as store:
            store.execute(_BESIDE)
            print(f"PostgreSQL {store.info.server_version // 10000}")
        backends = {name: _Backend(url) for name in [*_CALLS, "post_many"]}
        for name in _CALLS:
            backends[name].cost(_calls(name, 100, 10))
        costs: dict[tuple[str, int], list[float]] = {}
        for _ in range(asked.rounds):
            for each in (1, 10):
                for name in _CALLS:
                    cost = backends[name].cost(_calls(name, asked.calls, each)) / asked.calls
                    costs.setdefault((name, each), []).append(cost)

            def post_many(connection: psycopg.Connection[Any]) -> None:
                connection.execute(_MANY, [[_BODY] * 1000])
                connection.commit()

            costs.setdefault(("post_many", 1000), []).append(backends["post_many"].cost(post_many) / 1000)
        for backend in backends.values():
            backend.connection.close()
    medians = {key: statistics.median(found) for key, found in costs.items()}
    for one, other in (("post", "send"), ("first_time", "insert")):
        for each in (1, 10):
            own, beside = medians[one, each], medians[other, each]
            print(f"{one}, {each} a transaction: {own:.0f} us, {own / beside:.2f} times {other} ({beside:.0f} us)")
    print(f"post_many, 1000 a call: {medians['post_many', 1000]:.0f} us for each message")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
