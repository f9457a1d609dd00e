"""The supervisor runs the metrics in a child."""

from __future__ import annotations

from coordinator.process import logs
from coordinator.process.children import Handed
from coordinator.process.measuring import Measuring


def measure(handed: Handed) -> int:
    """Serve metrics until the supervisor ends. It may be killed at any time: it only reads."""
    logs.configure(handed.settings.log, process="metrics")
    measuring = Measuring(handed.database_url, handed.supervising, handed.listeners, handed.settings, handed.tls)
    measuring.disk_low = handed.disk_low
    measuring.run()
    return 0
