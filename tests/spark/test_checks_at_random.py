"""The checks on a store that is broken at random, held against plain Python (R10 to R16, R18, R19)."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from random import Random, SystemRandom
from typing import TYPE_CHECKING

import pytest

from tests.fix_findings import all_findings
from tests.fix_night import by_night
from tests.fix_store_rows import StoreRows
from tests.plain_checks import KINDS, PlainChecks, break_at_random

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.rule("R10", "R11", "R12", "R13", "R14", "R15", "R16", "R18", "R19")
@pytest.mark.parametrize("slices", [None, by_night(timedelta(seconds=1))], ids=["small", "large"])
def test_what_is_found_is_what_plain_python_finds(spark: SparkSession, slices: timedelta | None) -> None:
    """Of a small store, and of a large one in slices."""
    seed = SystemRandom().getrandbits(32)
    print(f"seed {seed}")  # noqa: T201 (shown where it fails)
    rows = StoreRows(seed).healthy(300)
    break_at_random(rows, Random(seed), 12)
    if slices is not None:
        rows.with_keys()
    found = Counter(
        (each.kind, each.txn_id, each.half_id, each.address, each.consumer_group)
        for each in all_findings(rows, spark, slices=slices)
        if each.kind in KINDS and (each.kind != "stuck-delivery" or each.severity == "error")
    )
    assert found == PlainChecks(rows).found()
    # one or two may be missing by chance
    assert len(set(KINDS) - {kind for kind, *_ in found}) <= 2 + (slices is not None)
