"""Whether the row of a checkable transaction may be in the store already, where a batch writes it (H3, H7): one that is
new is inserted without a look.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.checkable import NOTHING_ASKED, CheckTerms, OwnCheckTerms
from coordinator.halves import Halves, enter
from store.commit.batch import Batch

ID = bytes(16)
TERMS = CheckTerms(6000, 30_000, 15)


@pytest.fixture
def txn() -> Any:
    halves = Halves("shop", TERMS, 1, NOTHING_ASKED)
    return SimpleNamespace(id=ID, halves=halves, registered=False, declared=lambda terms: terms)


def _entered(txn: Any, *batches: Batch) -> list[tuple[dict[bytes, Any], dict[bytes, Any], dict[bytes, None]]]:
    """What each batch has of it: as new, as one that may be there, as one that is there."""
    for batch in batches:
        enter(txn, batch)
    written = [batch.check_back() for batch in batches]
    return [(rows.declared, rows.listed, rows.enlisted) for rows in written]


@pytest.mark.rule("H3")
def test_the_row_is_new_once(txn: Any) -> None:
    """A half that comes while the first is on its way, and one that is written again, find it perhaps."""
    assert _entered(txn, Batch(), Batch()) == [({ID: TERMS}, {}, {}), ({}, {ID: TERMS}, {})]
    txn.halves.entered = True
    assert _entered(txn, Batch()) == [({}, {}, {ID: None})]


@pytest.mark.rule("H3")
def test_one_that_was_listed_may_be_there(txn: Any) -> None:
    txn.registered = True
    assert _entered(txn, Batch()) == [({}, {ID: TERMS}, {})]


@pytest.mark.rule("H7")
@pytest.mark.parametrize("registered", [False, True])
def test_in_one_batch_the_last_message_says_how_it_is_checked(txn: Any, registered: bool) -> None:
    txn.registered = registered
    batch = Batch()
    enter(txn, batch)
    txn.halves.asked = OwnCheckTerms(immunity_ms=500)
    written = {ID: TERMS._replace(immunity_ms=500)}
    assert _entered(txn, batch) == [({}, written, {}) if registered else (written, {}, {})]
