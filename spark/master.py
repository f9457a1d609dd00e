"""Check that Spark's master answers, and that its executors can reach the store."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

#: The variable in which tasks find the database's URL if they get no file with it.
DATABASE_VARIABLE: Final = "COORDINATOR_DATABASE_URL"
_SECONDS: Final = 10.0


class MasterUnusable(Exception):
    """Spark's master does not answer, or cannot serve this store; the text has the reason."""


def check_master(master: str, url: str, credentials: Path | None = None) -> None:
    """Check Spark's master, and that executors can reach the store at ``url``, which they read from ``credentials``.

    :raises MasterUnusable: Spark itself would try for a minute, and end with a Java trace.
    """
    if master.startswith("local"):
        return
    # imported here, as tasks import this module only for a name
    from psycopg import conninfo

    host = conninfo.conninfo_to_dict(url).get("host")
    if not host or str(host).startswith(("/", "@")):
        raise MasterUnusable(
            f"the store is reached by a socket of this machine, and the executors of {master} may be elsewhere;"
            " give a --database-url with a host that they can reach, or leave out --master"
        )
    if credentials is None and not os.environ.get(DATABASE_VARIABLE):
        raise MasterUnusable(
            f"tasks on other machines read the database's URL from {DATABASE_VARIABLE} in their environment;"
            f" set it here, where they are planned, and on the executors of {master}; or give --credentials FILE"
        )
    if not master.startswith("spark://"):
        return
    failures = []
    for place in master.removeprefix("spark://").split(","):
        name, _, port = place.rpartition(":")
        try:
            if not name or not port.isdecimal():
                raise MasterUnusable(f"--master {master}: {place!r}; expected HOST:PORT")
            socket.create_connection((name.strip("[]"), int(port)), timeout=_SECONDS).close()
        except (OSError, OverflowError) as error:
            failures.append(f"{place}: {error}")
        else:
            return
    raise MasterUnusable(f"Spark's master does not answer: {'; '.join(failures)}")
