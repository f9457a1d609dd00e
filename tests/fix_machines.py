"""Machines: hosts as network namespaces behind a router, which can cut them off from each other, one way or both.

Each has an address, a host name and a thread of its own; what is started in that thread runs on that machine.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest

from store import migrations, partitions
from store.database import connected
from store.embedded.programs import Account
from store.embedded.server import EmbeddedServer
from tests.fix_service import Service
from tests.fix_standby import copy_to

_PORT = 5432
_numbers = itertools.count(1)
_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWUTS, _CLONE_NEWNET = 0x04000000, 0x40000000

Found = TypeVar("Found")


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _enter(namespace: str, name: str) -> None:
    """Have this thread, and what it starts, be in a network namespace, under a host name of its own."""
    with Path(f"/run/netns/{namespace}").open("rb") as file:
        if _libc.setns(file.fileno(), _CLONE_NEWNET) or _libc.unshare(_CLONE_NEWUTS):
            raise OSError(ctypes.get_errno(), "a namespace cannot be entered")
    socket.sethostname(name)


class Machine:
    def __init__(self, network: Network, name: str, number: int) -> None:
        self.name, self.address = name, f"10.213.{number}.2"
        self.namespace = network.namespace(name)
        self._network = network
        _ip("netns", "add", self.namespace)
        outside = f"to{number}"
        _ip(
            "-n",
            network.router,
            "link",
            "add",
            outside,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            self.namespace,
        )
        _ip("-n", network.router, "addr", "add", f"10.213.{number}.1/24", "dev", outside)
        _ip("-n", self.namespace, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for where, link in ((network.router, outside), (self.namespace, "eth0"), (self.namespace, "lo")):
            _ip("-n", where, "link", "set", link, "up")
        _ip("-n", self.namespace, "route", "add", "default", "via", f"10.213.{number}.1")
        # The kernel stops what a thread has started when that ends: it lives as long as the machine.
        self._thread = ThreadPoolExecutor(1, initializer=_enter, initargs=(self.namespace, name))

    def run(self, function: Callable[[], Found]) -> Found:
        """Call ``function`` on this machine: sockets that it makes, and processes that it starts, are there."""
        return self._thread.submit(function).result()

    def enter(self) -> None:
        """Have this thread be on this machine from now on, for ever."""
        _enter(self.namespace, self.name)

    def close(self) -> None:
        self._thread.shutdown()


class Network:
    """A router, and the machines behind it."""

    def __init__(self) -> None:
        """:raises OSError: no namespace can be made here."""
        self._prefix = f"coordinator-{os.getpid()}-{next(_numbers)}"
        self.router = self.namespace("router")
        self._machines: list[Machine] = []
        _ip("netns", "add", self.router)
        with ThreadPoolExecutor(1, initializer=_enter, initargs=(self.router, "router")) as there:
            there.submit(Path("/proc/sys/net/ipv4/ip_forward").write_text, "1").result()

    def namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def machine(self, name: str) -> Machine:
        machine = Machine(self, name, len(self._machines) + 1)
        self._machines.append(machine)
        return machine

    def _rule(self, what: str, *ends: str) -> None:
        _ip("-n", self.router, "rule", what, *ends, "blackhole")

    def cut(self, source: Machine, target: Machine) -> None:
        """Packets from ``source`` to ``target`` are dropped, without an answer."""
        self._rule("add", "from", source.address, "to", target.address)

    def mend(self, source: Machine, target: Machine) -> None:
        self._rule("del", "from", source.address, "to", target.address)

    def darken(self, machine: Machine) -> None:
        """Nothing gets to or from ``machine``."""
        for way in ("from", "to"):
            self._rule("add", way, machine.address)

    def lighten(self, machine: Machine) -> None:
        for way in ("from", "to"):
            self._rule("del", way, machine.address)

    def close(self) -> None:
        for machine in self._machines:
            machine.close()
        for namespace in (*(each.namespace for each in self._machines), self.router):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


class _Server(EmbeddedServer):
    """Which all machines may use, from the moment that it is there."""

    def _launch(self, programs: Path, account: Account, socket_dir: Path) -> None:
        rules = self.data_dir / "postgresql" / "coordinator_hba.conf"
        trust = "host all all 10.213.0.0/16 trust\nhost replication all 10.213.0.0/16 trust\n"
        rules.write_text(trust + rules.read_text())
        super()._launch(programs, account, socket_dir)


class DatabaseMachine:
    """A machine with a PostgreSQL on it. ``local_url``: past the network, for tests."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine = machine
        self.server = _Server(folder, applications=("0.0.0.0", _PORT))
        self.local_url = ""

    def start(self) -> None:
        self.local_url = self.machine.run(self.server.start)

    def follow(self, primary: DatabaseMachine) -> None:
        """Start as a standby, with a new copy of ``primary``."""
        folder = self.server.data_dir
        copy_to(primary.server, primary.local_url, folder)
        place = f"host={primary.machine.address} port={_PORT} user=coordinator application_name={self.machine.name}"
        with (folder / "postgresql" / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = '{place}'\n")
        self.start()

    def run(self, sql: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.local_url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def stop(self) -> None:
        self.machine.run(self.server.stop)


class ServiceMachine(Service):
    """A service on a machine of its own."""

    def __init__(self, machine: Machine, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, settings)
        self.machine = machine
        #: where other machines connect
        self.place = f"amqp://{machine.address}:5672"

    @property
    def listens(self) -> list[str]:
        return [*super().listens, self.place]

    def environment(self) -> dict[str, str]:
        # what is forked from another process would be on its machine
        return {**super().environment(), "PYTHONNODEBUGRANGES": "1"}

    def start(self) -> None:
        self.machine.run(super().start)


class Site:
    """Two machines with a database, a primary ``one`` and its standby ``two``; services are added."""

    def __init__(self, folder: Path) -> None:
        self.network = Network()
        self._folder = folder
        self.services: list[ServiceMachine] = []
        self.one, self.two = (self._database(name) for name in ("db1", "db2"))
        self.one.start()
        migrations.upgrade(self.one.local_url)
        with connected(self.one.local_url) as connection:
            partitions.make_ahead(connection)
        self.two.follow(self.one)

    def _database(self, name: str) -> DatabaseMachine:
        """Its disk is the folder ``name``, which may be there before."""
        disk = self._folder / name
        disk.mkdir(mode=0o755, exist_ok=True)
        return DatabaseMachine(self.network.machine(name), disk / "store")

    def url(self, *first: DatabaseMachine) -> str:
        hosts = ",".join(each.machine.address for each in first or (self.one, self.two))
        return f"postgresql://coordinator@{hosts}/coordinator?target_session_attrs=read-write"

    def service(self, name: str, *first: DatabaseMachine, **settings: str) -> ServiceMachine:
        machine = self.network.machine(name)
        given = {"database_url": self.url(*first), "login.anonymous": "always", **settings}
        service = ServiceMachine(machine, self._folder / name, given)
        self.services.append(service)
        return service

    def close(self) -> None:
        for service in self.services:
            service.discard()
        for each in (self.two, self.one):
            each.machine.run(lambda each=each: each.server.stop(grace_seconds=0))  # type: ignore[misc]
        self.network.close()


def why_not() -> str:
    """Why there are no machines here; empty: there are."""
    if sys.platform != "linux" or os.geteuid():
        return "only root makes network namespaces"
    try:
        Network().close()
    except OSError as error:
        return str(error)
    return ""


@pytest.fixture
def site(open_folder: Path) -> Iterator[Site]:
    if why := why_not():
        pytest.skip(f"no machines: {why}")
    with tempfile.TemporaryDirectory(dir=open_folder) as folder:
        Path(folder).chmod(0o755)
        site = Site(Path(folder))
        try:
            yield site
        finally:
            site.close()
