"""The supervisor runs this child, which gives up dead instances."""

from __future__ import annotations

import select
import time
from dataclasses import asdict

import structlog

from coordinator.process import logs
from coordinator.process.children import Handed, Supervising
from store import recovery
from store.database import Patience, connected
from store.errors import StoreError
from store.recovery import LOOK_SECONDS, DeadInstances, GivenUp

# Gives up dead instances, and names their processes to the supervisor.
#
# It runs in a process of its own, so that the supervisor never waits for the database.

_log: structlog.stdlib.BoundLogger = structlog.get_logger()

# Recovery may have to read all entries.
_RECOVERY_PATIENCE = Patience(statement_seconds=600.0, lock_seconds=5.0)


class Recovering:
    """Calls ``run()`` until the supervisor has ended."""

    def __init__(self, url: str, supervising: Supervising) -> None:
        self._url = url
        self._supervising = supervising
        self._instances = DeadInstances(url)
        self._recovered = False

    def run(self) -> None:
        while True:
            begun = time.monotonic()
            try:
                self._check()
            except StoreError as error:
                _log.debug("no look for lost instances", reason=str(error))
            pause = max(0.0, begun + LOOK_SECONDS - time.monotonic())
            readable, _, _ = select.select([self._supervising], [], [], pause)
            if readable and not self._supervising.receive():
                return

    def _check(self) -> None:
        if not self._recovered:
            # Once, what instances left that have ended: a look finds only those that have not.
            with connected(self._url, patience=_RECOVERY_PATIENCE) as connection:
                given_up = recovery.recover(connection)
            self._recovered = True
            _report(given_up)
        seen = self._instances.check()
        _report(seen.given_up)
        if seen.ended:
            self._supervising.send(ended=seen.ended)


def _report(given_up: GivenUp) -> None:
    if given_up.instances:
        _log.warning("instances given up", **asdict(given_up))


def recover(handed: Handed) -> int:
    """Give up dead instances until the supervisor ends. It may be killed at any time: the database undoes what it had
    begun.
    """
    logs.configure(handed.settings.log, process="recover")
    Recovering(handed.database_url, handed.supervising).run()
    return 0
