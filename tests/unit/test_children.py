"""The first moments of a child of the supervisor, and what it inherits."""

from __future__ import annotations

import gc
import os
import resource
import selectors
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from coordinator.process import children
from coordinator.process.children import Child, Supervising

_at_fork: list[signal.Signals] = []


def _in_child() -> None:
    for number in _at_fork:
        os.kill(os.getpid(), number)


os.register_at_fork(after_in_child=_in_child)


def _children() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def _status(run: Callable[[Supervising], int]) -> int | None:
    with selectors.DefaultSelector() as selector:
        child = Child(selector, "test", run)
        assert child.ends_within(10)
        return child.poll()


@pytest.fixture
def handler() -> Iterator[None]:
    """A handler for SIGTERM as the supervisor has one, and a wake-up pipe."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    wake = signal.set_wakeup_fd(write)
    yield
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGTERM, before)
    os.close(read)
    os.close(write)


def test_a_signal_right_after_the_fork_ends_it(handler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor's handler would run in the child, to no effect."""
    monkeypatch.setattr(f"{__name__}._at_fork", [signal.SIGTERM])
    assert _status(lambda _: 7) == -signal.SIGTERM


def test_what_it_begins_with(handler: None) -> None:
    """A session of its own, no handler, no signal blocked, no descriptor but its own, and nothing to be collected."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def run(supervising: Supervising) -> int:
        open_now = {int(each) for each in os.listdir("/proc/self/fd")}  # noqa: PTH208 - it is the listing's own, too
        wrong = (
            os.getsid(0) != os.getpid(),
            signal.pthread_sigmask(signal.SIG_BLOCK, ()) != blocked,
            signal.getsignal(signal.SIGTERM) != signal.SIG_DFL,
            signal.set_wakeup_fd(-1) != -1,
            len(open_now - {0, 1, 2, supervising.fileno()}) > 1,
            gc.get_freeze_count() == 0,
            Path("/proc/self/fd/0").readlink() != Path(os.devnull),
        )
        return sum(1 << number for number, each in enumerate(wrong) if each)

    assert _status(run) == 0


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("of the child")], ids=repr)
def test_an_error_in_it_is_logged(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def run(_: Supervising) -> int:
        raise error

    with open(2, "w", closefd=False) as stream:
        monkeypatch.setattr(children, "_log", structlog.wrap_logger(structlog.WriteLogger(stream)))
        assert _status(run) == 1
    told = capfd.readouterr().err
    assert "process ended by an error" in told
    assert type(error).__name__ in told


def test_without_a_place_in_the_selector_there_is_none() -> None:
    class Full(selectors.DefaultSelector):
        def register(self, *_: Any) -> Any:
            raise OSError(28, "No space left on device")

    before = _children()
    with Full() as selector, pytest.raises(OSError, match="No space left"):
        Child(selector, "test", lambda _: 0)
    assert _children() == before


def test_one_that_finds_no_descriptor_free_runs() -> None:
    """The last two are those of the socket pair."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with selectors.DefaultSelector() as selector:
        lowest = os.dup(0)
        os.close(lowest)
        beyond = os.dup(0), os.dup(0)
        for each in beyond:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(beyond) + 1, before[1]))
        try:
            child = Child(selector, "test", lambda _: 5)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert child.ends_within(10)
        assert child.poll() == 5
