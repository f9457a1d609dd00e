"""Files that settings name are read with errors that a person can act on; those with a secret are not for all users."""

from __future__ import annotations

import stat
from pathlib import Path

_OTHERS = stat.S_IROTH | stat.S_IWOTH


class FileInvalid(Exception):
    """A file cannot be used; the message names the setting and the file, and says why."""


def readable(setting: str, path: Path) -> bytes:
    """Read the file of a setting.

    :raises FileInvalid: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileInvalid(f"{setting}: {path}: {error.strerror}") from None


def secret(setting: str, path: Path) -> bytes:
    """Read the secret file of a setting.

    :raises FileInvalid: it cannot be read, or other users can read it.
    """
    octets = readable(setting, path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS:
        raise FileInvalid(f"{setting}: {path}: all users may read it (mode {mode:o}); expected 600")
    return octets
