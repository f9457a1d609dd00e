"""What the system tells others of this process's command line (rule S8)."""

from __future__ import annotations

import contextlib
from pathlib import Path

#: Where the arguments begin and end in memory, counted behind the name of the program (proc_pid_stat(5)).
_ARG_START, _ARG_END = 45, 46


def hide(secret: str) -> None:
    """Overwrite it in the memory from which ``/proc/PID/cmdline``, and so ``ps``, are read; also in processes that are
    forked from now on. Until then, every user of this machine could read it. Where there is no such memory, it stays.
    """
    wanted = secret.encode(errors="surrogateescape")
    with contextlib.suppress(OSError, ValueError):
        found = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(found[_ARG_START]), int(found[_ARG_END])
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            octets = memory.read(end - start)
            if wanted and wanted in octets:
                memory.seek(start)
                memory.write(octets.replace(wanted, b"*" * len(wanted)))
