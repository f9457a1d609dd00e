"""Find the server that runs in a data folder: its processes, its ``postmaster.pid``, its URL."""

from __future__ import annotations

import hashlib
import os
import pwd
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from store.embedded.folder import free_bytes, holder_of
from store.embedded.programs import Account, DataFolderUnusable, NotRunning

# How the service reaches its server: by a unix socket, which only the service's own user may use.

#: the role that owns the store, and the role by which the service serves, which owns nothing
ROLE = "coordinator"
SERVES = "coordinator_serves"
DATABASE = "coordinator"
#: where no port is given, it is only a part of the socket's name
PORT = 5432

# sockaddr_un.sun_path is 108 octets with the final NUL (unix(7)).
_LONGEST_SOCKET_PATH = 107
_SOCKET_NAME = ".s.PGSQL."
#: PostgreSQL's lock files of sockets, which have the id of the server
SOCKET_LOCK_NAMES = f"{_SOCKET_NAME}*.lock"


def socket_dir_of(data_dir: Path, account: Account) -> Path:
    """Return the folder for the server's socket, creating it; it is below /tmp if its path would be too long."""
    folder = data_dir / "run"
    if len(os.fsencode(folder / f"{_SOCKET_NAME}65535")) > _LONGEST_SOCKET_PATH:
        name = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
        # Short enough; its owner is checked before it is used.
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


#: Applications come in by a port that only this machine can connect to, with a password, and nothing else does.
_APPLICATIONS = "".join(
    f"host {DATABASE} +coordinator_application {loopback} scram-sha-256\n" for loopback in ("127.0.0.0/8", "::1/128")
)


def write_access_rules(cluster: Path, *, applications: bool) -> None:
    """Write the rules that only the user of the service may connect, and with ``applications`` the roles of these; at
    each start, as that user may change.
    """
    user = pwd.getpwuid(os.geteuid()).pw_name
    for name, content in (
        ("coordinator_hba.conf", "local all all peer map=service\n" + (_APPLICATIONS if applications else "")),
        ("coordinator_ident.conf", "".join(f'service "{user}" {role}\n' for role in (ROLE, SERVES))),
    ):
        path = cluster / name
        path.write_text(content, encoding="utf-8")
        path.chmod(0o644)  # in a folder of 0700


def serving(url: str) -> str:
    """Return the URL with the role by which the service serves."""
    return url.replace(f"//{ROLE}@", f"//{SERVES}@", 1)


def url_of(socket_dir: Path, port: int) -> str:
    return f"postgresql://{ROLE}@/{DATABASE}?host={quote(str(socket_dir), safe='/')}&port={port}"


#: The size of a WAL segment: with less room the server stops.
_WAL_BYTES = 16 * 1024 * 1024
#: the names of the server's program
_SERVERS = (b"postgres", b"postmaster")


def running_url(data_dir: Path) -> str:
    """Return the URL of the server that runs in ``data_dir``.

    :raises NotRunning: when no server does.
    :raises DataFolderUnusable: when the folder cannot be read.
    """
    data_dir = data_dir.resolve()
    cluster = data_dir / "postgresql"
    try:
        pidfile = PidFile.read(cluster)
    except OSError as error:
        raise DataFolderUnusable(f"data folder {data_dir} cannot be read: {error.strerror}") from None
    if pidfile is None or not _is_postmaster(pidfile.pid, cluster):
        holder = holder_of(data_dir)
        if holder is not None:
            free = free_bytes(data_dir)
            why = f"its disk is full ({free // 2**20} MiB free)" if free < _WAL_BYTES else f"see {cluster}.log"
            raise NotRunning(
                f"a coordinator runs with the data folder {data_dir} (process {holder}), but its database does not: "
                f"{why}"
            )
        raise NotRunning(
            f"no coordinator runs with the data folder {data_dir}; start one, or give --config or --database-url"
        )
    if not pidfile.ready:
        raise NotRunning(f"the database in {data_dir} is starting or stopping; try again")
    return url_of(pidfile.socket_dir, pidfile.port)


@dataclass(frozen=True, kw_only=True)
class PidFile:
    """``postmaster.pid``; its lines are those of PostgreSQL's ``pidfile.h``."""

    pid: int
    port: int
    socket_dir: Path
    ready: bool

    @classmethod
    def read(cls, cluster: Path) -> PidFile | None:
        """None when there is none, or it is not written to its end yet."""
        try:
            lines = (cluster / "postmaster.pid").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not lines or not lines[0].strip().lstrip("-").isdecimal():
            return None
        return cls(
            pid=abs(int(lines[0])),
            port=int(lines[3]) if len(lines) > 3 and lines[3].isdecimal() else PORT,
            socket_dir=Path(lines[4].strip() if len(lines) > 4 else ""),
            ready=len(lines) > 7 and lines[7].strip() == "ready",
        )


def _is_postmaster(pid: int, cluster: Path) -> bool:
    """Whether ``pid`` is a server of ``cluster``: its command line is readable where its folder may not be."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return arguments[0].rpartition(b"/")[2] in _SERVERS and os.fsencode(cluster) in arguments


def runs_here(connection: int, cluster: Path) -> bool:
    """Whether the server at the other end of a ``connection`` runs on this machine with the folder ``cluster``.

    ``connection``: the number of its socket. A server in another container may name a folder that is another one here,
    or does not exist here.
    """
    with socket.socket(fileno=os.dup(connection)) as ours:
        if ours.family != socket.AF_UNIX:
            return False
        pid, _, _ = struct.unpack("3i", ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    try:
        pidfile = PidFile.read(cluster)
    except PermissionError:  # of another user
        return _program(pid) in _SERVERS
    except OSError:
        return False
    return pidfile is not None and pidfile.pid == pid


def _program(pid: int) -> bytes:
    """Return the name under which a process was started; empty if it is not visible, as in another container."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].rpartition(b"/")[2]
    except OSError:
        return b""


def processes_in(cluster: Path) -> list[int]:
    """Return the processes of a server of ``cluster``; they all have it as their working folder."""
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
