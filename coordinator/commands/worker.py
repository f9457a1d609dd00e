"""The supervisor runs each worker in a child, which says ``ready`` when it serves."""

from __future__ import annotations

import structlog

from coordinator.process import children, logs
from coordinator.process.children import Handed
from links import worker
from store.errors import SchemaMismatch


def work(handed: Handed) -> int:
    """Serve until the supervisor stops the worker, or others give it up; return the exit status."""
    logs.configure(handed.settings.log, worker=handed.number)
    try:
        return worker.main(handed)
    except SchemaMismatch as error:
        # Another start would fail as well.
        structlog.get_logger().error("cannot work", reason=str(error))
        return children.UNFIT
