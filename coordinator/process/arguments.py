"""Arguments of this process are hidden from other users of the machine (rule S8)."""

from __future__ import annotations

import contextlib
from pathlib import Path

#: Where the arguments begin and end in memory, counted behind the name of the program (proc_pid_stat(5)).
_ARG_START, _ARG_END = 45, 46


def hide(secret: str) -> None:
    """Overwrite a secret in the memory that ``/proc/PID/cmdline``, and so ``ps``, shows; also for processes forked from
    now on. Until then, every user of this machine could read it. If there is no such memory, it stays.
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
