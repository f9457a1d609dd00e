"""Lock the data folder for one service at a time, and check that it has no files of others."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from store.embedded.programs import Account, DataFolderInUse, DataFolderUnusable

_LOCK = "lock"
#: The names that the data folder may have; lost+found belongs to the file system.
_OURS = {
    *(_LOCK, "postgresql", "postgresql.new", "postgresql.log", "postgresql.log.1", "run", "binaries", "copies"),
    "lost+found",
}


def default_data_dir() -> Path:
    """Return ``/var/lib/coordinator`` for root, else ``$XDG_STATE_HOME/coordinator`` (default ``~/.local/state``)."""
    if os.geteuid() == 0:
        return Path("/var/lib/coordinator")
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    # The XDG base directory specification: a relative path is to be ignored.
    return (state if state.is_absolute() else Path.home() / ".local" / "state") / "coordinator"


class DataFolder:
    """Locks the data folder for this service. ``path``: without symbolic links, as in /proc."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._lock: int | None = None

    @property
    def taken(self) -> bool:
        return self._lock is not None

    def take(self, account: Account) -> None:
        """Lock the folder, which is created if it does not exist, against other services until :meth:`free`.

        :raises DataFolderUnusable: also when it has files of others.
        :raises DataFolderInUse: another service has locked it.
        """
        if self._lock is not None:
            return
        try:
            self._make_folder(account)
            lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataFolderUnusable(
                f"data folder {self.path} cannot be written: {error.strerror} ({error.filename}); "
                "choose another with --data-dir"
            ) from None
        closed = [path for path in (self.path, *self.path.parents) if not path.stat().st_mode & stat.S_IXOTH]
        if account.other and closed:
            os.close(lock)
            raise DataFolderUnusable(
                f"PostgreSQL does not run as root but as 'nobody', which cannot enter {closed[-1]}; "
                "choose a folder with --data-dir that every user may pass through"
            )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _written_in(lock)
            os.close(lock)
            raise DataFolderInUse(
                f"data folder {self.path} is in use by another coordinator (process {holder}); "
                "stop it, or choose another folder with --data-dir"
            ) from None
        self._lock = lock
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    def _make_folder(self, account: Account) -> None:
        """Create the folder. An existing one is unchanged, and refused if it has files that no coordinator made."""
        try:
            there = sorted(path.name for path in self.path.iterdir())
        except FileNotFoundError:
            self.path.mkdir(parents=True)
            # The server's user has to pass through it; no other user may.
            self.path.chmod(0o711 if account.other else 0o700)
            return
        foreign = [name for name in there if name not in _OURS]
        if foreign:
            raise DataFolderUnusable(
                f"data folder {self.path} holds files that are not the coordinator's ({foreign[0][:80]!r}"
                f"{' and others' if len(foreign) > 1 else ''}); choose an empty or a new one with --data-dir"
            )

    def free(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def free_bytes(folder: Path) -> int:
    """Return the free octets of the folder's disk."""
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


def holder_of(folder: Path) -> str | None:
    """Return the process that has locked the data folder, or ``unknown``; None: it is free, or cannot be read."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _written_in(lock)
    finally:
        os.close(lock)
    return None


def _written_in(lock: int) -> str:
    """Return the process id that the holder has written into its lock."""
    return os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
