"""How often the supervisor looks at the disk of its database."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.process.own_database import OwnDatabase

MIB = 1 << 20
MARK = 256 * MIB


@pytest.mark.rule("F2")
@pytest.mark.parametrize(
    ("free", "low", "again"),
    [(100_000 * MIB, False, 1.0), (MARK + 512 * MIB, False, 0.5), (MARK + MIB, False, 0.02), (MARK - 1, True, 1.0)],
)
def test_the_nearer_the_mark_the_sooner_comes_the_next_look(free: int, low: bool, again: float) -> None:
    """A second is long enough for posts to use up all that is left, and PostgreSQL ends without room for its log."""
    server = SimpleNamespace(free_bytes=lambda: free, data_dir="data")
    database = OwnDatabase(cast(Any, server), MARK)
    assert database.check_disk(10.0) is low
    assert not database.check_disk(10.0)
    assert database.next_at == pytest.approx(10.0 + again)
