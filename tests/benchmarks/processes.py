"""What a server's processes cost: processor time and memory, read from ``/proc``.

Times come from ``schedstat`` (nanoseconds; ``stat`` counts in ticks of 10 ms), see proc(5). A process is PostgreSQL's
when its name is ``postgres``; its titles tell those that serve a connection (backends) from the others (background:
postmaster, checkpointer, walwriter, io workers, autovacuum, ...).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

#: What stands after "postgres: " in the title of a process that serves no connection (PostgreSQL's miscinit.c).
_BACKGROUND = (
    "archiver",
    "autovacuum",
    "background writer",
    "checkpointer",
    "io worker",
    "logical replication",
    "parallel worker",
    "slotsync",
    "startup",
    "walreceiver",
    "walsender",
    "walsummarizer",
    "walwriter",
)


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """Seconds of processor time."""

    service: float
    backends: float
    background: float

    @property
    def total(self) -> float:
        return self.service + self.backends + self.background


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Octets. ``rss`` counts what processes share once for each, ``pss`` shares it out between them."""

    supervisor_rss: int = 0
    supervisor_pss: int = 0
    workers_rss: int = 0
    workers_pss: int = 0
    postgres_rss: int = 0
    postgres_pss: int = 0

    @property
    def pss(self) -> int:
        """Of all processes together."""
        return self.supervisor_pss + self.workers_pss + self.postgres_pss


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Process ids by their part. A server that is one process has no supervisor: it is the worker."""

    supervisor: tuple[int, ...] = ()
    workers: tuple[int, ...] = ()
    backends: tuple[int, ...] = ()
    background: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Seconds of processor time so far, by process."""

    service: dict[int, float] = field(default_factory=dict)
    backends: dict[int, float] = field(default_factory=dict)
    background: dict[int, float] = field(default_factory=dict)
    #: Of PostgreSQL's children that have ended (an autovacuum worker lives for moments), over all times.
    ended: float = 0.0


def groups(server: int | None, postmaster: int | None) -> Groups:
    """The processes under ``server``; PostgreSQL's are among them, or under ``postmaster`` where one is given."""
    ours = _tree(server) if server is not None else []
    postgres = [pid for pid in ours if _name(pid) == "postgres"]
    if postmaster is not None:
        postgres += [pid for pid in _tree(postmaster) if pid not in postgres]
    rest = [pid for pid in ours if pid not in postgres]
    return Groups(
        supervisor=tuple(rest[:1]) if len(rest) > 1 else (),
        workers=tuple(rest[1:] if len(rest) > 1 else rest),
        backends=tuple(pid for pid in postgres if _is_backend(pid)),
        background=tuple(pid for pid in postgres if not _is_backend(pid)),
    )


def snapshot(of: Groups) -> Snapshot:
    return Snapshot(
        service={pid: cpu_seconds(pid) for pid in of.supervisor + of.workers},
        backends={pid: cpu_seconds(pid) for pid in of.backends},
        background={pid: cpu_seconds(pid) for pid in of.background},
        ended=sum(_children_cpu_seconds(pid) for pid in of.background),
    )


def cpu_between(before: Snapshot, after: Snapshot) -> Cpu:
    """What was used between the two; that of PostgreSQL's processes which ended meanwhile counts as background."""
    gone = sum(
        seconds
        for earlier, later in ((before.backends, after.backends), (before.background, after.background))
        for pid, seconds in earlier.items()
        if pid not in later
    )
    return Cpu(
        service=_used(before.service, after.service),
        backends=_used(before.backends, after.backends),
        background=_used(before.background, after.background) + max(0.0, after.ended - before.ended - gone),
    )


def memory(of: Groups) -> Memory:
    supervisor_rss, supervisor_pss = _memory(of.supervisor)
    workers_rss, workers_pss = _memory(of.workers)
    postgres_rss, postgres_pss = _memory(of.backends + of.background)
    return Memory(
        supervisor_rss=supervisor_rss,
        supervisor_pss=supervisor_pss,
        workers_rss=workers_rss,
        workers_pss=workers_pss,
        postgres_rss=postgres_rss,
        postgres_pss=postgres_pss,
    )


def _used(before: dict[int, float], after: dict[int, float]) -> float:
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def _tree(pid: int) -> list[int]:
    found = [pid]
    for parent in found:  # grows while it is walked
        for text in _tasks_texts(parent, "children"):
            found += [int(child) for child in text.split()]
    return found


def _tasks_texts(pid: int, name: str) -> list[str]:
    """The contents of a file that each of the process's threads has; a thread or process may go meanwhile."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [_text(thread / name) for thread in threads]


def _text(path: Path) -> str:
    """'' when the process has gone meanwhile."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _name(pid: int) -> str:
    return _text(Path(f"/proc/{pid}/comm")).strip()


def _is_backend(pid: int) -> bool:
    title = _text(Path(f"/proc/{pid}/cmdline"))
    return title.startswith("postgres: ") and not title.removeprefix("postgres: ").startswith(_BACKGROUND)


def cpu_seconds(pid: int) -> float:
    """Of all threads of a process, so far; 0: there is none."""
    return sum(int(text.split()[0]) for text in _tasks_texts(pid, "schedstat") if text) / 1e9


def _children_cpu_seconds(pid: int) -> float:
    """``cutime`` and ``cstime``, fields 16 and 17 of ``stat``; the name in field 2 may hold blanks."""
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / _TICKS_PER_SECOND if fields else 0.0


def _memory(pids: tuple[int, ...]) -> tuple[int, int]:
    rss = pss = 0
    for pid in pids:
        for line in _text(Path(f"/proc/{pid}/smaps_rollup")).splitlines():
            name, _, value = line.partition(":")
            if name == "Rss":
                rss += int(value.split()[0]) * 1024
            elif name == "Pss":
                pss += int(value.split()[0]) * 1024
    return rss, pss
