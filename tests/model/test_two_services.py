"""No answer about a transaction contradicts another, over two services on one store and any fault."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.model import profiles
from tests.model.two_services import run, two_services

HISTORIES = 20


@pytest.mark.rule("T8", "T10", "T11", "T12", "H4", "H5", "H13")
def test_no_answer_contradicts_another(
    database_url: str, open_folder: Path, record_property: Callable[[str, object], None]
) -> None:
    first = random.randrange(1 << 30) if profiles.NEW else 1
    seeds = range(first, first + max(1, round(HISTORIES * profiles.TIMES)))
    with two_services(database_url, open_folder) as ends:
        counts = run(ends, database_url, seeds)
    record_property("histories", dict(counts))
    assert counts["committed"] > len(seeds)
    assert counts["transactions"] - counts["committed"] > len(seeds)
