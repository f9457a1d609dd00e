"""A primary and its standby, and a URL that names both."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from store import partitions
from store.database import connected
from store.embedded.server import EmbeddedServer
from tests.fix_postgres import signal_server


def copy_to(primary: EmbeddedServer, url: str, folder: Path) -> None:
    """Make ``folder`` the data folder of a standby of ``primary``, for an :class:`EmbeddedServer` to start."""
    cluster = primary.data_dir / "postgresql"
    owner = cluster.stat()
    with (cluster / "coordinator_hba.conf").open("a") as rules:
        rules.write("local replication all trust\n")
    with psycopg.connect(url) as connection:
        connection.execute(b"select pg_reload_conf()")
    program = Path(f"/proc/{primary.pid}/exe").readlink().with_name("pg_basebackup")
    for made, mode in ((folder, 0o711), (folder / "postgresql", 0o700)):
        made.mkdir(mode=mode)
    os.chown(folder / "postgresql", owner.st_uid, owner.st_gid)
    subprocess.run(
        [
            program,
            "--pgdata",
            folder / "postgresql",
            "--dbname",
            url,
            "--write-recovery-conf",
            "--checkpoint=fast",
            "--no-sync",
        ],
        user=owner.st_uid,
        group=owner.st_gid,
        cwd="/",
        check=True,
    )


class TwoServers:
    """``first`` is the primary, and ``second`` its standby until :meth:`promote`."""

    def __init__(self, first: EmbeddedServer, url: str) -> None:
        with connected(url) as connection:
            partitions.make_ahead(connection)
        self.first = first
        self.first_url = url
        folder = first.data_dir.with_name(f"{first.data_dir.name}-standby")
        copy_to(first, url, folder)
        self.second = EmbeddedServer(folder)
        self.second_url = self.second.start()
        hosts, ports = zip(*map(_place, (self.first_url, self.second_url)), strict=True)
        #: what an operator gives
        self.url = (
            f"postgresql://coordinator@/coordinator?host={','.join(hosts)}&port={','.join(ports)}"
            "&target_session_attrs=read-write"
        )

    def kill_first(self) -> None:
        assert self.first.pid
        signal_server(self.first.pid, signal.SIGKILL)
        self.first.wait()

    def promote(self) -> None:
        with psycopg.connect(self.second_url) as connection:
            assert connection.execute("select pg_promote()").fetchone() == (True,)

    def close(self) -> None:
        self.second.stop()


def _place(url: str) -> tuple[str, str]:
    given = conninfo_to_dict(url)
    return str(given["host"]), str(given["port"])


@pytest.fixture
def two_servers(own_server: tuple[EmbeddedServer, str]) -> Iterator[TwoServers]:
    servers = TwoServers(*own_server)
    try:
        yield servers
    finally:
        servers.close()
