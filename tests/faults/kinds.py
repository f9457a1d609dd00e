"""What strikes: each kind of fault, how it begins, how long it lasts, and how it is mended (F2)."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import psycopg

from tests.faults.hosts import Hosts
from tests.fix_machines import DatabaseMachine, Machine, ServiceMachine

#: An instance whose heartbeat stands still for so long is given up.
LEASE_SECONDS = 10.0
#: Of the tables that a commit, a read, or a beat needs.
_TABLES = ("entry", "op", "half", "txn", "consumer_group", "instance", "heartbeat")


@dataclass
class Struck:
    """``host``: the service that it concerns; empty: both. ``seconds``: so long it lasts."""

    host: str = ""
    seconds: float = 0.0
    what: str = ""


#: Strikes, yields, and mends.
Fault = Generator[Struck]


class Kinds:
    """Each method is a kind. ``deck``: how often each comes, among the others."""

    def __init__(self, hosts: Hosts, dice: random.Random) -> None:
        self._hosts = hosts
        self._dice = dice
        self.deck: dict[str, tuple[int, Callable[[], Fault]]] = {
            "kill -9 of a worker": (8, self.kill_worker),
            "kill -9 of a service": (4, self.kill_service),
            "a worker stands still, shortly": (5, self.stop_worker_shortly),
            "a worker stands still, past its lease": (3, self.stop_worker_for_long),
            "a service's machine is dark": (4, self.darken_service),
            "a service and its clients are cut off, one way": (4, self.cut_clients_one_way),
            "a service and its clients are cut off": (3, self.cut_clients),
            "a service and the primary are cut off, one way": (3, self.cut_primary_one_way),
            "a service and the primary are cut off": (3, self.cut_primary),
            "a service has no database, past its lease": (3, self.cut_databases),
            "PostgreSQL is restarted": (3, self.restart_primary),
            "kill -9 of PostgreSQL": (3, self.kill_primary),
            "the primary is lost, its standby promoted": (3, self.lose_primary),
            "the standby is away": (3, self.stop_standby),
            "no connection is left": (2, self.take_connections),
            "the database's disk is full": (2, self.fill_disk),
            "a service's clock steps": (4, self.step_clock),
            "the service's sessions are ended": (5, self.end_sessions),
            "a table is locked": (4, self.lock_table),
            "two at once": (6, self.strike_twice),
        }

    def skipped(self) -> dict[str, str]:
        """Kinds that cannot be had here, with why."""
        if self._hosts.two.can_step:
            return {}
        return {"a service's clock steps": "libfaketime is not installed"}

    def drawn(self, names: list[str]) -> Iterator[tuple[str, Callable[[], Fault]]]:
        """For ever; of ``names`` alone, each as often as the deck has it."""
        chosen = [name for name in names if name not in self.skipped()]
        while True:
            cards = [name for name in chosen for _ in range(self.deck[name][0])]
            self._dice.shuffle(cards)
            for name in cards:
                yield name, self.deck[name][1]

    def _service(self) -> ServiceMachine:
        return self._dice.choice(self._hosts.services)

    # -- processes of a service

    def kill_worker(self) -> Fault:
        service = self._service()
        os.kill(self._dice.choice(self._hosts.workers(service)), signal.SIGKILL)
        yield Struck(service.machine.name)

    def kill_service(self) -> Fault:
        service = self._service()
        service.kill()
        yield Struck(service.machine.name, self._dice.uniform(0, 1))
        service.restart()

    def stop_worker_shortly(self) -> Fault:
        yield from self._stop_worker(self._dice.uniform(0.2, LEASE_SECONDS / 2))

    def stop_worker_for_long(self) -> Fault:
        yield from self._stop_worker(LEASE_SECONDS + self._dice.uniform(1, 5))

    def _stop_worker(self, seconds: float) -> Fault:
        service = self._service()
        worker = self._dice.choice(self._hosts.workers(service))
        os.kill(worker, signal.SIGSTOP)
        yield Struck(service.machine.name, seconds)
        with suppress(ProcessLookupError):  # killed by its supervisor, as it was given up
            os.kill(worker, signal.SIGCONT)

    # -- the network

    def darken_service(self) -> Fault:
        service = self._service()
        self._hosts.network.darken(service.machine)
        yield Struck(service.machine.name, self._dice.uniform(1, 13))
        self._hosts.network.lighten(service.machine)

    def cut_clients_one_way(self) -> Fault:
        service = self._service()
        yield from self._cut_one_way(service, self._hosts.near)

    def cut_clients(self) -> Fault:
        service = self._service()
        yield from self._cut(service, self._dice.uniform(1, 8), self._hosts.near)

    def cut_primary_one_way(self) -> Fault:
        service = self._service()
        yield from self._cut_one_way(service, self._hosts.primary.machine)

    def cut_primary(self) -> Fault:
        service = self._service()
        yield from self._cut(service, self._dice.uniform(1, 8), self._hosts.primary.machine)

    def cut_databases(self) -> Fault:
        service = self._service()
        machines = [each.machine for each in (self._hosts.primary, self._hosts.standby)]
        yield from self._cut(service, LEASE_SECONDS + self._dice.uniform(1, 4), *machines)

    def _cut_one_way(self, service: ServiceMachine, other: Machine) -> Fault:
        source, target = self._dice.sample([service.machine, other], 2)
        self._hosts.network.cut(source, target)
        yield Struck(service.machine.name, self._dice.uniform(1, 8), f"from {source.name} to {target.name}")
        self._hosts.network.mend(source, target)

    def _cut(self, service: ServiceMachine, seconds: float, *others: Machine) -> Fault:
        ways = [way for other in others for way in ((service.machine, other), (other, service.machine))]
        for source, target in ways:
            self._hosts.network.cut(source, target)
        yield Struck(service.machine.name, seconds)
        for source, target in ways:
            self._hosts.network.mend(source, target)

    # -- the database

    def restart_primary(self) -> Fault:
        primary = self._hosts.primary
        primary.stop()
        yield Struck(seconds=self._dice.uniform(0, 2))
        primary.start()

    def kill_primary(self) -> Fault:
        primary = self._hosts.primary
        self._hosts.kill(primary)
        yield Struck(seconds=self._dice.uniform(0, 1))
        primary.start()

    def lose_primary(self) -> Fault:
        primary = self._hosts.primary
        dark = self._dice.random() < 0.5
        if dark:
            self._hosts.network.darken(primary.machine)
        else:
            self._hosts.kill(primary)
        yield Struck(seconds=self._dice.uniform(0.5, 2), what="dark" if dark else "killed")
        self._hosts.promote()
        if dark:
            self._hosts.kill(primary)
            self._hosts.network.lighten(primary.machine)
        self._hosts.follow()

    def stop_standby(self) -> Fault:
        """Commits wait for it."""
        standby = self._hosts.standby
        self._hosts.kill(standby)
        yield Struck(seconds=self._dice.uniform(0, 3))
        standby.start()

    def take_connections(self) -> Fault:
        """As many as the server gives, those of superusers, too; and the service loses its own."""
        with ExitStack() as held:
            beside = held.enter_context(psycopg.connect(self._hosts.primary.local_url, autocommit=True))
            self._take_all(held)
            beside.execute(_END_SESSIONS)
            end = time.monotonic() + self._dice.uniform(2, 5)
            yield Struck()
            while time.monotonic() < end:
                self._take_all(held)
                time.sleep(0.01)

    def _take_all(self, held: ExitStack) -> None:
        with suppress(psycopg.OperationalError):
            while True:
                held.enter_context(psycopg.connect(self._hosts.primary.local_url, autocommit=True))

    def fill_disk(self) -> Fault:
        """In half of the cases the log of PostgreSQL finds no room, and the server ends."""
        primary = self._hosts.primary
        with _full(primary):
            ends = self._dice.random() < 0.5
            if ends:
                _write_log(primary)
            yield Struck(seconds=self._dice.uniform(2, 6), what="its log, too" if ends else "")
        if primary.server.pid is None:
            primary.start()

    def end_sessions(self) -> Fault:
        with psycopg.connect(self._hosts.primary.local_url, autocommit=True) as beside:
            beside.execute(_END_SESSIONS)
        yield Struck()

    def lock_table(self) -> Fault:
        table = self._dice.choice(_TABLES)
        with psycopg.connect(self._hosts.primary.local_url) as beside:
            beside.execute(f"lock table coordinator.{table} in access exclusive mode".encode())
            yield Struck(seconds=self._dice.uniform(1, 6), what=table)
            beside.rollback()

    # -- both

    def strike_twice(self) -> Fault:
        """A worker is killed, or stands still, while the network or the database is struck."""
        outer = self._dice.choice([
            self.darken_service, self.cut_clients, self.cut_primary, self.cut_databases, self.restart_primary,
            self.kill_primary, self.lose_primary, self.stop_standby, self.fill_disk, self.lock_table,
        ])  # fmt: skip
        inner = self._dice.choice([self.kill_worker, self.stop_worker_shortly])
        around, within = outer(), inner()
        struck = next(around)
        next(within)
        yield Struck(seconds=struck.seconds, what=f"{outer.__name__}, {inner.__name__}".replace("_", " "))
        next(within, None)
        next(around, None)

    # -- time

    def step_clock(self) -> Fault:
        two = self._hosts.two
        seconds = self._dice.choice([-600, -60, -3, 3, 60, 600])
        two.step(seconds)
        yield Struck(two.machine.name, self._dice.uniform(2, 6), f"{seconds:+d} s")
        two.step(0)


_END_SESSIONS = (
    b"select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name like 'coordinator %'"
)


@contextmanager
def _full(database: DatabaseMachine) -> Iterator[None]:
    """Inside the block its disk has no octet left."""
    disk = database.server.data_dir.parent
    ballast = disk / "ballast"
    try:
        with ballast.open("wb") as file, suppress(OSError):
            free = os.statvfs(disk)
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
        yield
    finally:
        ballast.unlink()


def _write_log(database: DatabaseMachine) -> None:
    """More than the files have room for that are there."""
    with suppress(psycopg.Error), psycopg.connect(database.local_url, autocommit=True) as beside:
        for _ in range(300):
            beside.execute(b"select pg_logical_emit_message(false, 'filling', repeat('x', 1048576))")
