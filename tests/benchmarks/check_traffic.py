"""``python -m tests.benchmarks.checks --beside-traffic``: what checks of many undecided transactions do to the posts of
others, measured in turns: traffic alone, and beside checkers that answer.

The transactions are put straight into the store as the service writes them: a half each, all due. Traffic is plain
durable posts to another queue, at a pace and as fast as it goes. A paced post counts from when it was due.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from store.embedded.running import running_url
from store.ids import ADMINISTRATION, EPOCH_MS
from store.tables import SCHEMA
from tests.benchmarks import generator, processes
from tests.benchmarks.generator import FOLDER, Load
from tests.benchmarks.planting import NEW_OP_ID
from tests.benchmarks.processes import Cpu
from tests.benchmarks.servers import Server, start_service

GROUP = "orders"
_AT_ONCE = 10_000
#: a data section of 256 octets
_MESSAGE = "'\\x005375b000000100'::bytea || convert_to(repeat('x', 256), 'UTF8')"

#: how many, and the time before which their halves were posted, one in a millisecond
_UNDECIDED = f"""
    with made as materialized (
      select {NEW_OP_ID} as txn_id,
             ((%(before)s::int8 - {EPOCH_MS} - g) << 22) | ({ADMINISTRATION} << 12) as id
        from generate_series(1, %(count)s::int8) g),
    address as (select id from {SCHEMA}.address where name = '{GROUP}'),
    halves as (
      insert into {SCHEMA}.half (id, txn_id, address_id, message)
      select m.id, m.txn_id, a.id, {_MESSAGE} from made m, address a)
    insert into {SCHEMA}.txn (id, instance_id, owner, declared_at, timeout_at, posted, retired, producer_group,
                              next_check_at, check_immunity_ms, check_interval_ms, most_checks, half_ids, address_id)
    select m.txn_id, (select max(id) from {SCHEMA}.instance), 'gone', now(), now(), 0, 0, '{GROUP}',
           now(), 6000, 30000, 15, array[m.id], a.id from made m, address a"""
_LEFT = f"select count(*) from {SCHEMA}.txn where producer_group = '{GROUP}'"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One measurement; ``decided``: by checks meanwhile."""

    load: Load
    cpu: Cpu
    decided: int

    @property
    def rate(self) -> float:
        return self.load.messages / self.load.seconds


class Beside:
    """A service, and the connection by which the benchmark looks into its store."""

    def __init__(self, server: Server, store: psycopg.Connection, seconds: float, checkers: int) -> None:
        self._server = server
        self._store = store
        self._seconds = seconds
        self._checkers = checkers
        self._before_ms = int(time.time() * 1000)

    def left(self) -> int:
        row = self._store.execute(_LEFT.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def make(self, count: int) -> None:
        for done in range(0, count, _AT_ONCE):
            some = min(_AT_ONCE, count - done)
            self._store.execute(_UNDECIDED.encode(), {"count": some, "before": self._before_ms})
            self._before_ms -= some
        for table in ("txn", "entry"):
            self._store.execute(f"vacuum analyze {SCHEMA}.{table}".encode())
        self._store.execute(b"checkpoint")

    @contextlib.contextmanager
    def checking(self) -> Iterator[None]:
        """Checkers are attached, and accept what they get."""
        arguments = [f"--port={self._server.port}", f"--queue=$check/{GROUP}", f"--connections={self._checkers}"]
        checkers = subprocess.Popen(
            [str(generator.PROGRAM), "check", *arguments, "--seconds=86400", "--stall=3600"],
            stdout=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            checkers.terminate()
            checkers.wait()
            self._await_rest()

    def _await_rest(self) -> None:
        """What checkers have answered is decided also when they have gone."""
        before = -1
        while before != (before := self.left()):
            time.sleep(1)

    def traffic(self, rate: float) -> Measured:
        """``rate``: posts a second; 0: as fast as they go."""
        seen: list[tuple[processes.Snapshot, int]] = []

        def look() -> None:
            seen.append((self._server.snapshot(), self.left()))

        flags = ["--target=traffic", "--connections=8", f"--seconds={self._seconds}", "--stall=60"]
        paced = [f"--rate={rate}", "--slots=64"] if rate else []
        load = generator.run("plain", self._server.port, *flags, *paced, started=look, ended=look)
        (before, due_before), (after, due_after) = seen
        return Measured(load=load, cpu=processes.cpu_between(before, after), decided=due_before - due_after)


def main(undecided: int, rate: float, seconds: float, rounds: int, checkers: int) -> int:
    generator.build()
    with tempfile.TemporaryDirectory(prefix="coordinator-checks-") as name:
        data_dir = Path(name)
        data_dir.chmod(0o755)
        FOLDER.mkdir(parents=True, exist_ok=True)
        with (
            start_service(data_dir=data_dir / "data", log=FOLDER / "checks.log", arguments=[]) as server,
            psycopg.connect(running_url(data_dir / "data"), autocommit=True) as store,
        ):
            generator.run("plain", server.port, f"--target={GROUP}", "--messages=1", "--warm=0")
            _measure(Beside(server, store, seconds, checkers), undecided, rate, rounds)
    return 0


def _measure(beside: Beside, undecided: int, rate: float, rounds: int) -> None:
    beside.traffic(0)  # warm
    for pace in (rate, 0.0):
        beside.make(undecided - beside.left())
        alone, together = [], []
        for _ in range(rounds):
            alone.append(beside.traffic(pace))
            _print("alone", alone[-1])
            with beside.checking():
                together.append(beside.traffic(pace))
            _print("beside checks", together[-1])
        _compare(f"{pace:g}/s" if pace else "as fast as it goes", alone, together)
    left, began = beside.left(), time.monotonic()
    with beside.checking():
        while beside.left():
            time.sleep(0.5)
        took = time.monotonic() - began
    print(f"the {left:,} that were left, without traffic: {took:.0f} s, {left / took:,.0f}/s")


def _print(what: str, one: Measured) -> None:
    each = 1e6 / one.load.messages
    print(
        f"  {what:14} {one.rate:8,.0f}/s  p50 {one.load.p50_us / 1000:6.2f}  p99 {one.load.p99_us / 1000:6.2f} ms  "
        f"service {one.cpu.service * each:6.1f}  PostgreSQL {(one.cpu.backends + one.cpu.background) * each:6.1f} us "
        f"a post  decided {one.decided / one.load.seconds:6,.0f}/s",
        flush=True,
    )


def _compare(pace: str, alone: Sequence[Measured], together: Sequence[Measured]) -> None:
    """Each round by itself, then the median: what else the machine does is in both parts of a round."""

    def times(figures: Sequence[float], others: Sequence[float]) -> str:
        return f"{statistics.median(two / one for one, two in zip(figures, others, strict=True)):.2f}"

    rate = times([one.rate for one in alone], [one.rate for one in together])
    p50 = times([one.load.p50_us for one in alone], [one.load.p50_us for one in together])
    p99 = times([one.load.p99_us for one in alone], [one.load.p99_us for one in together])
    cpu = times(*([one.cpu.total / one.load.seconds for one in each] for each in (alone, together)))
    print(
        f"{pace}: beside checks the rate is {rate} times, p50 {p50}, p99 {p99}, CPU {cpu} times that alone", flush=True
    )
