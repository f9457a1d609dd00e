"""What was measured, as a table for people and as JSON for programs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.benchmarks.generator import Load
from tests.benchmarks.processes import Cpu, Memory


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One server under one cell's load, once. ``failure``: why there are no figures."""

    cell: str
    server: str
    #: Median of a few flushes (fdatasync) of 8 KiB, just before.
    flush_us: float
    load: Load | None = None
    cpu: Cpu | None = None
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Idle:
    """The memory of one server: with no connection, and with so many that do nothing."""

    server: str
    connections: int
    before: Memory
    held: Memory
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One server in one cell, over all rounds. Processor times are microseconds a committed message."""

    cell: str
    server: str
    rounds: int
    messages: int
    messages_per_second: float
    #: Medians over the rounds; None where nothing was timed.
    p50_us: float | None
    p99_us: float | None
    service_us: float
    backends_us: float
    background_us: float
    client_us: float
    flush_us: float
    #: Of these rounds, how many ended early because the queue would have run dry.
    limited: int
    failures: tuple[str, ...]

    @property
    def server_us(self) -> float:
        """Service and PostgreSQL together."""
        return self.service_us + self.backends_us + self.background_us


def rows(measured: Sequence[Measured]) -> list[Row]:
    """One row a cell and server, in the order in which they came."""
    keys = list(dict.fromkeys((each.cell, each.server) for each in measured))
    return [_row([each for each in measured if (each.cell, each.server) == key]) for key in keys]


def _row(rounds: Sequence[Measured]) -> Row:
    loads = [each.load for each in rounds if each.load is not None and each.cpu is not None]
    cpus = [each.cpu for each in rounds if each.load is not None and each.cpu is not None]
    timed = [load for load in loads if load.latencies]
    messages = sum(load.messages for load in loads)
    seconds = sum(load.seconds for load in loads)

    def each_us(total: float) -> float:
        return total / messages * 1e6 if messages else 0.0

    return Row(
        cell=rounds[0].cell,
        server=rounds[0].server,
        rounds=len(rounds),
        messages=messages,
        messages_per_second=messages / seconds if seconds else 0.0,
        p50_us=statistics.median(load.p50_us for load in timed) if timed else None,
        p99_us=statistics.median(load.p99_us for load in timed) if timed else None,
        service_us=each_us(sum(cpu.service for cpu in cpus)),
        backends_us=each_us(sum(cpu.backends for cpu in cpus)),
        background_us=each_us(sum(cpu.background for cpu in cpus)),
        client_us=each_us(sum(load.cpu_seconds for load in loads)),
        flush_us=statistics.median(each.flush_us for each in rounds),
        limited=sum(load.limited for load in loads),
        failures=tuple(each.failure for each in rounds if each.failure),
    )


def markdown(machine: dict[str, Any], measured: Sequence[Measured], idle: Sequence[Idle]) -> str:
    """The whole report."""
    parts = ["\n".join(f"- {name}: {value}" for name, value in machine.items())]
    if measured:
        parts.append(_cells_table(rows(measured)))
    if any(not each.failure for each in idle):
        parts.append(_idle_table(idle))
    failures = [f"- {row.cell}, {row.server}: {text}" for row in rows(measured) for text in row.failures]
    failures += [f"- idle, {each.server}: {each.failure}" for each in idle if each.failure]
    if failures:
        parts.append("Failed:\n\n" + "\n".join(failures))
    return "\n\n".join(parts) + "\n"


def as_json(machine: dict[str, Any], measured: Sequence[Measured], idle: Sequence[Idle]) -> dict[str, Any]:
    return {
        "machine": machine,
        "rows": [asdict(row) for row in rows(measured)],
        "idle": [asdict(each) for each in idle],
        "measured": [asdict(each) for each in measured],
    }


def _cells_table(all_rows: Sequence[Row]) -> str:
    servers = list(dict.fromkeys(row.server for row in all_rows))
    header = [
        "cell",
        "server",
        "messages/s",
        "p50 ms",
        "p99 ms",
        "service us",
        "backends us",
        "background us",
        "client us",
        "flush us",
    ]
    for name in servers[1:]:
        header += [f"rate / {name}", f"CPU / {name}"]
    lines = []
    for row in all_rows:
        costs = (row.service_us, row.backends_us, row.background_us, row.client_us)
        line = [
            row.cell,
            row.server,
            (f"{row.messages_per_second:,.0f}" if row.messages else "-") + ("*" if row.limited else ""),
            _ms(row.p50_us),
            _ms(row.p99_us),
            *(f"{us:.2f}" if row.messages else "-" for us in costs),
            f"{row.flush_us:,.0f}",
        ]
        for name in servers[1:]:
            other = next((each for each in all_rows if (each.cell, each.server) == (row.cell, name)), None)
            if row.server != servers[0] or other is None or not row.messages:
                line += ["", ""]
            else:
                line += [
                    _ratio(row.messages_per_second, other.messages_per_second),
                    _ratio(row.server_us, other.server_us),
                ]
        lines.append(line)
    table = _table(header, lines, texts=2)
    if any(row.limited for row in all_rows):
        table += "\n\n\\* measured for a shorter time: the queue would have run dry."
    return table


def _idle_table(idle: Sequence[Idle]) -> str:
    header = [
        "server",
        "part",
        "connections",
        "RSS MiB before",
        "RSS MiB held",
        "PSS MiB before",
        "PSS MiB held",
        "PSS kB a connection",
    ]
    lines = []
    for each in idle:
        for part in ("supervisor", "workers", "postgres"):
            memories = (each.before, each.held)
            values = [getattr(memory, f"{part}_{kind}") for kind in ("rss", "pss") for memory in memories]
            if not any(values):  # this server has no such part
                continue
            growth = (values[3] - values[2]) / each.connections / 1000
            shown = [f"{value / 2**20:.1f}" for value in values]
            lines.append([each.server, part, f"{each.connections:,}", *shown, f"{growth:.1f}"])
    return _table(header, lines, texts=2)


def _table(header: Sequence[str], lines: Sequence[Sequence[str]], *, texts: int) -> str:
    """The first ``texts`` columns are left-aligned, the others are numbers."""
    widths = [max(len(line[column]) for line in (header, *lines)) for column in range(len(header))]

    def show(line: Sequence[str]) -> str:
        cells = [
            text.ljust(width) if column < texts else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        return "| " + " | ".join(cells) + " |"

    rule = ["-" * width if column < texts else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join([show(header), show(rule), *map(show, lines)])


def _ms(us: float | None) -> str:
    return "-" if us is None else f"{us / 1000:.2f}"


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}" if theirs else "-"
