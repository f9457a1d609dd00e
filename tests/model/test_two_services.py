"""No answer about a transaction contradicts another, over two services on one store and any fault."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.model import checkable_services, profiles
from tests.model.checkable_services import CheckableHistory
from tests.model.services import two_services
from tests.model.two_services import run

HISTORIES = 20
#: of checkable transactions, which take longer: some wait for checks
CHECKABLE_HISTORIES = 8


def seeds_of(histories: int) -> range:
    first = random.randrange(1 << 30) if profiles.NEW else 1
    return range(first, first + max(1, round(histories * profiles.TIMES)))


@pytest.mark.rule("T8", "T10", "T11", "T12", "H4", "H5", "H13", "D1")
def test_no_answer_contradicts_another(
    database_url: str, open_folder: Path, record_property: Callable[[str, object], None]
) -> None:
    seeds = seeds_of(HISTORIES)
    with two_services(database_url, open_folder) as ends:
        counts = run(ends, database_url, seeds)
    record_property("histories", dict(counts))
    assert counts["committed"] > len(seeds)
    assert counts["transactions"] - counts["committed"] > len(seeds)
    assert counts["heard whole"] > 0


@pytest.mark.rule("T8", "T11", "H2", "H3", "H4", "H5", "H7", "H8", "H10", "H11", "H13", "H20")
def test_no_answer_about_a_checkable_transaction_contradicts_another_and_all_arrives_once(
    database_url: str, open_folder: Path, record_property: Callable[[str, object], None]
) -> None:
    seeds = seeds_of(CHECKABLE_HISTORIES)
    with two_services(database_url, open_folder, checkable_services.SETTINGS) as ends:
        counts = run(ends, database_url, seeds, kind=CheckableHistory)
    record_property("checkable histories", dict(counts))
    assert counts["committed"] > len(seeds)
    assert counts["commit checked"] > 0
    assert counts["rollback checked"] + counts["rollback check-exhausted"] > 0
