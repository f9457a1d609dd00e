"""A signal that ends ``coordinator reconcile`` (rule R31), also where Python forgets what is raised."""

from __future__ import annotations

import signal
import time
import weakref
from collections.abc import Iterator

import pytest
import typer

from coordinator.commands import stopping
from coordinator.commands.stopping import stopped_by_name
from spark.java import SIGNALS

pytestmark = pytest.mark.rule("R31")


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """A command that is stopped ignores signals up to its end; the tests go on."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Thing:
    """Of Java, as Py4J keeps it."""


def _interrupted(_reference: object) -> None:
    signal.raise_signal(signal.SIGTERM)


def _lose_a_thing() -> None:
    thing = Thing()
    reference = weakref.ref(thing, _interrupted)
    del thing
    assert reference() is None
    time.sleep(60)


@pytest.mark.parametrize("again", [0.01, 0.0])
def test_one_that_comes_in_a_callback_ends_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, again: float
) -> None:
    """It comes again when Python is done with telling of the first, or is in the midst of that."""
    monkeypatch.setattr(stopping, "_AGAIN_SECONDS", again)
    with pytest.raises(typer.Exit) as ended, stopped_by_name():
        _lose_a_thing()
    assert ended.value.exit_code == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "error: interrupted by SIGTERM\n"


def test_a_second_one_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """While things are put away, and after it."""
    put_away = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            put_away.append("all")

    with pytest.raises(typer.Exit) as ended, stopped_by_name():
        work()
    signal.raise_signal(signal.SIGINT)
    assert (ended.value.exit_code, put_away) == (130, ["all"])
    assert capsys.readouterr().err == "error: interrupted\n"


def test_what_is_ignored_stays_so() -> None:
    """``nohup``, and a shell that starts a job in the background."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    handler = signal.getsignal(signal.SIGTERM)
    with stopped_by_name():
        signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGTERM) is not handler
    assert signal.getsignal(signal.SIGTERM) is handler
