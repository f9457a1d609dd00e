"""How the service reaches its server: by a unix socket, which only the service's own user may use."""

from __future__ import annotations

import hashlib
import os
import pwd
import stat
from pathlib import Path
from urllib.parse import quote

from store.embedded.account import Account
from store.embedded.errors import DataFolderUnusable

#: the owner of the store, and the role by which the service serves, which owns nothing
ROLE = "coordinator"
SERVES = "coordinator_serves"
DATABASE = "coordinator"
PORT = 5432  # only a part of the socket's name

# sockaddr_un.sun_path is 108 octets with the final NUL (unix(7)).
_LONGEST_SOCKET_PATH = 107
_SOCKET_NAME = f".s.PGSQL.{PORT}"
#: PostgreSQL's own, with the id of the server
SOCKET_LOCK_NAME = f"{_SOCKET_NAME}.lock"


def socket_dir_of(data_dir: Path, account: Account) -> Path:
    """The folder for the server's socket, made where there is none; below /tmp where its path would be too long."""
    folder = data_dir / "run"
    if len(os.fsencode(folder / _SOCKET_NAME)) > _LONGEST_SOCKET_PATH:
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


def write_access_rules(cluster: Path) -> None:
    """Only the user that runs the service may connect; written anew at each start, as that user may change."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    for name, content in (
        ("coordinator_hba.conf", "local all all peer map=service\n"),
        ("coordinator_ident.conf", "".join(f'service "{user}" {role}\n' for role in (ROLE, SERVES))),
    ):
        path = cluster / name
        path.write_text(content, encoding="utf-8")
        path.chmod(0o644)  # in a folder of 0700


def serving(url: str) -> str:
    """The same with the role by which the service serves."""
    return url.replace(f"//{ROLE}@", f"//{SERVES}@", 1)


def url_of(socket_dir: Path) -> str:
    return f"postgresql://{ROLE}@/{DATABASE}?host={quote(str(socket_dir), safe='/')}&port={PORT}"
