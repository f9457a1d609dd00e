"""``python -m tests.benchmarks.instances``: what a message costs where several instances share the store.

One service has the PostgreSQL; another is started and stopped beside it, in turns. The same load, transactions that
post and others that accept what was posted, comes

* ``alone``: to the first, without the second; two queues;
* ``idle``: to the first, beside the second, which has no clients;
* ``one``: half to each, all with one queue;
* ``half``: half of it to the first, without the second, as batches are smaller then, and cost more a message;
* ``own``: half to each, with a queue of its own.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import psycopg

from store.embedded.running import running_url
from tests.benchmarks import generator, processes, servers
from tests.benchmarks.generator import FOLDER, Load
from tests.benchmarks.servers import Server

_CONNECTIONS: Final = 8
#: until the first service has seen that the second is there, or gone
_SEEN_SECONDS: Final = 3.0
#: the kinds of load, each with the one that it is compared with
_KINDS: Final = {"alone": "", "idle": "alone", "one": "alone", "half": "", "own": "half"}


class Result(NamedTuple):
    """Messages a second; a message's processor time, in the services and in PostgreSQL; octets of its log."""

    rate: float
    service_us: float
    postgres_us: float
    wal: float

    @property
    def cpu_us(self) -> float:
        return self.service_us + self.postgres_us

    def __str__(self) -> str:
        parts = f"service {self.service_us:6.1f}, PostgreSQL {self.postgres_us:6.1f}"
        return f"{self.rate:9,.0f}/s  {self.cpu_us:7.1f} us ({parts})  WAL {self.wal:6,.0f} B"


class Part(NamedTuple):
    """A part of the load: where it goes."""

    server: Server
    connections: int
    queues: int
    queue: str


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.instances")
    parser.add_argument("--transaction", type=int, default=1, help="messages of a transaction (1)")
    parser.add_argument("--rounds", type=int, default=3, help="of each, in turns (3)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (5)")
    parser.add_argument("--data-dir", type=Path, help="where the folder of PostgreSQL is made")
    asked = parser.parse_args(arguments)
    generator.build()
    found: dict[str, list[Result]] = {name: [] for name in _KINDS}
    numbers = count()
    with tempfile.TemporaryDirectory(prefix="coordinator-bench-", dir=asked.data_dir) as made:
        folder = Path(made)
        folder.chmod(0o755)
        data = folder / "first"
        with servers.start_service(data_dir=data, log=FOLDER / "first.log", arguments=[]) as first:
            for _ in range(asked.rounds):
                for name in _KINDS:
                    with _second(name, data) as second:
                        parts = _parts(name, first, second, f"{name}-{next(numbers)}")
                        used = [first] if second is None else [first, second]
                        result = _measured(asked, parts, used, running_url(data))
                    found[name].append(result)
                    print(f"{name:6} {result}", flush=True)
    for name, other in _KINDS.items():
        if other:
            pairs = zip(found[name], found[other], strict=True)
            times = statistics.median(here.cpu_us / there.cpu_us for here, there in pairs)
            print(f"{name:6} processor time {times:.2f} times that of {other}", flush=True)


@contextmanager
def _second(name: str, data: Path) -> Iterator[Server | None]:
    """The second service, where there is one."""
    if name in ("alone", "half"):
        threading.Event().wait(_SEEN_SECONDS)
        yield None
        return
    url = shlex.quote(running_url(data))
    command = f"{sys.executable} -m coordinator serve --listen amqp://127.0.0.1:{{port}} --database-url {url}"
    log = FOLDER / "second.log"
    with servers.start_other(command, name="second", log=log, preload=0, postgres_pid_file=None) as second:
        threading.Event().wait(_SEEN_SECONDS)
        yield second


def _parts(name: str, first: Server, second: Server | None, queue: str) -> list[Part]:
    if name in ("alone", "idle"):
        return [Part(first, _CONNECTIONS, 2, queue)]
    if second is None:
        return [Part(first, _CONNECTIONS // 2, 1, queue)]
    queues = (f"{queue}-a", f"{queue}-b") if name == "own" else (queue, queue)
    return [Part(each, _CONNECTIONS // 2, 1, its) for each, its in zip((first, second), queues, strict=True)]


def _measured(asked: argparse.Namespace, parts: Sequence[Part], used: Sequence[Server], url: str) -> Result:
    loads: list[Load] = []
    snapshots: list[list[processes.Snapshot]] = []
    written: list[int] = []

    def note() -> None:
        snapshots.append([each.snapshot() for each in used])
        with psycopg.connect(url) as store:
            row = store.execute("select (pg_current_wal_insert_lsn() - '0/0')::int8").fetchone()
        assert row is not None
        written.append(row[0])

    def run(part: Part) -> None:
        flags = [f"--connections={part.connections}", f"--queues={part.queues}", f"--queue={part.queue}"]
        flags += [f"--transaction={asked.transaction}", f"--seconds={asked.seconds}", "--warm=2", "--shape=durable"]
        watch = note if part is parts[0] else lambda: None
        loads.append(generator.run("mixed", part.server.port, *flags, started=watch, ended=watch))

    threads = [threading.Thread(target=run, args=[part]) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == len(parts), "a load failed"
    rate = sum(load.messages / load.seconds for load in loads)
    before, after = snapshots
    each = [processes.cpu_between(*pair) for pair in zip(before, after, strict=True)]
    messages = rate * loads[0].seconds
    service = sum(cpu.service for cpu in each)
    postgres = sum(cpu.total for cpu in each) - service
    return Result(rate, service / messages * 1e6, postgres / messages * 1e6, (written[1] - written[0]) / messages)


if __name__ == "__main__":
    main()
