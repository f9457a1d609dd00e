"""Fixtures are split by subject: each ``tests/fix_<subject>.py`` is loaded as a plugin, and there are no others."""

from __future__ import annotations

import gc
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = [f"tests.{path.stem}" for path in sorted(Path(__file__).parent.glob("fix_*.py"))]
# All at once: one may import another before pytest loads that itself.
pytest.register_assert_rewrite(*pytest_plugins)

# No test is about time, and the machine may be busy with other things.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


def pytest_configure() -> None:
    """Signals that this process was told to ignore (``nohup``, a job in the background of a shell) are handled by doing
    nothing: what is ignored stays so in every command that a test starts, and ends by such a signal.
    """
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_collection_finish() -> None:
    _pass_over()


@pytest.fixture(scope="module", autouse=True)
def _collected() -> None:
    """What the tests of the module before have left, every octet of their conversations, does not add up to gigabytes.
    pytest holds what the last of them had until another one begins.
    """
    _pass_over()


def _pass_over() -> None:
    """What has been made up to here, and is no garbage, stays: collections of garbage pass it over from now on."""
    gc.collect()
    gc.freeze()
