"""Identify processes of a Linux machine, also when the kernel has reused a process id."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_NAME = 15
# Loaded now, because it must not be loaded between fork and exec.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with_parent(number: signal.Signals, parent: int) -> None:
    """Have the kernel send ``number`` to this process when the *thread* that started it ends.

    Exits at once if ``parent`` has already ended. Call it after a change of user, which clears the setting.
    """
    _prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def name_process(name: str) -> None:
    """Name this process, as ``ps -e`` and ``top`` show it: at most 15 octets, the kernel cuts the rest off."""
    _prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def machine() -> str:
    """Host name, boot id and pid namespace: equal only for processes that see each other in ``/proc``."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{socket.gethostname()} {boot_id} {Path('/proc/self/ns/pid').readlink()}"


def gone(pid: int, start: int) -> bool:
    """Whether the process that had ``pid`` since ``start`` (of :func:`start_ticks`) has ended."""
    ticks = start_ticks(pid)
    if ticks is not None:
        return ticks != start
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # It exists and belongs to another user: a /proc mounted with hidepid=2 does not show it.
        return False
    # It exists: a zombie, or our own user's and yet hidden.
    return Path(f"/proc/{pid}/stat").exists()


def start_ticks(pid: int) -> int | None:
    """When ``pid`` started, in clock ticks since boot (field 22 of ``/proc/<pid>/stat``); None: no such process."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses; it may contain any character.
    fields = line.rpartition(")")[2].split()
    # A zombie has ended; its parent has not waited for it yet.
    return None if fields[0] in ("Z", "X") else int(fields[19])
