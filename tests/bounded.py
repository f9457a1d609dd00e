"""A service with smaller bounds than others have: ``python -m tests.bounded`` is ``coordinator`` with those that
``COORDINATOR_TEST_BOUNDS`` names (:class:`coordinator.bounds.Bounds`, as JSON).
"""

from __future__ import annotations

import json
import os
import runpy
from functools import partial

from coordinator.bounds import Bounds
from coordinator.service import Service
from links import worker

VARIABLE = "COORDINATOR_TEST_BOUNDS"


def take() -> None:
    """Workers of this process get them."""
    if given := os.environ.get(VARIABLE):
        vars(worker)["Service"] = partial(Service, bounds=Bounds(**json.loads(given)))


if __name__ == "__main__":
    take()
    runpy.run_module("coordinator", run_name="__main__", alter_sys=True)
