"""A Ctrl-C of ``coordinator reconcile`` (rule R31), where Python forgets what is raised."""

from __future__ import annotations

import time
import weakref

import pytest
import typer

from coordinator.commands.reconcile import _interrupted_by_name


class Thing:
    """Of Java, as Py4J keeps it."""


def _interrupted(_reference: object) -> None:
    raise KeyboardInterrupt


def _lose_a_thing() -> None:
    thing = Thing()
    reference = weakref.ref(thing, _interrupted)
    del thing
    assert reference() is None
    time.sleep(60)


@pytest.mark.rule("R31")
def test_one_that_comes_in_a_callback_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, _interrupted_by_name():
        _lose_a_thing()
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "error: interrupted\n"
