"""``python -m tests.fuzz.run``: fuzz a service of its own, and say what it found.

What it does and how to read what it prints: ``docs/how-to/measure.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random, SystemRandom

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.fix_service import PATIENCE, REPOSITORY, running
from tests.fuzz import compiled, logins, oracle
from tests.fuzz.cases import Case, load, save
from tests.fuzz.conversation import Conversation
from tests.fuzz.decoders import Broken, Decoders
from tests.fuzz.driver import Driver, Hang
from tests.fuzz.grammar import QUEUES, Grammar
from tests.fuzz.mutation import Mutation
from tests.fuzz.oracle import Bystander, Watched
from tests.fuzz.tls import Contexts, behind_tls
from tests.fuzz.websocket import in_websocket

FOLDER = REPOSITORY / "build" / "fuzz"

MIB = 1 << 20
#: Memory after warm-up and at the end may differ by this: the allocator's own, and what the service keeps of addresses
MOST_GROWTH = 24 * MIB
_MOST_FAILURES = 10
_LOOK_SECONDS = 0.5
#: of the connections: a handshake costs what some hundreds of frames do
_BEHIND_TLS = 0.1
_IN_WEBSOCKETS = 0.1
#: frames between two times that the queues are emptied
_PIECE = 100_000


@dataclass
class Report:
    """What a run came to. ``failures``: a text for each, with the file that replays it."""

    seed: int
    failures: list[str] = field(default_factory=list)
    frames: Counter[tuple[str, str]] = field(default_factory=Counter)
    cases: Counter[tuple[str, str]] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    worst: float = 0.0
    worst_beside: float = 0.0
    rounds: int = 0
    consumed: int = 0
    #: inputs of the decoders by themselves, and seconds of processor time for the slowest
    decoded: int = 0
    worst_decoder: float = 0.0
    memory: tuple[int, int] = (0, 0)
    descriptors: tuple[int, int] = (0, 0)

    @property
    def total(self) -> int:
        return sum(self.frames.values())


def cases(seed: int) -> Iterator[Case]:
    """Of both generators, by turns, for ever, some behind TLS or in a WebSocket; the same for the same seed."""
    random = Random(seed)
    grammar, mutation = Grammar(random), Mutation(random)
    for number in count():
        made = mutation.case() if number % 2 else Conversation(grammar, random).case()
        drawn = random.random()
        if drawn < _BEHIND_TLS:
            yield behind_tls(random, made)
        elif drawn < _BEHIND_TLS + _IN_WEBSOCKETS:
            yield in_websocket(random, made)
        else:
            yield made


class Run:
    """One service under fuzzing. ``bound``: seconds that an answer may take."""

    def __init__(self, service: Watched, seed: int, *, width: int = 16, bound: float = 1.0) -> None:
        self._service = service
        self.report = Report(seed)
        self._pid = service.worker
        self._driver = Driver(
            service.ports,
            Contexts(service.ca),
            width=width,
            bound=bound,
            patience=PATIENCE,
            busy=lambda: oracle.processor_seconds(self._pid),
        )
        self._looked = 0.0
        self._known: set[str] = set()

    def play(self, found: Iterator[Case], frames: int | None, warm_up: int, progress: Progress | None = None) -> Report:
        """``warm_up``: frames before memory is measured for the first time; ``frames``: those after it."""
        report, driver = self.report, self._driver
        task = None if progress is None else progress.add_task("frames", total=warm_up + (frames or 0))
        start = time.monotonic()
        beside = Bystander(self._service.port)

        def watch() -> None:
            now = time.monotonic()
            if now - self._looked < _LOOK_SECONDS:
                return
            self._looked = now
            self._look()
            if beside.error is not None:
                self._fail(f"the client beside the fuzzing failed: {beside.error!r}")
                raise _Enough
            if progress is not None and task is not None:
                progress.update(task, completed=driver.total)

        before = (0, 0)
        try:
            if warm_up:
                self._play(found, warm_up, watch)
            before = (self._memory(), oracle.descriptors(self._pid))
            self._play(found, frames, watch)
        except (Hang, OSError) as error:
            self._fail(f"{type(error).__name__}: {error}")
        except _Enough:
            pass
        finally:
            driver.close()
        report.seconds = time.monotonic() - start
        with contextlib.suppress(_Enough):
            self._look()
            self._finish(beside, before)
        report.frames, report.cases, report.ends = driver.frames, driver.cases, driver.ends
        report.worst = driver.worst
        report.worst_beside, report.rounds = beside.worst, beside.rounds
        report.refusals = self._service.routine
        return report

    def _play(self, found: Iterator[Case], frames: int | None, watch: Callable[[], None]) -> None:
        """In pieces, between which the queues are emptied: what they hold is not the fuzzing's, and grows with it."""
        if frames is None:
            self._driver.play(found, None, watch)
            return
        goal = self._driver.total + frames
        while (left := goal - self._driver.total) > 0:
            self._driver.play(found, min(left, _PIECE), watch)
            self.report.consumed += oracle.consume_all(self._service, QUEUES)

    def _memory(self) -> int:
        return oracle.memory(self._pid)

    def _finish(self, beside: Bystander, before: tuple[int, int]) -> None:
        """What holds when all fuzzed connections are gone."""
        report = self.report
        try:
            beside.stop()
            report.consumed += oracle.consume_all(self._service, QUEUES)
            left = oracle.left_over(self._service)
        except (AssertionError, OSError) as error:
            self._fail(f"after the fuzzing: {error!r}, by {error.__cause__!r}")
            return
        self._look()
        if any(left.values()):
            self._fail(f"left in the store when every connection was closed: {left}")
        if self._known or not before[0]:
            return  # another process than before, maybe
        after = (self._settled_memory(before[0] + MOST_GROWTH), self._descriptors(before[1]))
        report.memory, report.descriptors = (before[0], after[0]), (before[1], after[1])
        if after[0] - before[0] > MOST_GROWTH:
            self._fail(f"memory grew from {before[0] / MIB:.1f} to {after[0] / MIB:.1f} MiB")
        if after[1] > before[1]:
            self._fail(f"{before[1]} descriptors were open after the warm-up, {after[1]} are at the end")

    def _settled_memory(self, wanted: int) -> int:
        """What was kept for connections is let go when their deadlines are due, half a minute later at most."""
        deadline = time.monotonic() + PATIENCE
        while (found := self._memory()) > wanted and time.monotonic() < deadline:
            time.sleep(1)
        return found

    def _descriptors(self, wanted: int) -> int:
        deadline = time.monotonic() + PATIENCE
        while (found := oracle.descriptors(self._pid)) > wanted and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _look(self) -> None:
        """What the service has logged, and that it lives."""
        for text in self._service.failures():
            if text not in self._known:
                self._known.add(text)
                self._fail(text)
        if len(self._known) >= _MOST_FAILURES or self._service.worker != self._pid:
            raise _Enough

    def _fail(self, why: str) -> None:
        path = FOLDER / f"{self.report.seed}-{len(self.report.failures)}.json"
        save(path, self._driver.recent, why)
        self.report.failures.append(f"{why}\n(replay: make fuzz ARGS='--replay {path.relative_to(REPOSITORY)}')")


class _Enough(Exception):
    """Whether more frames would show nothing new."""


@contextlib.contextmanager
def watched_service() -> Iterator[Watched]:
    """A service with an empty store; removes its data at the end."""
    patterns = '[{"match": "fuzz-topic-*", "routing": "topic"}, {"match": "fuzz-1", "max_attempts": 2}]'
    settings = {
        "addresses.patterns": patterns, "login.plain": "always", "tokens.issuer": logins.ISSUER,
        "tokens.audience": logins.AUDIENCE,
    }  # fmt: skip

    def watched(folder: Path) -> Watched:
        keys = folder / "keys.json"
        keys.write_text(logins.KEYS)
        return Watched(folder, {**settings, "tokens.keys": str(keys)})

    with running(watched) as service:
        yield service


def main(arguments: Sequence[str] | None = None) -> int:
    """0: nothing was found; 1: something was, and how to see it again is printed."""
    asked = _parser().parse_args(arguments)
    console = Console()
    seed = SystemRandom().getrandbits(32) if asked.seed is None else asked.seed
    console.print(f"seed {seed}")
    with watched_service() as service, _progress(console) as progress:
        if asked.replay is not None:
            found = load(asked.replay)
            run = Run(service, seed, width=asked.width, bound=asked.bound)
            report = run.play(iter(found), None, 0, progress)
        else:
            warm_up = min(asked.frames // 10, 200_000)
            run = Run(service, seed, width=asked.width, bound=asked.bound)
            report = run.play(cases(seed), asked.frames - warm_up, warm_up, progress)
            _decoders(report, asked.frames // 4, progress)
    _print(console, report)
    same = asked.replay is not None or _compiled(console, seed, asked.inputs)
    return 0 if same and not report.failures else 1


def _decoders(report: Report, inputs: int, progress: Progress) -> None:
    """The decoders by themselves: what a run of the wire costs a connection for, they take by the thousand."""
    decoders = Decoders(Random(report.seed))
    task = progress.add_task("decoders", total=inputs)
    gc.collect()
    gc.freeze()  # a walk of the collector of garbage through what a long run has left takes seconds: of no decoder
    try:
        while report.decoded < inputs:
            many = min(1000, inputs - report.decoded)
            decoders.play(many)
            report.decoded += many
            progress.update(task, completed=report.decoded)
    except Broken as error:
        report.failures.append(f"{error}, by {error.__cause__!r}\n(again: --seed {report.seed})")
    report.worst_decoder = decoders.worst


def _compiled(console: Console, seed: int, inputs: int) -> bool:
    """The compiled part beside its twins, as it is installed and under the sanitizers: whether nothing was found."""
    try:
        modules = compiled.installed()
        if modules is None:
            console.print("the compiled part is not there: .ci/bootstrap compiles it")
        else:
            console.print(f"compiled: {compiled.said_of(modules, seed, inputs)}")
        console.print(f"compiled, under ASan and UBSan: {compiled.sanitized(seed, inputs)}")
    except (compiled.Differs, subprocess.CalledProcessError) as error:
        console.print(f"FAILED: {error}\n(again: --seed {seed})", style="red", markup=False)
        return False
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument(
        "--frames", type=int, default=200_000, help="how many, of both generators (default: %(default)s)"
    )
    parser.add_argument(
        "--inputs", type=int, default=1_000_000, help="of the compiled part by itself (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, help="what the cases are drawn from (default: a new one, printed)")
    parser.add_argument("--width", type=int, default=16, help="connections at once (default: %(default)s)")
    parser.add_argument("--bound", type=float, default=1.0, help="seconds an answer may take (default: %(default)s)")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="the cases of a failure, in their order")
    return parser


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    )


def _print(console: Console, report: Report) -> None:
    table = Table("generator", "stage", "connections", "frames")
    for (generator, stage), frames in sorted(report.frames.items()):
        table.add_row(generator, stage, f"{report.cases[generator, stage]:,}", f"{frames:,}")
    console.print(table)
    ends = ", ".join(f"{count:,} {how}" for how, count in report.ends.most_common())
    console.print(f"{report.total:,} frames in {report.seconds:.0f} s ({report.total / report.seconds:,.0f}/s); {ends}")
    console.print(f"refusals in the log: {dict(report.refusals)}")
    console.print(f"the slowest end of a connection: {report.worst * 1000:.0f} ms")
    console.print(f"beside: {report.rounds} rounds, the slowest {report.worst_beside * 1000:.0f} ms")
    console.print(f"{report.consumed:,} messages were consumed from the queues")
    console.print(f"memory: {report.memory[0] / MIB:.1f} -> {report.memory[1] / MIB:.1f} MiB; "
                  f"descriptors: {report.descriptors[0]} -> {report.descriptors[1]}")  # fmt: skip
    console.print(f"decoders: {report.decoded:,} inputs, the slowest took {report.worst_decoder * 1000:.0f} ms")
    for failure in report.failures:
        console.print(f"FAILED: {failure}", style="red", markup=False)


if __name__ == "__main__":
    sys.exit(main())
