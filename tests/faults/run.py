"""``python -m tests.faults.run``: clients of two services at work while faults strike, and what was found (F1 to F3).

What it does and how to read what it prints: ``docs/how-to/measure.md``.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.acceptance.engine_client import Answer, Client
from tests.acceptance.history import MOVED, Txn, left
from tests.faults.clients import (
    GROUP,
    PORT,
    Abroad,
    Application,
    Banker,
    Carrier,
    CheckablePoster,
    Checker,
    LinePoster,
    LineTaker,
    MovedTaker,
    Poster,
    Probe,
    Taker,
    joined,
    opened,
)
from tests.faults.hosts import Hosts
from tests.faults.kinds import Fault, Kinds
from tests.faults.record import ACCOUNTS, BALANCE, LINE, Checkable, Record, Sale, Store
from tests.fix_machines import why_not
from tests.fix_service import PATIENCE, REPOSITORY

FOLDER = REPOSITORY / "build" / "faults"
#: Transactions whose answer is known, and is asked for once more at the end.
_ASKED_AGAIN = 20_000
_AT_ONCE = 100
_KINDS: list[type[Abroad]] = [
    Poster, Poster, CheckablePoster, CheckablePoster, Taker, Taker, Taker, Taker, Carrier, MovedTaker, LinePoster,
    LinePoster, LineTaker, LineTaker, Banker, Banker, Checker, Checker,
]  # fmt: skip


@dataclass
class Away:
    """One fault. Seconds from its begin: ``lasted`` to its end; ``any``, ``there``: to the first commit of a client of
    both services, and of one of ``host`` alone, that it began after the strike.
    """

    kind: str
    host: str
    what: str
    at: float
    lasted: float
    any: float
    there: float


@dataclass
class Report:
    seed: int
    seconds: float = 0.0
    faults: list[Away] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)
    detached: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def table(self) -> str:
        """The time away by kind, in Markdown."""
        rows = [
            "| fault | times | lasted | until a client of both commits: median | 90 % | most "
            "| after its end, a client of that host: median | 90 % | most |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for kind in sorted({each.kind for each in self.faults}):
            of = [each for each in self.faults if each.kind == kind]
            lasted = statistics.median(each.lasted for each in of)
            there = [max(0.0, each.there - each.lasted) for each in of if each.host]
            away = _spread([each.any for each in of])
            rows.append(f"| {kind} | {len(of)} | {lasted:.1f} | {away} | {_spread(there)} |")
        return "\n".join(rows)

    def text(self) -> str:
        lines = [
            f"seed {self.seed}: {len(self.faults)} faults in {self.seconds:.0f} s, "
            f"{self.figures.get('operations', 0):,} operations, {len(self.violations)} violations",
            ", ".join(f"{count:,} {name}" for name, count in self.figures.items()),
            f"links closed by the service: {self.detached}",
            *(f"skipped: {kind} ({why})" for kind, why in self.skipped.items()),
            "",
            self.table(),
            "",
            *(f"VIOLATION: {each}" for each in self.violations[:100]),
        ]
        return "\n".join(lines)

    def write(self) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{self.seed}.md").write_text(self.text() + "\n")
        (FOLDER / f"{self.seed}.json").write_text(json.dumps(asdict(self), indent=1))


def _spread(found: list[float]) -> str:
    if not found:
        return "- | - | -"
    ordered = sorted(found)
    return f"{statistics.median(ordered):.1f} | {ordered[int(len(ordered) * 0.9 - 0.01)]:.1f} | {ordered[-1]:.1f}"


class Run:
    """Load, and faults one after the other; :meth:`check` ends the load."""

    def __init__(self, hosts: Hosts, seed: int) -> None:
        self._hosts = hosts
        self._dice = random.Random(seed)
        self.kinds = Kinds(hosts, self._dice)
        self.record = Record()
        self.report = Report(seed, skipped=self.kinds.skipped())
        both = [service.machine.address for service in hosts.services]
        with closing(self._client()) as client:
            opened(client, self.record, BALANCE)
        near, record = hosts.near, self.record
        self._probe = Probe(record, near, both, "probe", 0)
        self._probes = {
            service.machine.name: Probe(record, near, [service.machine.address], f"probe-{service.machine.name}", 1)
            for service in hosts.services
        }
        self._load: list[Abroad] = [self._probe, *self._probes.values()]
        for number, kind in enumerate(_KINDS):
            name = f"{LINE if kind is LinePoster else kind.__name__.lower()}-{number}"
            self._load.append(kind(record, (near, hosts.far)[number % 2], both, name, self._dice.getrandbits(32)))
        url = hosts.site.url()
        self._applications = [Application(record, hosts.far, url, f"sql-{number}", number) for number in range(2)]
        for each in (*self._load, *self._applications):
            each.start()

    def _client(self, group: str | None = None) -> Client:
        host = self._hosts.one.machine.address
        return self._hosts.far.run(lambda: Client(PORT, f"end {group}", host=host, producer_group=group))

    def strike(self, faults: int, every: float, seconds: float, names: list[str]) -> None:
        """``every``: seconds from one fault to the next, at least; none begins after ``seconds``."""
        start = time.monotonic()
        self._recovered(start)
        drawn = self.kinds.drawn(names)
        while len(self.report.faults) < faults and time.monotonic() < start + seconds:
            kind, fault = next(drawn)
            begun = time.monotonic()
            if not self._struck(kind, fault(), begun - start):
                break
            gc.collect()
            gc.freeze()  # the history: a walk through all of it would hold up the clients for seconds
            time.sleep(max(0.0, begun + every - time.monotonic()))
            self.report.seconds = time.monotonic() - start
            self.report.write()

    def _struck(self, kind: str, fault: Fault, at: float) -> bool:
        """One fault from its begin to the recovery; false: nothing recovers, or a client has failed."""
        begun = time.monotonic()
        try:
            struck = next(fault)  # it strikes
            in_place = time.monotonic()
            time.sleep(struck.seconds)
            next(fault, None)  # it is mended
            lasted = time.monotonic() - begun
            self._recovered(time.monotonic())
            self._hosts.wait_in_sync()
        except Exception as error:  # noqa: BLE001 - the history is to be looked at, whatever has failed
            self.report.violations.append(f"{kind}, {at:.0f} s after the begin: {type(error).__name__}: {error}")
            return False
        there = self._probes[struck.host].first_after(in_place) if struck.host else None
        anywhere = self._probe.first_after(in_place)
        assert anywhere is not None, "it has recovered"
        away = Away(kind, struck.host, struck.what, at, lasted, anywhere - begun, (there or begun) - begun)
        self.report.faults.append(away)
        print(
            f"{at:7.1f} {kind} {struck.host} {struck.what}: lasted {lasted:.1f}, away {away.any:.1f}, "
            f"there {away.there:.1f}",
            flush=True,
        )
        return not self.record.errors

    def _recovered(self, moment: float) -> None:
        """Wait until each probe has a commit answered that it began after ``moment``."""
        deadline = time.monotonic() + PATIENCE
        for probe in (self._probe, *self._probes.values()):
            while probe.first_after(moment) is None:
                assert time.monotonic() < deadline, f"{probe.name}: no commit is answered within {PATIENCE:g} s"
                assert not self.record.errors, "a client failed"
                time.sleep(0.01)

    # -- the end

    def check(self) -> None:
        """End the load, ask for what is unknown, and again for what is known, take all that is left, and compare."""
        self.record.stopping = True
        joined([*self._load, *self._applications], self.report.violations.append)
        bodies: list[str] = []
        try:
            url = self._hosts.primary.local_url
            letters = [f"%DLQ%{address}" for address in (MOVED, LINE, *ACCOUNTS)]
            for group in (None, GROUP):
                self._ask(group)
            with closing(self._client()) as client:
                bodies = left(client, url, LINE, *ACCOUNTS, *letters)
            store = self._settled_store(url)
            self.report.violations += self.record.violations_in(store, bodies)
        except Exception as error:  # noqa: BLE001 - the history is to be kept, whatever has failed
            self.report.violations += [*self.record.errors, f"the check: {type(error).__name__}: {error}"]
        self.report.figures = self.record.figures()
        self.report.detached = dict(self.record.detached)
        self.report.write()
        for service in self._hosts.services:
            log = FOLDER / f"{self.report.seed}-{service.machine.name}.log"
            log.write_text("\n".join(map(json.dumps, service.log_lines())))
        if self.report.violations:
            self.record.save(FOLDER / f"{self.report.seed}-history.jsonl", bodies)

    def _ask(self, group: str | None) -> None:
        """By a client of that producer group: a checkable transaction is decided by its own alone."""
        of_group = [
            txn for txn in self.record.txns
            if not isinstance(txn, Sale) and isinstance(txn, Checkable) == (group is not None)
        ]  # fmt: skip
        with closing(self._client(group)) as client:
            for worker in self._load:
                if worker.group == group:
                    worker.resolve(client)
            unknown = [txn for txn in of_group if txn.known is None and txn.wish != "none"]
            for txn, answer in self._answers(client, unknown):
                txn.resolved = answer
            known = [txn for txn in of_group if txn.known is not None and (txn.posted or txn.retired)]
            chosen = self._dice.sample(known, min(len(known), _ASKED_AGAIN // 2))
            for txn, answer in self._answers(client, chosen):
                self.record.again[txn.txn_id] = answer

    def _answers(self, client: Client, txns: list[Txn]) -> Iterator[tuple[Txn, Answer]]:
        for begin in range(0, len(txns), _AT_ONCE):
            some = txns[begin : begin + _AT_ONCE]
            asked = [client.ask_discharge(txn.txn_id, fail=txn.wish == "rollback") for txn in some]
            yield from zip(some, map(client.answer_of, asked), strict=True)

    def _settled_store(self, url: str) -> Store:
        """Once nothing is under way in it."""
        deadline = time.monotonic() + PATIENCE
        while any((store := Store.read(url)).rest.values()) and time.monotonic() < deadline:
            time.sleep(1)
        return store


def run(seed: int, faults: int, every: float, seconds: float, wanted: str) -> Report:
    """``wanted``: a part of the names of the kinds that strike, or several with commas; empty: all."""
    with ExitStack() as ends:
        folder = Path(tempfile.mkdtemp(prefix="coordinator-faults-"))
        ends.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)  # PostgreSQL runs as another user, who must be able to enter
        running = Run(Hosts(folder, ends), seed)
        names = [name for name in running.kinds.deck if any(part.strip() in name for part in wanted.split(","))]
        running.strike(faults, every, seconds, names)
        running.check()
    return running.report


def main(arguments: Sequence[str] | None = None) -> int:
    """0: nothing was found; 1: something was, and the history is kept; 2: there are no machines here."""
    asked = _parser().parse_args(arguments)
    if why := why_not():
        print(f"no machines: {why}", file=sys.stderr)
        return 2
    seed = random.SystemRandom().getrandbits(32) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)
    report = run(seed, asked.faults, asked.every, asked.seconds, asked.kinds)
    print(report.text())
    return 1 if report.violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.run", description=__doc__)
    parser.add_argument("--faults", type=int, default=400, help="how many, at most (default: %(default)s)")
    parser.add_argument("--every", type=float, default=8.0, help="seconds from one to the next (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="none begins later (default: %(default)s)")
    parser.add_argument("--kinds", default="", help="parts of their names, with commas (default: all)")
    parser.add_argument("--seed", type=int, help="what the faults are drawn from (default: a new one, printed)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
