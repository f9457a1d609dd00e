"""Which rows of the list of undecided transactions go when one that waited for the store is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.late_decisions import LateDecisions
from coordinator.registration import Removal


@pytest.mark.parametrize(("checkable", "removed"), [(False, 1), (True, 0)])
def test_a_checkable_one_that_is_left_undecided_keeps_its_row(checkable: bool, removed: int) -> None:
    units: list[object] = []
    instance: Any = SimpleNamespace(
        commit=SimpleNamespace(add=units.append), transaction_limits=SimpleNamespace(register_after_seconds=-1.0)
    )
    asked: list[Any] = []
    decisions: Any = SimpleNamespace(note=lambda rows, noted: asked.append((rows, noted)))
    late = LateDecisions(instance, decisions, lambda txn_id: True)
    control = SimpleNamespace(named=b"x")
    txn: Any = SimpleNamespace(
        id=bytes(16), control=control, began=0.0, timeout=1.0, posted=1, retired=[], checkable=checkable
    )
    late.look([txn])
    ((_, noted),) = asked
    noted({bytes(16)})
    late.forget(txn)
    assert [type(unit) for unit in units] == [Removal] * removed
