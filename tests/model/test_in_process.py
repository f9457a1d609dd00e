"""Level one: random interleavings on the rules and a real store, step for step beside the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.fix_night import by_night
from tests.model import profiles, strategies
from tests.model.consumption import CONSUMPTION
from tests.model.histories import HISTORIES
from tests.model.in_process import InProcess, in_process
from tests.model.model import Model
from tests.model.retention import RETENTION
from tests.model.steps import Step
from tests.model.strategies import Steps


@pytest.fixture(scope="module", params=[False, by_night(True)], ids=["alone", "in company"])
def driver(module_database_url: str, request: pytest.FixtureRequest) -> Iterator[InProcess]:
    with in_process(module_database_url, company=request.param) as driver:
        yield driver


def machine(driver: InProcess) -> type[RuleBasedStateMachine]:
    """One history on ``driver`` is one example."""

    class Histories(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            driver.begin()
            # what the service really does must not change what is drawn: a step that cannot be is passed over
            self.model = Model()
            self.history: list[Step] = []
            self.there: dict[Callable[[Model], Steps], Steps] = {}

        def do(self, step: Step) -> None:
            self.history.append(step)
            self.there.clear()
            strategies.imagine(self.model, step)
            driver.do(step)

        def possible(self, kind: Callable[[Model], Steps]) -> Steps:
            if kind not in self.there:
                self.there[kind] = kind(self.model)
            return self.there[kind]

        @initialize(
            second=st.booleans(),
            group=strategies.maybe_a_group,
            later=st.booleans(),
            another=strategies.maybe_another,
        )
        def beginning(self, second: bool, group: int | None, later: bool, another: int | None) -> None:
            for step in strategies.beginning(second, group, later, another):
                self.do(step)

        def teardown(self) -> None:
            note(f"for tests/model/histories.py: {self.history}")
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


@pytest.mark.day
@pytest.mark.rule("T8", "T9", "T10", "T11", "T12", "T13", "T14", "T20", "T21", "T22", "T23", "T24", "T25", "T26", "T27")
@pytest.mark.rule("T28", "T29", "T30", "T31", "T32", "T34", "T35", "P11", "D4", "D5", "D6", "H4", "H5", "H6", "H13")
@pytest.mark.rule(
    "H1",
    "H2",
    "H3",
    "H7",
    "H8",
    "H9",
    "H10",
    "H14",
    "H15",
    "H16",
    "H17",
    "H18",
    "H19",
    "H20",
    "D1",
    "D2",
    "D3",
    "D7",
    "D10",
)
@pytest.mark.rule("P18", "S4")
def test_any_history_goes_as_the_model_says(driver: InProcess) -> None:
    run_state_machine_as_test(machine(driver), settings=profiles.of(22, stateful_step_count=30))


@pytest.mark.rule(
    "T22", "T23", "T24", "T25", "T27", "T28", "T29", "T30", "T34", "P11", "D7", "D9", "H1", "H13", "H14", "S4"
)
@pytest.mark.parametrize("name", HISTORIES)
def test_what_went_wrong_once(driver: InProcess, name: str) -> None:
    driver.run(HISTORIES[name])


@pytest.mark.rule("D1", "D2", "D3", "D4", "D5", "D6", "D10", "H10", "H13", "H15", "H17", "H20", "P11", "P18")
@pytest.mark.parametrize("name", CONSUMPTION)
def test_consumption(driver: InProcess, name: str) -> None:
    driver.run(CONSUMPTION[name])


@pytest.mark.rule("D4", "H13", "H16", "H17", "H20")
@pytest.mark.parametrize("name", RETENTION)
def test_retention(driver: InProcess, name: str) -> None:
    driver.run(RETENTION[name])
