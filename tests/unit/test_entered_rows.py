"""Whether the row of a checkable transaction may be in the store already, where a batch writes it (H3, H7): one that is
new is inserted without a look.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.checkable import NO_OWN_TERMS, CheckTerms, OwnCheckTerms
from coordinator.in_store import InStore, RowState
from store.commit.batch import Batch

ID = bytes(16)
TERMS = CheckTerms(6000, 30_000, 15)


@pytest.fixture
def in_store(monkeypatch: pytest.MonkeyPatch) -> InStore:
    txn: Any = SimpleNamespace(id=ID, registered=False, control=SimpleNamespace(number=1))
    monkeypatch.setattr(InStore, "declared", lambda _, terms: terms)
    return InStore(txn, "shop", TERMS, NO_OWN_TERMS)


def _entered(in_store: InStore, *batches: Batch) -> list[tuple[dict[bytes, Any], dict[bytes, Any], dict[bytes, None]]]:
    """What each batch has of it: as new, as one that may be there, as one that is there."""
    for batch in batches:
        in_store.enter(batch)
    written = [batch.check_back() for batch in batches]
    return [(rows.declared, rows.listed, rows.enlisted) for rows in written]


@pytest.mark.rule("H3")
def test_the_row_is_new_once(in_store: InStore) -> None:
    """A half that comes while the first is on its way, and one that is written again, find it perhaps."""
    assert _entered(in_store, Batch(), Batch()) == [({ID: TERMS}, {}, {}), ({}, {ID: TERMS}, {})]
    in_store.row = RowState.UNDECIDED
    assert _entered(in_store, Batch()) == [({}, {}, {ID: None})]


@pytest.mark.rule("H3")
def test_one_that_was_listed_may_be_there(in_store: InStore) -> None:
    in_store.txn.registered = True
    assert _entered(in_store, Batch()) == [({}, {ID: TERMS}, {})]


@pytest.mark.rule("H7")
@pytest.mark.parametrize("registered", [False, True])
def test_in_one_batch_the_last_message_says_how_it_is_checked(in_store: InStore, registered: bool) -> None:
    in_store.txn.registered = registered
    batch = Batch()
    in_store.enter(batch)
    in_store.own_terms = OwnCheckTerms(immunity_ms=500)
    written = {ID: TERMS._replace(immunity_ms=500)}
    assert _entered(in_store, batch) == [({}, written, {}) if registered else (written, {}, {})]
