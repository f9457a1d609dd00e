"""How many histories: few in every run, ``COORDINATOR_TEST_HISTORIES`` times as many in a long one.

Every run has the same ones: what fails fails again, and no change is blamed for what another has left. A long run has
new ones each time.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

TIMES = float(os.environ.get("COORDINATOR_TEST_HISTORIES", "1"))
NEW = "COORDINATOR_TEST_HISTORIES" in os.environ


def of(histories: int, **more: Any) -> settings:
    """A failure prints how it is had again."""
    return settings(
        max_examples=max(1, round(histories * TIMES)),
        derandomize=not NEW,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        **more,
    )
