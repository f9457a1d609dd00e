"""Level one: random interleavings on the rules and a real store, step for step beside the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.model import strategies
from tests.model.in_process import InProcess, in_process
from tests.model.model import Model
from tests.model.steps import Step
from tests.model.strategies import Steps


@pytest.fixture
def driver(database_url: str, request: pytest.FixtureRequest) -> Iterator[InProcess]:
    with in_process(database_url, company=request.param) as driver:
        yield driver


def machine(driver: InProcess) -> type[RuleBasedStateMachine]:
    """One history on ``driver`` is one example."""

    class Histories(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            driver.begin()
            self.history: list[Step] = []
            self.there: dict[Callable[[Model], Steps], Steps] = {}

        def do(self, step: Step) -> None:
            self.history.append(step)
            self.there.clear()
            driver.do(step)

        def possible(self, kind: Callable[[Model], Steps]) -> Steps:
            if kind not in self.there:
                self.there[kind] = kind(driver.model)
            return self.there[kind]

        @initialize(second=st.booleans())
        def beginning(self, second: bool) -> None:
            for step in strategies.beginning(second):
                self.do(step)

        def teardown(self) -> None:
            note(f"history = {self.history}")
            driver.end()

    def add(kind: Callable[[Model], Steps], name: str) -> None:
        @precondition(lambda self: self.possible(kind) is not None)
        @rule(data=st.data())
        def act(self: Histories, data: st.DataObject) -> None:
            there = self.possible(kind)
            assert there is not None
            self.do(data.draw(there))

        setattr(Histories, name, act)

    for kind, weight in strategies.ALL_KINDS.items():
        for number in range(weight):
            add(kind, f"{kind.__name__}_{number}")
    return Histories


@pytest.mark.parametrize("driver", [False, True], ids=["alone", "in company"], indirect=True)
@pytest.mark.rule(
    "T8", "T10", "T11", "T12", "T13", "T14", "T20", "T21", "T22", "T23", "T24", "T25", "T26", "T27", "T28"
)
@pytest.mark.rule("T29", "T30", "T31", "T32", "T34", "P11", "D4", "D5", "D6", "H4", "H5", "H13")
def test_any_history_goes_as_the_model_says(driver: InProcess) -> None:
    run_state_machine_as_test(
        machine(driver),
        settings=settings(
            max_examples=100,
            stateful_step_count=40,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
