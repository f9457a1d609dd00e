"""Check and lock the folder in which Spark notes which stream it reads, and its position.

The files are Spark's: ``metadata``; for each batch one in ``offsets`` before it runs, and one in ``commits`` after it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

#: Errors of flock(2) on file systems without locks, such as some network file systems.
_NO_LOCKS: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)
#: Octets that must be free: the notes of some batches.
_ROOM: Final = 64 << 10


class CheckpointUnusable(Exception):
    """The folder cannot be used; the text names it and the reason."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The position of a stream. ``id``: None before its first batch; ``ended``: the last batch that ended, or -1;
    ``offset``: where the last batch that began ends.
    """

    id: UUID | None = None
    ended: int = -1
    offset: Mapping[str, Any] | None = None


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock ``folder`` against other processes for a block; create it if it is missing. Nothing locks it against other
    machines, or on file systems without locks.

    :raises CheckpointUnusable: another process has it, or it cannot be created or read.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointUnusable(f"checkpoint {folder}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointUnusable(f"checkpoint {folder}: another coordinator watch is running on it") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise CheckpointUnusable(f"checkpoint {folder}: {error.strerror}") from None
        yield
    finally:
        os.close(lock)


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read the checkpoint in ``folder``.

    :raises CheckpointUnusable: it cannot be read or written, or has other files in it.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".coordinator-") as probe:
            # on a full disk a file can be created, but not written
            probe.write(bytes(_ROOM))
            probe.flush()
        if not (folder / "metadata").exists():
            # Spark leaves a temporary file if it is killed meanwhile
            others = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
            if others:
                raise CheckpointUnusable(f"checkpoint {folder}: it has other files, such as {others[0]}; give its own")
            return Checkpoint()
        last = max(_batches(folder / "offsets"), default=None)
        return Checkpoint(
            id=UUID(json.loads((folder / "metadata").read_text("utf-8"))["id"]),
            ended=max(_batches(folder / "commits"), default=-1),
            offset=None if last is None else _offset(folder / "offsets" / str(last)),
        )
    except OSError as error:
        raise CheckpointUnusable(f"checkpoint {folder}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError):
        raise CheckpointUnusable(f"checkpoint {folder}: its files are not as Spark writes them") from None


def _batches(folder: Path) -> list[int]:
    return [int(each.name) for each in folder.iterdir() if each.name.isdecimal()] if folder.exists() else []


def _offset(file: Path) -> Mapping[str, Any]:
    """Read the third line: after the version and Spark's own notes each source has one, and there is one source."""
    offset = json.loads(file.read_text("utf-8").splitlines()[2])
    return {"system": str(offset["system"]), "database": str(offset["database"]), "xid": int(offset["xid"])}
