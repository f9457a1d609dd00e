"""Copy the folder of a stopped server to ``copies/VERSION`` in the data folder, before its store is migrated.

The last copy is kept, and it is the way back: see docs/how-to/back-up-and-upgrade.md. A copy has its name only while it
is whole and on the disk; before and after, while it is made or removed, its name ends in ``.incomplete``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from store.embedded.folder import free_bytes
from store.embedded.programs import Account, EmbeddedError

_INCOMPLETE = ".incomplete"
#: linux/fs.h: a file shares the octets of another, where the file system can (XFS, Btrfs)
_FICLONE = 0x40049409
#: octets that are copied between two questions whether to go on
_PIECE = 64 * 1024 * 1024
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class NoRoom(EmbeddedError):
    """The disk has no room for the copy."""


def remove_incomplete(copies: Path) -> None:
    """Remove what a process that was killed has left of copies that it was making or removing."""
    for path in copies.glob(f"*{_INCOMPLETE}"):
        shutil.rmtree(path)


def keep(
    cluster: Path, copies: Path, version: str, *, account: Account, spare_bytes: int, proceed: Callable[[], None]
) -> Path:
    """Copy the folder ``cluster``, in which no server runs, to ``copies/version``, which becomes the only copy; return
    its path. Kill -9 at any point leaves ``cluster`` as it is.

    ``spare_bytes``: octets that have to be free beside the copy. ``proceed`` is called again and again, and ends the
    copying by an error of its own.

    :raises NoRoom: the disk is too full; nothing of the copy is left.
    """
    copies.mkdir(mode=0o700, exist_ok=True)
    remove_incomplete(copies)
    unfinished = copies / f"{version}{_INCOMPLETE}"
    needed = _size(cluster)
    try:
        if free_bytes(copies) < needed + spare_bytes and not _shares(cluster / "global" / "pg_control", copies):
            raise _no_room(cluster, needed, spare_bytes, free_bytes(copies))
        unfinished.mkdir()
        _copy_folder(cluster, unfinished, account, proceed)
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise _no_room(cluster, needed, spare_bytes, free_bytes(copies)) from None
        raise
    for other in copies.iterdir():
        if other != unfinished:
            other.rename(other.with_name(f"{other.name}.old{_INCOMPLETE}"))
    kept = unfinished.rename(copies / version)
    _sync(copies)
    _sync(copies.parent)
    remove_incomplete(copies)
    return kept


def _no_room(cluster: Path, needed: int, spare_bytes: int, free: int) -> NoRoom:
    return NoRoom(
        f"the disk has no room for a copy of {cluster}, which is made before the store is migrated: {needed} bytes, and"
        f" {spare_bytes} that have to stay free (limits.disk_free_bytes), of {free}; the store is as it was. Make room,"
        " or back it up elsewhere and set copy_before_migrating to never"
    )


def _size(cluster: Path) -> int:
    """The octets of its files. A link counts as what it leads to, as it is copied as that."""
    walked = os.walk(cluster, followlinks=True, onerror=_raise)
    return sum((Path(folder) / name).stat().st_size for folder, _, files in walked for name in files)


def _shares(file: Path, folder: Path) -> bool:
    """Whether a copy of the file in ``folder`` shares its octets, and needs no room of its own."""
    with file.open("rb") as source, tempfile.TemporaryFile(dir=folder) as probe:
        return _shared(source.fileno(), probe.fileno())


def _shared(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def _copy_folder(cluster: Path, target: Path, account: Account, proceed: Callable[[], None]) -> None:
    for walked, folders, files in os.walk(cluster, followlinks=True, onerror=_raise):
        source = Path(walked)
        there = target / source.relative_to(cluster)
        for name in folders:
            (there / name).mkdir()
        for name in files:
            if name != "postmaster.pid":
                _copy_file(source / name, there / name, proceed)
                _belongs(source / name, there / name, account)
        _belongs(source, there, account)
        _sync(there)


def _copy_file(source: Path, target: Path, proceed: Callable[[], None]) -> None:
    proceed()
    with source.open("rb") as read, target.open("xb") as written:
        if not _shared(read.fileno(), written.fileno()):
            while os.sendfile(written.fileno(), read.fileno(), None, _PIECE):
                proceed()
        os.fsync(written.fileno())


def _belongs(source: Path, target: Path, account: Account) -> None:
    shutil.copystat(source, target)
    account.own(target)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise(error: OSError) -> NoReturn:
    raise error
