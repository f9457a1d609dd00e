"""``python -m tests.benchmarks.run``: measure the service cell by cell; beside it, on request, other servers.

How to run it and how to read it: ``docs/how-to/measure.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tests.benchmarks import cells, generator, java, processes, report
from tests.benchmarks.cells import Cell
from tests.benchmarks.contenders import Conditions, Contender, Other, Peer, RocketMq, Service
from tests.benchmarks.generator import FOLDER, REPOSITORY, GeneratorFailed
from tests.benchmarks.report import Idle, Measured
from tests.benchmarks.servers import ServerFailed

#: Servers are at rest when they use less than this share of one core; a measurement waits so long for it.
_REST_SHARE = 0.05
_REST_SECONDS = 20.0
_REST_STEP_SECONDS = 0.3

_IDLE_SECONDS = 3.0
_FLUSHES = 32


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all was measured; 1: not all was, the report says what; 2: nothing could be done."""
    asked = _parser().parse_args(arguments)
    chosen = [cell for cell in cells.all_cells(asked.slots) if cells.matches(cell.name, asked.cells)]
    idle_chosen = cells.matches(cells.IDLE, asked.cells)
    try:
        _check(asked, [cell.name for cell in chosen] + [cells.IDLE] * idle_chosen)
        generator.build()
        if _peers(asked) or asked.client == "jms":
            java.build()
    except (GeneratorFailed, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _stop)
    # Straight in the folder for temporary files: PostgreSQL may run as another user and has to get there.
    data_dir = Path(tempfile.mkdtemp(prefix="coordinator-bench-", dir=asked.data_dir))
    data_dir.chmod(0o755)
    contenders = _contenders(asked, data_dir)
    measured: list[Measured] = []
    idle: list[Idle] = []
    machine = _machine(asked)
    name = "report-jms" if asked.client == "jms" else "report"
    stopped = False
    try:
        if idle_chosen:
            idle += [_hold_idle(each, contenders) for each in contenders if each.own_load is None]
        for cell in chosen:
            for _ in range(asked.rounds):
                for contender in [each for each in contenders if each.takes(cell)]:
                    one = _measure(cell, contender, contenders, asked)
                    measured.append(one)
                    print(_line(one), file=sys.stderr, flush=True)
                    _write(name, machine, measured, idle)
    except KeyboardInterrupt:
        print("interrupted: what was measured is in the report", file=sys.stderr)
        stopped = True
    finally:
        memories = {
            each.name: processes.memory(each.groups()) for each in contenders if each.groups() != processes.Groups()
        }
        for contender in contenders:
            contender.stop()
        shutil.rmtree(data_dir, ignore_errors=True)
    machine["memory after the run"] = ", ".join(f"{name} {each.pss / 2**20:.0f} MiB" for name, each in memories.items())
    _write(name, machine, measured, idle)
    print(report.markdown(machine, measured, idle), end="")
    print(f"\nwritten to {FOLDER.relative_to(REPOSITORY)}/{name}.md and {name}.json", file=sys.stderr)
    failed = any(one.failure for one in measured) or any(one.failure for one in idle)
    return 1 if failed or stopped else 0


def _check(asked: argparse.Namespace, names: Sequence[str]) -> None:
    """:raises ValueError: when the flags leave nothing to measure, or what cannot be measured."""
    if not names:
        raise ValueError(f"--cells {asked.cells}: no such cell; they are {cells.IDLE}, post-1x1, ..., e2e-1x8")
    if asked.skip_service and asked.other is None and not _peers(asked):
        raise ValueError("--skip-service without another server leaves nothing to measure")
    unfit = [name for name in names if not name.startswith(("post-", "transfer-"))]
    if asked.client == "jms" and asked.rocketmq:
        raise ValueError("--rocketmq has a load of its own clients: not with --client jms")
    if asked.client == "jms" and unfit:
        raise ValueError(f"--client jms has the cells post-* and transfer-* alone, not {unfit[0]}")


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """A benchmark that is told to go takes its servers with it, as when it is interrupted."""
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", default="*", help="shell patterns with commas: post-*,*-10x8,idle-1000 (all)")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured, a cell (3)")
    parser.add_argument("--warm", type=float, default=1.0, help="seconds before that (1)")
    parser.add_argument("--rounds", type=int, default=1, help="how often each cell is measured (1)")
    parser.add_argument("--slots", type=int, help="transactions under way on each connection (8, 4, 2 by their size)")
    parser.add_argument("--body", type=int, default=256, help="octets of a message (256)")
    parser.add_argument(
        "--shape", choices=("bare", "durable", "jms"), default="durable", help="see measure.md (durable)"
    )
    parser.add_argument(
        "--checkable", action="store_true", help="transactions have a producer group; for the cells that post"
    )
    parser.add_argument("--sasl", action="store_true", help="connect with a SASL layer, ANONYMOUS")
    parser.add_argument("--stock-limit", type=int, default=1_500_000, help="most messages put in a queue (1500000)")
    parser.add_argument("--data-dir", type=Path, help="where PostgreSQL's folder is made: the disk that is measured")
    parser.add_argument(
        "--serve", default="", metavar="FLAGS", help='more flags for `coordinator serve`: "--workers 2"'
    )
    parser.add_argument(
        "--beside",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="another tree of the service, measured in turns: build/compiled, or a checkout with its compiled part",
    )
    parser.add_argument("--skip-service", action="store_true", help="measure the other server only")
    parser.add_argument(
        "--client",
        choices=("c", "jms"),
        default="c",
        help="jms: Qpid JMS, one transaction at a time on each connection; for post and transfer (c)",
    )
    parser.add_argument("--artemis", action="store_true", help="measure Apache ActiveMQ Artemis beside the service")
    parser.add_argument("--broker-j", action="store_true", help="measure Apache Qpid Broker-J beside the service")
    parser.add_argument("--rocketmq", action="store_true", help="measure Apache RocketMQ, in the cells post-1x* alone")
    parser.add_argument(
        "--warm-peers", type=float, default=20.0, help="seconds of load for each of these before its first cell (20)"
    )
    parser.add_argument("--other", metavar="COMMAND", help="another server, with {port} and perhaps {preload} in it")
    parser.add_argument("--other-name", default="other", help="its name in the report")
    parser.add_argument(
        "--other-queue", metavar="NAME", help="the queue it has to be consumed from (a new one each time)"
    )
    parser.add_argument("--other-postgres-pid-file", type=Path, metavar="FILE", help="postmaster.pid of its PostgreSQL")
    return parser


def _peers(asked: argparse.Namespace) -> dict[str, generator.Program]:
    """The brokers from Maven Central that are asked for, by their names in the report, and what starts each."""
    peers = {"artemis": java.ARTEMIS, "broker-j": java.BROKER_J, "rocketmq": java.ROCKETMQ}
    return {name: program for name, program in peers.items() if getattr(asked, name.replace("-", "_"))}


def _contenders(asked: argparse.Namespace, data_dir: Path) -> list[Contender]:
    conditions = Conditions(
        seconds=asked.seconds,
        warm_seconds=asked.warm,
        body_octets=asked.body,
        shape=asked.shape,
        sasl=asked.sasl,
        checkable=asked.checkable,
        stock_limit=asked.stock_limit,
    )
    found: list[Contender] = []
    if not asked.skip_service:
        for tree in (REPOSITORY, *asked.beside):
            name = "service" if tree is REPOSITORY else tree.resolve().name
            folder, log = data_dir / name, FOLDER / f"{name}.log"
            found.append(Service(name, conditions, log, folder, tree.resolve(), asked.serve.split()))
    for name, program in _peers(asked).items():
        log, folder = FOLDER / f"{name}.log", data_dir / name
        kind = RocketMq if name == "rocketmq" else Peer
        found.append(kind(name, conditions, log, folder, program=program, warm_seconds=asked.warm_peers))
    if asked.other is not None:
        found.append(
            Other(
                asked.other_name,
                conditions,
                FOLDER / "other.log",
                data_dir,
                command=asked.other,
                queue=asked.other_queue,
                postgres_pid_file=asked.other_postgres_pid_file,
            )
        )
    return found


def _measure(cell: Cell, contender: Contender, contenders: Sequence[Contender], asked: argparse.Namespace) -> Measured:
    """One cell on one server, once. What fails is in the result: the other cells are measured all the same."""
    result = Measured(cell=cell.name, server=contender.name, flush_us=0.0)
    stock = contender.stock(cell)
    try:
        with contender.ready(stock) as (server, queue):
            os.sync()  # what another has left to be written
            _await_rest(contenders)
            result = replace(result, flush_us=_flush_us(contender.flush_dir))
            load, cpu = server.under_load(
                cell.mode,
                *contender.conditions.flags(),
                *cell.flags(queue, stock),
                program=contender.own_load or (java.JMS_LOAD if asked.client == "jms" else generator.IN_C),
            )
            try:
                contender.empty(server, cell, queue, stock, load)
            except GeneratorFailed as error:
                print(f"{contender.name} still has messages of {cell.name}: {error}", file=sys.stderr)
    except (GeneratorFailed, ServerFailed) as error:
        return replace(result, failure=str(error))
    contender.note(cell, load)
    return replace(result, load=load, cpu=cpu)


def _hold_idle(contender: Contender, contenders: Sequence[Contender]) -> Idle:
    """The memory of a server just started, and that with connections which do nothing."""
    memories: list[processes.Memory] = []
    failure = ""
    try:
        with contender.ready(0) as (server, queue):
            _await_rest(contenders)
            memories.append(processes.memory(server.groups()))
            generator.run(
                "idle",
                server.port,
                *contender.conditions.flags(),
                f"--connections={cells.IDLE_CONNECTIONS}",
                f"--seconds={_IDLE_SECONDS}",
                f"--target={queue}",
                ended=lambda: memories.append(processes.memory(server.groups())),
            )
    except (GeneratorFailed, ServerFailed) as error:
        failure = str(error)
    memories += [processes.Memory()] * (2 - len(memories))
    return Idle(
        server=contender.name,
        connections=cells.IDLE_CONNECTIONS,
        before=memories[0],
        held=memories[1],
        failure=failure,
    )


def _await_rest(contenders: Sequence[Contender]) -> None:
    """Wait until no server works any more at what came before: leases that return, checkpoints, vacuum."""
    deadline = time.monotonic() + _REST_SECONDS
    while time.monotonic() < deadline:
        before = [processes.snapshot(contender.groups()) for contender in contenders]
        time.sleep(_REST_STEP_SECONDS)
        after = [processes.snapshot(contender.groups()) for contender in contenders]
        used = sum(processes.cpu_between(*pair).total for pair in zip(before, after, strict=True))
        if used < _REST_SHARE * _REST_STEP_SECONDS:
            return


def _flush_us(folder: Path) -> float:
    """Median time of writing 8 KiB and flushing them: the least that a commit costs on this disk, now."""
    times = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(_FLUSHES):
            file.seek(0)
            file.write(bytes(8192))
            before = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - before)
    return statistics.median(times) * 1e6


def _machine(asked: argparse.Namespace) -> dict[str, Any]:
    models = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    shape = (
        f"{asked.seconds:g} s measured after {asked.warm:g} s, {asked.rounds} round(s), "
        f"{asked.body} octets a message ({asked.shape})" + (", checkable" if asked.checkable else "")
    )
    if asked.client == "jms":
        shape = shape.replace(asked.shape, "Qpid JMS, one transaction at a time on each connection")
    slots = ", ".join(f"{count} of {size}" for size, count in cells.SLOTS.items())
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip() or "unknown",
        "machine": f"{len(os.sched_getaffinity(0))} x {models[0] if models else platform.machine()}, "
        f"{memory / 2**20:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}",
        "load": f"{shape}, transactions under way a connection: {asked.slots or slots}",
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()


def _line(one: Measured) -> str:
    row = report.rows([one])[0]
    if one.failure:
        return f"{one.cell:16} {one.server:10} FAILED {one.failure}"
    return (
        f"{one.cell:16} {one.server:10} {row.messages_per_second:9,.0f}/s  service {row.service_us:6.2f}"
        f"  postgres {row.backends_us:6.2f} + {row.background_us:5.2f}  client {row.client_us:5.2f} us"
        f"  p50 {(row.p50_us or 0) / 1000:7.2f}  p99 {(row.p99_us or 0) / 1000:7.2f} ms  flush {row.flush_us:6.0f} us"
    )


def _write(name: str, machine: dict[str, Any], measured: Sequence[Measured], idle: Sequence[Idle]) -> None:
    """After each cell, so that an interrupted run is not lost."""
    (FOLDER / f"{name}.md").write_text(report.markdown(machine, measured, idle), encoding="utf-8")
    (FOLDER / f"{name}.json").write_text(
        json.dumps(report.as_json(machine, measured, idle), indent=1), encoding="utf-8"
    )


if __name__ == "__main__":
    sys.exit(main())
