"""Two PostgreSQL servers, a primary and its synchronous standby, two services, and their clients: a machine each."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from tests.faults.record import LINE, SALES
from tests.fix_command import alive
from tests.fix_machines import DatabaseMachine, Machine, ServiceMachine, Site
from tests.fix_postgres import signal_server
from tests.fix_service import PATIENCE

#: Of each server, in memory: small enough to be filled.
_DISK = "1g"
_SETTINGS = {
    "login.anonymous": "always",
    "addresses.patterns": f'[{{"match": "{LINE}", "kind": "fifo"}}]',
    "transaction.timeout_seconds": "60",
    "check.immunity_seconds": "1",
    "check.interval_seconds": "2",
    "check.most": "100",
}
#: As Debian's package libfaketime installs it.
_FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
_IN_SYNC = "select count(*) from pg_stat_replication where sync_state = 'sync'"


def _unmount(disk: Path) -> None:
    subprocess.run(["umount", "-l", disk], check=True)


class Steppable(ServiceMachine):
    """A service whose clock can be set: by libfaketime, where there is one."""

    def __init__(self, machine: Machine, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(machine, folder, settings)
        self._clock = folder.with_suffix(".clock")
        self.step(0)

    def environment(self) -> dict[str, str]:
        faked = {
            "LD_PRELOAD": ":".join(map(str, _FAKETIME[:1])),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        return {**super().environment(), **(faked if _FAKETIME else {})}

    @property
    def can_step(self) -> bool:
        return bool(_FAKETIME)

    def step(self, seconds: int) -> None:
        """Within a second its time of day is so far off."""
        self._clock.write_text(f"{seconds:+d}")


class Hosts:
    """``near``: a machine of clients that is cut off from services; ``far``: another, which is not."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        """``ends``: takes all down again."""
        for disk in (folder / "db1", folder / "db2"):
            disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK},mode=755", "tmpfs", disk], check=True)
            ends.callback(_unmount, disk)
        self.site = Site(folder)
        ends.callback(self.site.close)
        self.network = self.site.network
        self.primary, self.standby = self.site.one, self.site.two
        self.near, self.far = (self.network.machine(name) for name in ("near", "far"))
        self.primary.run(SALES)
        self.primary.run("alter system set wal_keep_size = '512MB'")
        for each in (self.primary, self.standby):  # a standby looks for its primary every 5 s, and commits wait for it
            each.run("alter system set wal_retrieve_retry_interval = '500ms'")
            each.run("select pg_reload_conf()")
        self._have_standby()
        self.one = self.site.service("one", **_SETTINGS)
        given = {"database_url": self.site.url(), **_SETTINGS, "workers": "2"}
        self.two = Steppable(self.network.machine("two"), folder / "two", given)
        self.site.services.append(self.two)
        for service in self.services:
            service.start()

    @property
    def services(self) -> list[ServiceMachine]:
        return [self.one, self.two]

    def workers(self, service: ServiceMachine) -> list[int]:
        """The pid of each that lives."""
        ready = [line for line in service.log_lines() if line.get("event") == "worker ready"]
        last = {int(line["worker"]): int(line["pid"]) for line in ready}
        return [pid for pid in last.values() if alive(pid)]

    # -- the databases

    def _have_standby(self) -> None:
        """From now on a commit waits for the standby."""
        self.primary.run("alter system set synchronous_standby_names = '*'")
        self.primary.run("select pg_reload_conf()")
        self.wait_in_sync()

    def wait_in_sync(self) -> None:
        """Wait until a loss of the primary loses nothing."""
        deadline = time.monotonic() + PATIENCE
        while self.primary.run(_IN_SYNC) != [(1,)]:
            assert time.monotonic() < deadline, f"the standby did not come within {PATIENCE:g} s"
            time.sleep(0.1)

    def kill(self, database: DatabaseMachine) -> None:
        """All processes of the server, at once."""
        assert database.server.pid
        signal_server(database.server.pid, signal.SIGKILL)
        database.machine.run(database.server.wait)

    def promote(self) -> None:
        """The primary must be dead, or must never be reached again."""
        self.standby.run("alter system set synchronous_standby_names = ''")
        self.standby.run("select pg_reload_conf()")
        assert self.standby.run("select pg_promote()") == [(True,)]
        self.primary, self.standby = self.standby, self.primary

    def follow(self) -> None:
        """What was the primary becomes the standby of the other, with a copy of all it has."""
        old = self.standby
        old.machine.run(lambda: old.server.stop(grace_seconds=0))
        shutil.rmtree(old.server.data_dir)
        old.follow(self.primary)
        self._have_standby()
