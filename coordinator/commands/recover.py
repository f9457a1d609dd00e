"""The child of the supervisor that recovers from instances that are lost."""

from __future__ import annotations

from coordinator.process import logs
from coordinator.process.children import Handed
from coordinator.process.recovering import Recovering


def recover(handed: Handed) -> int:
    """Until the supervisor ends. It may be killed at any time: the database undoes what it had begun."""
    logs.configure(handed.settings.log, process="recover")
    Recovering(handed.database_url, handed.supervising).run()
    return 0
