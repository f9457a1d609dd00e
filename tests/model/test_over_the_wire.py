"""Level two: the histories of level one through the wire, crashes and all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given

from tests.fix_night import by_night
from tests.fix_service import running_service
from tests.model import profiles
from tests.model.consumption import CONSUMPTION
from tests.model.histories import HISTORIES
from tests.model.over_the_wire import SETTINGS, OverTheWire
from tests.model.steps import Step
from tests.model.strategies import histories


@pytest.fixture(scope="module")
def driver() -> Iterator[OverTheWire]:
    with running_service(SETTINGS) as service:
        driver = OverTheWire(service)
        yield driver
        driver.close()


def _some(names: Iterable[str]) -> list[Any]:
    """Each fifth by day: all go by day in one process."""
    return [by_night(name) if number % 5 else name for number, name in enumerate(names)]


_RULES = ("T8", "T9", "T10", "T11", "T12", "T13", "T20", "T21", "T22", "T23", "T24", "T25", "T26", "T27", "T28")
_MORE_RULES = (
    "T29",
    "T30",
    "T31",
    "T32",
    "T34",
    "P11",
    "P18",
    "D1",
    "D2",
    "D3",
    "D4",
    "D5",
    "D6",
    "D7",
    "D8",
    "D10",
    "H1",
    "H2",
    "H3",
    "H5",
    "H7",
    "H8",
    "H9",
    "H14",
    "H15",
    "H18",
    "H19",
    "H20",
)


@pytest.mark.rule(*_RULES, *_MORE_RULES)
@given(history=histories())
@profiles.of(40)
def test_any_history_goes_as_the_model_says(driver: OverTheWire, history: list[Step]) -> None:
    driver.run(history)


@pytest.mark.rule(*_RULES, *_MORE_RULES, "H4", "H13")
@given(history=histories(crash=True))
@profiles.of(4)
def test_a_history_with_a_crash_goes_on(driver: OverTheWire, history: list[Step]) -> None:
    driver.run(history)


@pytest.mark.rule("T27", "T28", "T29", "T30", "T34", "P11", "D7", "H1", "H13", "H14")
@pytest.mark.parametrize("name", _some(HISTORIES))
def test_what_went_wrong_once(driver: OverTheWire, name: str) -> None:
    driver.run(HISTORIES[name])


@pytest.mark.rule("D1", "D2", "D3", "D4", "D5", "D6", "D10", "H10", "H13", "H15", "H17", "H20", "P11", "P18")
@pytest.mark.parametrize("name", _some(CONSUMPTION))
def test_consumption(driver: OverTheWire, name: str) -> None:
    driver.run(CONSUMPTION[name])
