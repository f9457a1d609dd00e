"""A store that is held up: a lock of the table of ops keeps all that is decided waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from store.embedded.running import running_url
from tests.fix_service import PATIENCE, Service

#: Waits until a batch is held up.
Waits = Callable[[], None]


@contextmanager
def nothing_is_decided(service: Service) -> Iterator[Waits]:
    waiting = "select from pg_locks where relation = 'coordinator.op'::regclass and not granted"
    with (
        psycopg.connect(running_url(service.data_dir)) as holding,
        psycopg.connect(running_url(service.data_dir), autocommit=True) as beside,
    ):
        holding.execute("lock table coordinator.op in share mode")

        def waits() -> None:
            deadline = time.monotonic() + PATIENCE
            while beside.execute(waiting).fetchone() is None:
                assert time.monotonic() < deadline, "no batch waits for the table of ops"

        yield waits
