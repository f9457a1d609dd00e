"""The exit status of a service that could not start: 1 where another start may go better by itself."""

from __future__ import annotations

from coordinator.process.children import AWAY, UNFIT, status_of
from coordinator.process.listeners import CannotListen
from store.errors import from_sqlstate
from tests.tables import all_cases


@all_cases(
    ("sqlstate", "status"),
    [("55P03", AWAY), ("57014", AWAY), ("53300", AWAY), ("28P01", UNFIT), ("42P01", UNFIT)],
    ids=["a lock", "a statement that took too long", "no connection", "a password", "the schema"],
)
def test_what_the_database_says(sqlstate: str, status: int) -> None:
    assert status_of(from_sqlstate(sqlstate)) == status


def test_an_address_of_another_machine() -> None:
    assert status_of(CannotListen("cannot listen there")) == UNFIT
