"""How many histories: few in every run, ``COORDINATOR_TEST_HISTORIES`` times as many in a long one."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

TIMES = float(os.environ.get("COORDINATOR_TEST_HISTORIES", "1"))


def of(histories: int, **more: Any) -> settings:
    """New ones each time; a failure prints how it is had again."""
    return settings(
        max_examples=max(1, round(histories * TIMES)),
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        **more,
    )
