"""``python -m tests.benchmarks.staying``: whether the service stays as it is when it is new.

Two services with a PostgreSQL each, in turns: a new one, and one that

* ``--deep N``: has N messages waiting in one queue, which is posted to and consumed from; how long it takes to start;
* ``--messages N``: has had N messages posted and retired;
* ``--held SECONDS``: has a snapshot of its database held, and has delivered 1,000 messages a second for so long since;
* ``--idle N``: has N connections that do nothing; what each of them takes;
* ``--queues N``: delivers 1,000 messages a second from N queues, each with a consumer, and not from 8;
* ``--consumers N``: delivers as many from one queue to N consumers, and not to 8; how evenly.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psycopg

from store.embedded.running import running_url
from tests.benchmarks import cells, generator, processes
from tests.benchmarks.cells import Cell
from tests.benchmarks.contenders import Conditions, Service
from tests.benchmarks.generator import FOLDER, PROGRAM, REPOSITORY
from tests.benchmarks.servers import Server

_CONDITIONS: Final = Conditions(seconds=4.0, stock_limit=500_000)
_DEEP: Final = "deep"
#: Messages a second that are delivered one by one, to few and to many; and to how few. The links of many take seconds.
_PACE: Final = 1000
_FEW: Final = 8
_ATTACHED_SECONDS: Final = 20
#: As many connections from this host as the generator can make.
_LIMITS: Final = {
    f"COORDINATOR_LIMITS__{name}": "25000"
    for name in ("CONNECTIONS", "CONNECTIONS_PER_USER", "CONNECTIONS_PER_ADDRESS")
}
_IDLE_SECONDS: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """Messages a second, and microseconds of processor time a message, of the service and its PostgreSQL."""

    rate: float
    cpu_us: float
    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return f"{self.rate:9,.0f}/s  {self.cpu_us:7.2f} us  p50 {self.p50_ms:7.2f} ms  p99 {self.p99_ms:7.2f} ms"


class Aged(Service):
    """One whose state is made before it is measured. ``queue``: that of its cells, where it is not a new one."""

    queue: str | None = None

    @property
    def url(self) -> str:
        return running_url(self.flush_dir)

    def deepen(self, count: int) -> None:
        """Have ``count`` messages wait in a queue."""
        self._fill(self.server, _DEEP, count)
        self.queue = _DEEP

    def restart(self) -> float:
        """Seconds of a start, until it listens."""
        self.server.stop()
        began = time.perf_counter()
        self.server.check()
        return time.perf_counter() - began

    @contextmanager
    def ready(self, stock: int) -> Iterator[tuple[Server, str]]:
        if self.queue is None:
            with super().ready(stock) as found:
                yield found
        else:
            yield self.server, self.queue


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parser().parse_args(arguments)
    generator.build()
    os.environ.update(_LIMITS)
    generator.take_all_descriptors()
    with tempfile.TemporaryDirectory(prefix="coordinator-bench-", dir=asked.data_dir) as made:
        folder = Path(made)
        folder.chmod(0o755)
        new = Aged("new", _CONDITIONS, FOLDER / "new.log", folder / "new", REPOSITORY, asked.serve.split())
        aged = Aged("aged", _CONDITIONS, FOLDER / "aged.log", folder / "aged", REPOSITORY, asked.serve.split())
        try:
            with _state(asked, new, aged):
                if asked.queues or asked.consumers:
                    _deliver(asked, new, aged)
                else:
                    _compare(asked, new, aged)
        finally:
            new.stop()
            aged.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.staying")
    state = parser.add_mutually_exclusive_group(required=True)
    for name in ("deep", "messages", "held", "idle", "queues", "consumers"):
        state.add_argument(f"--{name}", type=int, default=0, metavar="N")
    parser.add_argument("--cells", default="post-10x8,retire-10x8", help="shell patterns with commas")
    parser.add_argument("--rounds", type=int, default=3, help="of each cell, in turns (3)")
    parser.add_argument("--data-dir", type=Path, help="where the folders of PostgreSQL are made")
    parser.add_argument("--serve", default="", metavar="FLAGS", help="more flags for `coordinator serve`")
    return parser


@contextmanager
def _state(asked: argparse.Namespace, new: Aged, aged: Aged) -> Iterator[None]:
    """What is asked for, in force during the block."""
    if asked.deep:
        aged.deepen(asked.deep)
        starts = [f"{aged.restart():.2f} s, a new one in {new.restart():.2f} s" for _ in range(asked.rounds)]
        print(f"started with {asked.deep:,} messages waiting in {'; '.join(starts)}", flush=True)
    elif asked.messages:
        _work(aged.server, f"--messages={asked.messages}", "--seconds=86400")
        print(f"{asked.messages:,} messages posted and retired", flush=True)
    with _held(aged, asked.held) if asked.held else _idle(aged, asked.idle) if asked.idle else nullcontext():
        yield


def _work(server: Server, *until: str) -> None:
    flags = ("--transaction=10", "--connections=8", "--slots=4", "--queue=work", "--warm=0", "--shape=durable")
    generator.run("mixed", server.port, *flags, *until)


@contextmanager
def _held(aged: Aged, seconds: int) -> Iterator[None]:
    _work(aged.server, "--seconds=2")
    with psycopg.connect(aged.url) as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select count(*) from coordinator.op")
        paced = (f"--connections={2 * _FEW}", f"--rate={_PACE}", "--warm=0", "--shape=durable", "--stall=120")
        load = generator.run("e2e", aged.server.port, *paced, "--queue=paced", f"--seconds={seconds}")
        print(f"a snapshot is held since {load.messages:,} messages in {load.seconds:.0f} s", flush=True)
        yield


@contextmanager
def _idle(aged: Aged, count: int) -> Iterator[None]:
    before = processes.memory(aged.server.groups())
    began = time.perf_counter()
    command = [str(PROGRAM), "idle", f"--port={aged.server.port}", f"--connections={count}", "--seconds=86400"]
    with subprocess.Popen([*command, "--stall=600"], stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout is not None
        try:
            # all are open, and a second is over
            assert held.stdout.readline() == "start\n"
            took = time.perf_counter() - began - 1
            time.sleep(_IDLE_SECONDS)
            assert held.poll() is None
            grown = processes.memory(aged.server.groups()).pss - before.pss
            each, used = grown / count / 1000, _share(aged.server)
            print(
                f"{count:,} connections, opened in {took:.1f} s: {each:.1f} kB each, {used:.1%} of a core", flush=True
            )
            yield
            assert held.poll() is None
        finally:
            held.kill()


def _share(server: Server, seconds: float = 10.0) -> float:
    """Of a core, of a server that is left alone."""
    before = server.snapshot()
    time.sleep(seconds)
    return processes.cpu_between(before, server.snapshot()).total / seconds


def _compare(asked: argparse.Namespace, new: Aged, aged: Aged) -> None:
    for cell in cells.all_cells():
        if cells.matches(cell.name, asked.cells):
            _in_turns(cell.name, asked.rounds, partial(_cell, cell), new, aged)


def _cell(cell: Cell, one: Aged) -> Result:
    stock = one.stock(cell)
    with one.ready(stock) as (server, queue):
        target = [f"--target={queue}"] if one.queue is not None and cell.mode == "post" else []
        return _run(server, cell.mode, *cell.flags(queue, stock), *target)


def _deliver(asked: argparse.Namespace, new: Aged, aged: Aged) -> None:
    many = asked.queues or asked.consumers

    def deliver(one: Aged) -> Result:
        pairs = many if one is aged else _FEW
        flags = [f"--connections={2 * pairs}", f"--queues={pairs if asked.queues else 1}", f"--rate={_PACE}"]
        with one.ready(0) as (server, queue):
            more = [f"--queue={queue}", "--window=100", f"--warm={_ATTACHED_SECONDS}", "--stall=120"]
            return _run(server, "e2e", *flags, *more)

    _in_turns(f"e2e to {many} {'queues' if asked.queues else 'consumers'}", asked.rounds, deliver, new, aged)


def _run(server: Server, mode: str, *flags: str) -> Result:
    load, cpu = server.under_load(mode, *_CONDITIONS.flags(), *flags)
    if load.most:
        print(f"  a consumer got {load.least:,} to {load.most:,} messages", flush=True)
    return Result(
        rate=load.messages / load.seconds,
        cpu_us=cpu.total / load.messages * 1e6,
        p50_ms=load.p50_us / 1000,
        p99_ms=load.p99_us / 1000,
    )


def _in_turns(name: str, rounds: int, measure: Callable[[Aged], Result], new: Aged, aged: Aged) -> None:
    found: dict[Aged, list[Result]] = {new: [], aged: []}
    for _ in range(rounds):
        for one, results in found.items():
            results.append(measure(one))
            print(f"{name:16} {'new ' if one is new else 'aged'} {results[-1]}", flush=True)
    pairs = list(zip(found[aged], found[new], strict=True))
    rate = statistics.median(old.rate / fresh.rate for old, fresh in pairs)
    cpu = statistics.median(old.cpu_us / fresh.cpu_us for old, fresh in pairs)
    print(f"{name:16} rate {rate:.2f}, processor time {cpu:.2f} times that of the new one", flush=True)


if __name__ == "__main__":
    main()
