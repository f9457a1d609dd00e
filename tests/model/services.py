"""Two services on one store, each with a way of its own to it, and what may befall them: kill -9 of a worker and of a
service, SIGSTOP, and database connections that are cut on both sides, cut on one, or held up.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from proton import Sender

from tests.acceptance.engine_client import Client
from tests.fix_proxy import Proxy
from tests.fix_service import Service
from tests.workers import pids_of_workers

#: A worker that stands still for so long is given up; now and then one does.
LONG_STOP_SECONDS = 12.0


@dataclass
class End:
    """One service: its process, its way to the database, and the clients that work at it."""

    name: str
    service: Service
    proxy: Proxy
    clients: list[tuple[Client, Sender]] = field(default_factory=list)
    #: a worker that was stopped, and when it goes on
    stopped: tuple[int, float] | None = None
    #: wires that are held, and until when
    held: tuple[contextlib.ExitStack, float] | None = None

    @property
    def well(self) -> bool:
        return self.stopped is None and self.held is None

    def mend(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if self.stopped is not None and (at_once or now >= self.stopped[1]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.stopped[0], signal.SIGCONT)
            self.stopped = None
        if self.held is not None and (at_once or now >= self.held[1]):
            self.held[0].close()
            self.held = None

    def suffer(self, dice: random.Random, faults: Counter[str]) -> None:
        """One fault, which is counted; what stops or is held goes on with :meth:`mend`."""
        kind = dice.choice(("worker", "worker", "service", "stop", "stop", "cut", "one side", "hold", "hold"))
        if kind == "stop" and dice.random() < 0.05:
            kind = "long stop"
        faults[kind] += 1
        until = time.monotonic() + dice.uniform(0.01, 0.5)
        if kind == "worker":
            os.kill(pids_of_workers(self.service, count=1)[0], signal.SIGKILL)
        elif kind == "service":
            self.service.kill()
            self.service.restart()
        elif kind == "stop":
            self._stop(until)
        elif kind == "long stop":
            self._stop(time.monotonic() + LONG_STOP_SECONDS)
        elif kind == "cut":
            self.proxy.cut()
        elif kind == "one side":
            self.proxy.cut_client_side()
        else:
            stack = contextlib.ExitStack()
            stack.enter_context(self.proxy.held(dice.choice(("requests", "replies", "connections"))))
            self.held = (stack, until)
            if dice.random() < 0.5:
                self.proxy.cut_client_side()

    def _stop(self, until: float) -> None:
        pid = pids_of_workers(self.service, count=1)[0]
        os.kill(pid, signal.SIGSTOP)
        self.stopped = (pid, until)


@contextlib.contextmanager
def two_services(url: str, folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[list[End]]:
    """On the store of ``url``. ``settings``: by dotted name."""
    ends: list[End] = []
    try:
        for number in range(2):
            proxy = Proxy(url)
            service = Service(folder / f"service-{number}", {**(settings or {}), "database_url": proxy.url})
            ends.append(End(f"service {number}", service, proxy))
            service.start()
        yield ends
    finally:
        for end in ends:
            end.mend(at_once=True)
            end.service.discard()
            end.proxy.close()
