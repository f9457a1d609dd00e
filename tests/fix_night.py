"""The marker ``night``: such a test runs with ``--night`` alone, which ``make test-all`` gives. Of a module that is
marked so as a whole, a test that is marked ``day`` runs by day as well.

Where values of a parameter mean the same but for one thing, one of them runs by day: :func:`by_night` marks the others.
"""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.mark import ParameterSet


def by_night(*values: Any, id: str | None = None) -> ParameterSet:
    """A case of a parameter, or of several, that runs by night alone."""
    return pytest.param(*values, marks=pytest.mark.night, id=id)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--night", action="store_true", help="also run what is marked night")


def _waits(item: pytest.Item) -> bool:
    return item.get_closest_marker("night") is not None and item.get_closest_marker("day") is None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("night"):
        config.hook.pytest_deselected(items=[item for item in items if _waits(item)])
        items[:] = [item for item in items if not _waits(item)]
