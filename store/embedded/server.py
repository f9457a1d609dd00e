"""Create, start, watch and stop the embedded server, as a child of the service."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from store.embedded import copies
from store.embedded.folder import DataFolder, free_bytes
from store.embedded.programs import (
    Account,
    DataFolderInUse,
    DataFolderUnusable,
    ServerFailed,
    StartCancelled,
    programs_for,
)
from store.embedded.running import (
    DATABASE,
    PORT,
    ROLE,
    SOCKET_LOCK_NAMES,
    PidFile,
    processes_in,
    socket_dir_of,
    url_of,
    write_access_rules,
)

# ``postgresql.log``: the server's own log, kept small.

_LARGEST_BYTES = 16 * 1024 * 1024


class ServerLog:
    """The log file of the embedded server: at most two files of a bounded length, readable by their owner alone."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> int:
        """Open the log, and return a descriptor that appends to it."""
        if self._path.exists() and self._path.stat().st_size > _LARGEST_BYTES:
            self._path.replace(self._path.with_name("postgresql.log.1"))
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def bound(self) -> None:
        """Copy a long log aside and truncate it. The server appends, and so continues at the new end."""
        with contextlib.suppress(OSError):  # a full disk: the next call tries again
            if self._path.stat().st_size > _LARGEST_BYTES:
                shutil.copyfile(self._path, self._path.with_name("postgresql.log.1"))
                os.truncate(self._path, 0)

    def last_words(self) -> str:
        """Return the last five lines of the log, for a message."""
        lines = self._path.read_bytes()[-4096:].decode("utf-8", "replace").splitlines()[-5:]
        return " / ".join(line.strip() for line in lines if line.strip()) + f" (see {self._path})"


_MAX_CONNECTIONS = 200

_SETTINGS = {
    "unix_socket_permissions": "0700",
    # An acknowledged commit is on the disk: these three are not for tuning.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "256MB",
    "checkpoint_timeout": "15min",
    # The queries are short: compiling them costs more than it gains.
    "jit": "off",
    # Rows of `entry` are replaced quickly; the table's own thresholds decide when it is vacuumed.
    "autovacuum_naptime": "5s",
    "timezone": "UTC",
    # Not "$user": role and schema have one name, so a statement that forgot the schema would fail elsewhere only.
    "search_path": "public",
    # Neither statements nor values reach the log: they hold message bodies and ids.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_parameter_max_length_on_error": "0",
    "log_line_prefix": "%m [%p] ",
}


class EmbeddedServer:
    """Runs one PostgreSQL server in ``data_dir``: ``start()``, ``poll()``, ``stop()``; a dead one may be started again.

    All calls belong to the main thread: the kernel stops the server when the thread that started it ends.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        max_connections: int = _MAX_CONNECTIONS,
        applications: tuple[str, int] | None = None,
        patience_seconds: float = 30.0,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """``applications``: host and port, of this machine alone, where the roles of applications may connect with
        their passwords; None: nowhere.

        ``patience_seconds``: how long :meth:`start` waits for the server of a killed service to end.

        ``cancelled`` is called again and again while :meth:`start` waits; true ends it with :class:`StartCancelled`.
        """
        self._folder = DataFolder(data_dir)
        self.data_dir = self._folder.path
        self._max_connections = max(max_connections, _MAX_CONNECTIONS)
        self._host, self._port = applications or ("", PORT)
        self._patience_seconds = patience_seconds
        self._cancelled = cancelled
        self._cluster = self.data_dir / "postgresql"
        self._copies = self.data_dir / "copies"
        self._log = ServerLog(self.data_dir / "postgresql.log")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Return the server's process id; None: it has ended, or was not started."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> str:
        """Start the server, with a new cluster if necessary, and wait until it accepts connections. Returns its URL.

        Recovery after a crash has no time limit while the server lives. If a later start fails, the folder stays
        locked until :meth:`stop`.
        """
        account = Account.choose()
        taken_before = self._folder.taken
        try:
            self._folder.take(account)
            self._await_leftovers()
            copies.remove_incomplete(self._copies)
            programs = programs_for(self.data_dir, self._cluster, account)
            if not (self._cluster / "PG_VERSION").exists():
                self._initialize(programs, account)
            # Kubernetes (fsGroup) may open a volume's files to a group: PostgreSQL refuses a folder that it can write.
            self._cluster.chmod(stat.S_IMODE(self._cluster.stat().st_mode) & 0o750)
            socket_dir = socket_dir_of(self.data_dir, account)
            # A server that was killed leaves this file. PostgreSQL refuses to start beside it while any process has the
            # id in it: another program, or the killed one, which is a zombie until its parent waits for it.
            for lock in socket_dir.glob(SOCKET_LOCK_NAMES):
                lock.unlink()
            write_access_rules(self._cluster, applications=bool(self._host))
            self._look_at_port()
            self._launch(programs, account, socket_dir)
            _ensure_database(socket_dir, self._port)
        except OSError as error:
            self._undo_start(taken_before)
            raise self._unusable(error) from None
        except psycopg.Error as error:
            self._undo_start(taken_before)
            raise ServerFailed(f"PostgreSQL in {self.data_dir} refused the service: {error}") from None
        except BaseException:
            self._undo_start(taken_before)
            raise
        return url_of(socket_dir, self._port)

    def copy(self, version: str, *, spare_bytes: int) -> Path:
        """Stop the server, and copy its cluster to the folder ``copies/version``, the only copy from then on; return
        that folder. :meth:`start` starts the server again. ``spare_bytes``: octets that have to stay free.

        :raises NoRoom: the disk has no room for it.
        :raises StartCancelled: as in :meth:`start`.
        """
        self._end_server(30.0)
        try:
            self._await_leftovers()
            return copies.keep(
                self._cluster,
                self._copies,
                version,
                account=Account.choose(),
                spare_bytes=spare_bytes,
                proceed=self._proceed,
            )
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> DataFolderUnusable:
        named = f" ({error.filename})" if error.filename else ""
        return DataFolderUnusable(f"data folder {self.data_dir}: {error.strerror}{named}")

    def _undo_start(self, taken_before: bool) -> None:
        self._end_server(30.0)
        if not taken_before:
            self._folder.free()

    def free_bytes(self) -> int:
        """Return the free octets of the data folder's disk."""
        return free_bytes(self.data_dir)

    def poll(self) -> int | None:
        """Return None while the server runs, else its exit status (negative: the signal). Keeps its log small."""
        self._log.bound()
        return 0 if self._process is None else self._process.poll()

    def wait(self, timeout_seconds: float | None = None) -> int:
        """Wait until the server has ended, by itself or by :meth:`stop`."""
        return 0 if self._process is None else self._process.wait(timeout_seconds)

    def stop(self, *, grace_seconds: float = 30.0) -> None:
        """Stop the server and unlock the folder. Connections are closed, transactions rolled back (fast shutdown)."""
        self._end_server(grace_seconds)
        self._folder.free()

    def _end_server(self, grace_seconds: float) -> None:
        process, self._process = self._process, None
        if process is not None:
            for number, seconds in ((signal.SIGINT, grace_seconds), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)):
                if process.poll() is not None:
                    break
                process.send_signal(number)
                try:
                    process.wait(seconds)
                except subprocess.TimeoutExpired:
                    continue

    def _await_leftovers(self) -> None:
        """Wait for the server of a killed service, or the children of a killed server, which may be shutting down."""
        deadline = time.monotonic() + self._patience_seconds
        while leftovers := processes_in(self._cluster):
            if time.monotonic() > deadline:
                raise DataFolderInUse(
                    f"data folder {self.data_dir} is still in use by PostgreSQL (process {leftovers[0]}), "
                    f"waited {self._patience_seconds:g} s; stop it first"
                )
            self._pause(0.02)
        try:
            pidfile = PidFile.read(self._cluster)
        except OSError:
            return  # the server itself will report what is wrong with its folder
        if pidfile is not None and Path(f"/proc/{pidfile.pid}").exists():
            # Another program has the id now. PostgreSQL would mistake it for a server, and refuse to start.
            (self._cluster / "postmaster.pid").unlink(missing_ok=True)

    def _initialize(self, programs: Path, account: Account) -> None:
        """Run ``initdb`` in another folder, renamed when it is complete: a crash leaves no incomplete cluster."""
        unfinished = self._cluster.with_name("postgresql.new")
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(mode=0o700)
            account.own(unfinished)
            if self._cluster.exists():
                if any(self._cluster.iterdir()):
                    raise DataFolderUnusable(
                        f"{self._cluster} has files and no PG_VERSION, so it is damaged or no PostgreSQL cluster; "
                        "restore it from a backup, or choose another folder with --data-dir"
                    )
                self._cluster.rmdir()
        except OSError as error:
            raise DataFolderUnusable(f"{error.filename} cannot be written: {error.strerror}") from None
        arguments = [
            str(programs / "initdb"),
            f"--pgdata={unfinished}",
            f"--username={ROLE}",
            "--auth=reject",  # the rules are written at each start
            "--encoding=UTF8",
            "--no-locale",
            "--no-instructions",
        ]
        log = self._log.open()
        try:
            process = account.popen(arguments, output=log, death_signal=signal.SIGTERM)
            try:
                status = process.wait()
            except BaseException:
                process.terminate()
                process.wait()
                raise
        finally:
            os.close(log)
        if status != 0:
            raise ServerFailed(f"initdb failed with status {status}: {self._log.last_words()}")
        unfinished.rename(self._cluster)

    def _look_at_port(self) -> None:
        """:raises ServerFailed: the port for applications is taken; the server itself would not name it."""
        if self._host:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            try:
                socket.create_server((self._host, self._port), family=family).close()
            except OSError as error:
                place = f"{self._host}:{self._port}"
                raise ServerFailed(f"the port for applications, {place}: {error.strerror}") from None

    def _launch(self, programs: Path, account: Account, socket_dir: Path) -> None:
        settings = {
            **_SETTINGS,
            **_wal_settings(self.data_dir),
            "max_connections": str(self._max_connections),
            "unix_socket_directories": str(socket_dir),
            "listen_addresses": self._host,
            "port": str(self._port),
            "hba_file": str(self._cluster / "coordinator_hba.conf"),
            "ident_file": str(self._cluster / "coordinator_ident.conf"),
        }
        arguments = [str(programs / "postgres"), "-D", str(self._cluster)]
        for name, value in settings.items():
            arguments += ["-c", f"{name}={value}"]
        log = self._log.open()
        try:
            self._process = account.popen(arguments, output=log, death_signal=signal.SIGINT)
        finally:
            os.close(log)
        while True:
            status = self._process.poll()
            if status is not None:
                raise ServerFailed(
                    f"PostgreSQL in {self.data_dir} ended with status {status}: {self._log.last_words()}"
                )
            pidfile = PidFile.read(self._cluster)
            if pidfile is not None and pidfile.pid == self._process.pid and pidfile.ready:
                return
            self._pause(0.01)

    def _pause(self, seconds: float) -> None:
        self._proceed()
        time.sleep(seconds)

    def _proceed(self) -> None:
        if self._cancelled():
            raise StartCancelled("told to stop while the database was starting")


def _wal_settings(folder: Path) -> dict[str, str]:
    """Return settings that limit the WAL on a small disk, where the messages need the room."""
    space = os.statvfs(folder)
    most = min(4096, max(64, space.f_blocks * space.f_frsize // 8 // 2**20))
    return {"max_wal_size": f"{most}MB", "min_wal_size": f"{min(256, most // 2)}MB"}


def _ensure_database(socket_dir: Path, port: int) -> None:
    with psycopg.connect(host=str(socket_dir), port=port, user=ROLE, dbname="postgres", autocommit=True) as connection:
        if connection.execute("select from pg_database where datname = %s", (DATABASE,)).fetchone() is None:
            connection.execute(f"create database {DATABASE}")
