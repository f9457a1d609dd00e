"""Which commands the API answers: neither has what the other lacks, unless the table says why."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature

import pytest
import typer.main
from fastapi.routing import APIRoute

from coordinator.__main__ import app
from coordinator.http.acting import routes as acts
from coordinator.http.api import routes
from coordinator.operations import READS, ROOT, Operation

pytestmark = pytest.mark.rule("S11")

_RUNS = "it runs as long as it takes, as a program of its own"
_FILES = "it works on files of this machine"

_NOT_OVER_HTTP = {
    "serve": "it is what answers",
    "migrate": _RUNS,
    "maintain": _RUNS,
    "sql": "it is a terminal on the database",
    "reconcile": _RUNS,
    "watch": _RUNS,
    "dead-letters export": "dead-letters show has the messages, with whole=true, page by page",
    "role grant": "it is for the owner of the store, who is not the service",
    "archive on": _FILES,
    "archive off": _FILES,
    "archive write": _FILES,
    "archive restore": _FILES,
}

#: arguments of functions that no request gives
_OF_THE_STORE = {"connection", "found", "least_bytes", "root", "seconds"}


def _commands(of: object, name: str = "") -> Iterator[str]:
    inner = getattr(of, "commands", None)
    if inner is None:
        yield name
    else:
        for each, command in inner.items():
            yield from _commands(command, f"{name} {each}".strip())


def test_each_command_is_there_or_the_table_says_why() -> None:
    answered = {
        str(route.summary).removeprefix("coordinator ").partition(" --")[0].partition(",")[0]
        for route in (*routes.routes, *acts.routes)
        if isinstance(route, APIRoute)
    }
    assert not answered & _NOT_OVER_HTTP.keys()
    assert answered | _NOT_OVER_HTTP.keys() == set(_commands(typer.main.get_command(app)))


def _names(route: APIRoute) -> set[str]:
    """Its arguments, as a request gives them."""
    return {each.name for each in (*route.dependant.path_params, *route.dependant.query_params)}


@pytest.mark.parametrize("operation", READS, ids=lambda operation: operation.path)
def test_a_command_from_elsewhere_finds_what_it_asks_for(operation: Operation) -> None:
    """``coordinator --url`` takes path and arguments from the table, and the API declares its own."""
    (route,) = [each for each in routes.routes if isinstance(each, APIRoute) and each.path == ROOT + operation.path]
    assert route.summary == f"coordinator {operation.command}"
    takes = {"limit" if name == "most" else name for name in signature(operation.run).parameters}
    assert _names(route) <= takes | {"limit"}
    assert takes - _OF_THE_STORE <= _names(route)
