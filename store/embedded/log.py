"""``postgresql.log``: the server's own log, kept small."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

_LARGEST_BYTES = 16 * 1024 * 1024


class ServerLog:
    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> int:
        """A descriptor to append to."""
        if self._path.exists() and self._path.stat().st_size > _LARGEST_BYTES:
            self._path.replace(self._path.with_name("postgresql.log.1"))
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def bound(self) -> None:
        """Begin a long log anew. The server appends, and so goes on at the new end."""
        with contextlib.suppress(OSError):  # a full disk: the next call tries again
            if self._path.stat().st_size > _LARGEST_BYTES:
                shutil.copyfile(self._path, self._path.with_name("postgresql.log.1"))
                os.truncate(self._path, 0)

    def last_words(self) -> str:
        """Its last five lines, for a message."""
        lines = self._path.read_bytes()[-4096:].decode("utf-8", "replace").splitlines()[-5:]
        return " / ".join(line.strip() for line in lines if line.strip()) + f" (see {self._path})"
