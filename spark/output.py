"""Lock the folder that a run writes into, for one run at a time."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class OutputUnusable(Exception):
    """The output folder cannot be created or written; the message names it and the reason."""


@contextmanager
def output(out: Path) -> Iterator[None]:
    """Make ``out`` where it is missing, and see that it can be written; in the block no other run writes there. Where
    the file system has no locks for folders, as some of a network, two runs can.

    :raises OutputUnusable: it cannot, or another run writes there.
    """
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=out, prefix=".reconcile-"):
            pass
        descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    # the kernel gives it back with the process, whatever ends that; Java does not have it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise OutputUnusable(f"output folder {out}: another run writes here") from None
    except OSError:
        pass
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Convert errors of files in the block to :class:`OutputUnusable`; those of connections, to Java, stay."""
    try:
        yield
    except ConnectionError:
        raise
    except OSError as error:
        # Arrow's errors have a text of their own
        reason = str(error) if error.errno is None else os.strerror(error.errno)
        raise OutputUnusable(f"output folder {out}: {reason}") from None
