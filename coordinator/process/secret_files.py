"""Files that the settings name, read so that a person can act on what is wrong."""

from __future__ import annotations

import stat
from pathlib import Path

_OTHERS = stat.S_IROTH | stat.S_IWOTH


class FileInvalid(Exception):
    """A file cannot be used; the message names the setting and the file, and says why."""


def readable(setting: str, path: Path) -> bytes:
    """:raises FileInvalid: it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileInvalid(f"{setting}: {path}: {error.strerror}") from None


def secret(setting: str, path: Path) -> bytes:
    """:raises FileInvalid: it cannot be read, or can by other users."""
    octets = readable(setting, path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS:
        raise FileInvalid(f"{setting}: {path}: all users may read it (mode {mode:o}); expected 600")
    return octets
