"""Level two: the histories of level one through the wire, crashes and all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fix_service import running_service
from tests.model.over_the_wire import SETTINGS, OverTheWire
from tests.model.steps import Step
from tests.model.strategies import histories


@pytest.fixture(scope="module")
def driver() -> Iterator[OverTheWire]:
    with running_service(SETTINGS) as service:
        driver = OverTheWire(service)
        yield driver
        driver.close()


@given(history=histories())
@settings(max_examples=25, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
def test_any_history_goes_as_the_model_says(driver: OverTheWire, history: list[Step]) -> None:
    driver.run(history)
