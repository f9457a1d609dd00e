"""The watch over the instances, run by the supervisor in a child."""

from __future__ import annotations

from coordinator.process import logs
from coordinator.process.children import Handed
from coordinator.process.watching import Watching


def watch(handed: Handed) -> int:
    """Until the supervisor ends. It may be killed at any time: the database undoes what it had begun."""
    logs.configure(handed.settings.log, process="watch")
    Watching(handed.database_url, handed.supervising).run()
    return 0
