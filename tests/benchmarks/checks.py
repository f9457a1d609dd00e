"""``python -m tests.benchmarks.checks``: what a look for transactions to check costs, as history grows (rule H12).

Undecided transactions of one producer group are due; a look takes 50 of them, as the service does, on one connection of
its own. Decided transactions have left the tables, but while a snapshot is held (a dump, a reconciliation) their rows
stay there, dead: the worst that history can do. In the end a service on the same store has traffic, too.

With ``--beside-traffic`` instead: how much the checks of 100,000 slow down the posts of others
(``tests/benchmarks/check_traffic.py``).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg

from coordinator.check_back import Marks
from coordinator.group.entries import now_micros
from store.asking import Queries
from store.embedded.running import running_url
from store.errors import StoreError
from store.questions import checks
from store.questions.checks import Taken
from store.tables import SCHEMA
from tests.benchmarks import check_traffic, generator
from tests.benchmarks.generator import FOLDER, Load
from tests.benchmarks.servers import start_service
from tests.fix_loop import EpollLoop

ME = 7
GROUP = "orders"
AT_ONCE = 50
_CHUNK = 500_000

_TXN = f"""insert into {SCHEMA}.txn (id, instance_id, owner, declared_at, timeout_at, posted, retired, producer_group,
                                     next_check_at, check_immunity_ms, check_interval_ms, most_checks, half_ids,
                                     address_id)
    select md5('{{0}}' || i)::uuid, {ME}, 'client', now(), now(), 1, 0, '{GROUP}', {{2}}, 6000, 30000, 15, array[i],
           1
      from generate_series(1, {{1}}) i"""
_DUE = f"update {SCHEMA}.txn set checks = 0, next_check_at = now() - interval '10 s'"


class FigureReader:
    """Asks as the service does, and measures."""

    def __init__(self, url: str) -> None:
        self._loop = EpollLoop()
        self._queries = Queries(self._loop, url, ME, lambda *_: None, lambda: None)
        self._marks = Marks(now_micros())
        self._queries.start()
        self._loop.run_until(lambda: self._queries.connection.up)

    def milliseconds(self, group: str) -> tuple[float, int]:
        """Of one look, and how many it took."""
        answers: list[Taken | StoreError] = []
        began = time.perf_counter()
        checks.take(self._queries, {group: self._marks.wanted(AT_ONCE, now_micros())}, ME, answers.append)
        while not answers:
            self._loop.turn(0.01)
        seconds = time.perf_counter() - began
        (answer,) = answers
        assert isinstance(answer, Taken), answer
        self._marks.scanned(answer.lows[group], full=len(answer.due) == AT_ONCE, seconds=seconds)
        return 1000 * seconds, len(answer.due)

    def all_of_the_past(self, group: str) -> list[float]:
        """Milliseconds of each look of an instance that comes, and of every one every ten minutes."""
        self._marks.again()
        looks: list[float] = []
        while not looks or not self._marks.complete:
            looks.append(self.milliseconds(group)[0])
        return looks

    def close(self) -> None:
        self._queries.close()
        self._loop.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--decided", type=int, default=10_000_000, help="in good time, so never checked (10000000)")
    parser.add_argument("--checked", type=int, default=1_000_000, help="decided after a check (1000000)")
    parser.add_argument("--undecided", type=int, help="and due (1000; with --beside-traffic 100000)")
    parser.add_argument("--beside-traffic", action="store_true", help="how much checks slow down the posts of others")
    parser.add_argument("--traffic", type=float, default=2000.0, help="posts a second beside the last looks (2000)")
    parser.add_argument("--rate", type=float, default=1000.0, help="of these posts, a second, at their pace (1000)")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured, alone and beside checks (10)")
    parser.add_argument("--rounds", type=int, default=5, help="of both (5)")
    parser.add_argument("--checkers", type=int, default=2, help="connections that answer checks (2)")
    asked = parser.parse_args(arguments)
    if asked.beside_traffic:
        count = 100_000 if asked.undecided is None else asked.undecided
        return check_traffic.main(count, asked.rate, asked.seconds, asked.rounds, asked.checkers)
    generator.build()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="coordinator-checks-") as name:
        data_dir = Path(name)
        data_dir.chmod(0o755)
        with start_service(data_dir=data_dir / "data", log=FOLDER / "checks.log", arguments=[]) as server:

            def traffic(started: Callable[[], None]) -> Load:
                flags = ["--target=traffic", "--connections=8", "--slots=64", "--stall=60"]
                paced = [f"--rate={asked.traffic}", f"--seconds={asked.seconds}"]
                return generator.run("plain", server.port, *flags, *paced, started=started)

            _measure(running_url(data_dir / "data"), asked.decided, asked.checked, asked.undecided or 1000, traffic)
    return 0


def _measure(url: str, decided: int, checked: int, undecided: int, traffic: Callable[..., Load]) -> None:
    with psycopg.connect(url, autocommit=True) as connection, psycopg.connect(url) as holding:

        def run(sql: str) -> object:
            return connection.execute(sql.encode())

        run(_TXN.format("undecided", undecided, "now()"))
        looks = FigureReader(url)
        _print(f"{undecided:,} undecided", run, looks, undecided)
        holding.execute("set transaction isolation level repeatable read")
        holding.execute("select 1")
        _decide(run, decided, "null")
        _print(f"and {decided:,} decided in good time while a snapshot was held", run, looks, undecided)
        _decide(run, checked, "now() - interval '1 hour' - i * interval '80 ms'")
        _print(f"and {checked:,} decided after a check while it was held", run, looks, undecided)
        _beside(traffic, run, looks, undecided)
        holding.rollback()
        run(f"vacuum {SCHEMA}.txn")
        _print("all of them after a vacuum", run, looks, undecided)
        looks.close()


def _decide(run: Callable[[str], object], count: int, due: str) -> None:
    """So many transactions come and go, some at a time."""
    for begin in range(0, count, _CHUNK):
        print(".", end="", file=sys.stderr, flush=True)
        some = min(_CHUNK, count - begin)
        name = f"decided {due} {begin} ".replace("'", "")
        run(_TXN.format(name, some, due).replace("'client'", "'gone'"))
        run(f"delete from {SCHEMA}.txn where owner = 'gone'")


def _beside(traffic: Callable[..., Load], run: Callable[[str], object], looks: FigureReader, undecided: int) -> None:
    """While it is held, and others post."""
    begun = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(traffic, begun.set)
        begun.wait()
        while not load.done():
            _print("  beside traffic", run, looks, undecided)
        posted = load.result()
    print(f"  the traffic: {posted.messages / posted.seconds:,.0f}/s, p99 {posted.p99_us / 1000:.1f} ms", flush=True)


def _print(what: str, run: Callable[[str], object], looks: FigureReader, undecided: int) -> None:
    past = looks.all_of_the_past(GROUP)
    run(_DUE)
    full = [looks.milliseconds(GROUP) for _ in range(undecided // AT_ONCE)]
    assert all(taken == AT_ONCE for _, taken in full), full
    empty = [looks.milliseconds(GROUP) for _ in range(20)]
    assert not any(taken for _, taken in empty), empty
    taking, finding = ([took for took, _ in each] for each in (full, empty))
    print(
        f"{what}: a look that takes {AT_ONCE} {statistics.median(taking):.1f} ms, at most {max(taking):.1f}; "
        f"one that finds none due {statistics.median(finding):.2f} ms, at most {max(finding):.2f}; "
        f"all of the past in {len(past)} looks, at most {max(past):.1f} ms each",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
