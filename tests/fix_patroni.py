"""Patroni: two PostgreSQL servers, one of which leads, and etcd, which knows which; all on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from store import migrations, partitions
from store.database import connected
from store.embedded.programs import Account, programs_for
from tests.fix_clients import REPOSITORY
from tests.fix_packages import Daemon, free_port, program
from tests.fix_service import PATIENCE

#: Of Patroni's own times the shortest that it takes: with its usual ones a lost leader is missed after 30 s.
_DCS = {
    "ttl": 20,
    "loop_wait": 1,
    "retry_timeout": 3,
    "synchronous_mode": True,
    "postgresql": {"use_pg_rewind": True, "parameters": {"max_connections": 100}},
}


class Node:
    """One server with its Patroni. ``port``: of PostgreSQL."""

    def __init__(self, name: str, folder: Path, etcd: int, environment: dict[str, str]) -> None:
        self.name = name
        self.port, self.api = free_port(), free_port()
        self._environment = environment
        self._account = Account.choose()
        self._process: subprocess.Popen[bytes] | None = None
        own = folder / name
        own.mkdir(mode=0o700)
        self._account.own(own)
        rules = ["local all all trust", *(f"host {of} all 127.0.0.1/32 trust" for of in ("all", "replication"))]
        told: dict[str, Any] = {
            "scope": "coordinator",
            "name": name,
            "restapi": {"listen": f"127.0.0.1:{self.api}", "connect_address": f"127.0.0.1:{self.api}"},
            "etcd3": {"host": f"127.0.0.1:{etcd}"},
            "bootstrap": {"dcs": _DCS, "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}]},
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "connect_address": f"127.0.0.1:{self.port}",
                "data_dir": str(own / "data"),
                "bin_dir": str(programs_for(folder, folder / "none", self._account)),
                "pgpass": str(own / "pgpass"),
                "authentication": {
                    "superuser": {"username": "postgres", "password": "of a test"},
                    "replication": {"username": "replicator", "password": "of a test"},
                },
                "parameters": {"unix_socket_directories": str(own)},
                "pg_hba": rules,
            },
        }
        self._settings = folder / f"{name}.json"  # which is YAML
        self._settings.write_text(json.dumps(told))

    def start(self) -> None:
        log = self._settings.with_suffix(".log").open("ab")
        command = [sys.executable, "-m", "patroni", str(self._settings)]
        self._process = subprocess.Popen(
            command,
            env=self._environment,
            cwd="/",
            stdout=log,
            stderr=log,
            start_new_session=True,
            user=self._account.uid if self._account.other else None,
            group=self._account.gid if self._account.other else None,
        )
        log.close()

    @property
    def leads(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.api}/primary", timeout=2) as answer:
            return bool(answer.status == 200)
        return False

    def signal(self, number: signal.Signals) -> None:
        """Of Patroni and of its server, as when the machine stops, or goes on."""
        assert self._process is not None
        numbers = [self._process.pid, *_below(self._process.pid)]
        postmaster = self._settings.parent / self.name / "data" / "postmaster.pid"
        with suppress(FileNotFoundError):
            server = int(postmaster.read_text().splitlines()[0])
            numbers += [server, *_below(server)]
        for each in numbers:
            with suppress(ProcessLookupError):
                os.kill(each, number)

    def close(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait(timeout=PATIENCE)


def _below(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(FileNotFoundError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(child), *_below(int(child))]
    return found


def _taken(request: urllib.request.Request) -> bool:
    try:
        urllib.request.urlopen(request, timeout=PATIENCE).close()
    except urllib.error.HTTPError as error:
        error.close()
        return False
    return True


class Cluster:
    """``url``: what an operator gives."""

    def __init__(self, folder: Path) -> None:
        etcd, port, peers = program("etcd", "etcd-server"), free_port(), free_port()
        libraries = REPOSITORY / "build" / "patroni"
        install = ["pip", "install", "--quiet", "--no-config", "--python", sys.executable, "--target", str(libraries)]
        install += ["--require-hashes", "--requirement", "requirements/machines.txt"]
        subprocess.run([Path(sys.executable).with_name("uv"), *install], cwd=REPOSITORY, check=True)
        environment = {**os.environ, "PYTHONPATH": str(libraries), "PYTHONDONTWRITEBYTECODE": "1"}
        arguments = ["--data-dir", str(folder / "etcd"), "--log-level", "error"]
        for name, number in (("client", port), ("peer", peers)):
            arguments += [f"--listen-{name}-urls", f"http://127.0.0.1:{number}"]
        arguments += ["--advertise-client-urls", f"http://127.0.0.1:{port}"]
        arguments += ["--initial-advertise-peer-urls", f"http://127.0.0.1:{peers}"]
        arguments += ["--initial-cluster", f"default=http://127.0.0.1:{peers}"]
        self._etcd = Daemon(etcd, arguments, port)
        self._etcd.start()
        self.nodes = [Node(name, folder, port, environment) for name in ("one", "two")]
        places = ",".join(f"127.0.0.1:{each.port}" for each in self.nodes)
        self.url = f"postgresql://coordinator@{places}/coordinator?target_session_attrs=read-write"
        for each in self.nodes:
            each.start()
            self.leader()
        self.follows()
        self._make_store()

    def _make_store(self) -> None:
        url = f"postgresql://postgres@127.0.0.1:{self.leader().port}"
        with psycopg.connect(f"{url}/postgres", autocommit=True) as connection:
            connection.execute("create role coordinator login")
            connection.execute("grant pg_read_all_settings to coordinator")
            connection.execute("create database coordinator owner coordinator")
        migrations.upgrade(self.url)
        with connected(self.url) as connection:
            partitions.make_ahead(connection)

    def leader(self, *, other: Node | None = None) -> Node:
        """Wait until one leads; and is not ``other``."""
        deadline = time.monotonic() + 2 * PATIENCE
        while not (found := [each for each in self.nodes if each is not other and each.leads]):
            assert time.monotonic() < deadline, self.state()
            time.sleep(0.2)
        return found[0]

    def follows(self) -> None:
        """Wait until the other follows, each commit waits for it, and Patroni has noted that it may lead."""
        deadline = time.monotonic() + 2 * PATIENCE
        while "sync_standby" not in self._roles():
            assert time.monotonic() < deadline, self.state()
            time.sleep(0.2)

    def _roles(self) -> list[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.leader().api}/cluster", timeout=PATIENCE) as answer:
            return [each["role"] for each in json.loads(answer.read())["members"]]

    def switch_over(self) -> Node:
        """Have the leader hand over, once Patroni knows that the other has all; the new one."""
        old = self.leader()
        (new,) = (each for each in self.nodes if each is not old)
        asked = json.dumps({"leader": old.name, "candidate": new.name}).encode()
        url = f"http://127.0.0.1:{old.api}/switchover"
        request = urllib.request.Request(url, asked, {"Content-Type": "application/json"})
        deadline = time.monotonic() + PATIENCE
        while not _taken(request):
            assert time.monotonic() < deadline, self.state()
            time.sleep(0.2)
        return self.leader(other=old)

    def state(self) -> str:
        return "\n".join(each._settings.with_suffix(".log").read_text()[-3000:] for each in self.nodes)

    def close(self) -> None:
        for each in self.nodes:
            each.close()
        self._etcd.stop(signal.SIGKILL)


@pytest.fixture
def cluster(open_folder: Path) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(dir=open_folder) as name:
        Path(name).chmod(0o755)
        cluster = Cluster(Path(name))
        try:
            yield cluster
        finally:
            cluster.close()
