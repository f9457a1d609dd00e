"""Fixtures are split by subject: each ``tests/fix_<subject>.py`` is loaded as a plugin, and there are no others."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A run starts a thousand processes, which import the same modules: what Python has compiled is kept beside them, though
# the user's shell, or a container's, may say otherwise.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

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


def pytest_collection(session: pytest.Session) -> None:
    """Where several processes share all tests, each begins with another part of their modules: pytest takes a quarter
    of a minute to write the asserts of all of them anew, and so finds most of them written by another process.
    """
    config = session.config
    given = getattr(config, "workerinput", None)
    if given is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    folder = Path(__file__).parent
    names = [".".join(path.relative_to(folder.parent).with_suffix("").parts) for path in folder.rglob("test_*.py")]
    begin = len(names) * int(given["workerid"].removeprefix("gw")) // given["workercount"]
    names.sort()
    for name in (*names[begin:], *names[:begin]):
        with suppress(Exception, pytest.skip.Exception):  # of what cannot be imported pytest tells when it collects it
            importlib.import_module(name)


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
