"""Files that settings name are read with errors that a person can act on; those with a secret are not for all users."""

from __future__ import annotations

import re
import stat
from pathlib import Path

#: a name and a value (RFC 9110, sections 5.1 and 5.5)
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e]*?)[ \t\r]*")

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


def headers(setting: str, path: Path) -> dict[str, str]:
    """Read the headers of HTTP in the secret file of a setting, a line ``Name: value`` each.

    :raises FileInvalid: it cannot be read, other users can read it, or a line is no header; the message has no value.
    """
    found = {}
    for number, line in enumerate(secret(setting, path).split(b"\n"), 1):
        if line.strip():
            header = _HEADER.fullmatch(line)
            if header is None:
                raise FileInvalid(f"{setting}: {path}: line {number}: expected Name: value, in ASCII")
            found[header[1].decode()] = header[2].decode()
    return found
