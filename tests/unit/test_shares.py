"""What one connection may leave unread, while all together leave too much (rules S4, S5)."""

from __future__ import annotations

import pytest

from coordinator.bounds import Bounds
from coordinator.memory import LEAST_FAIR, MOST_FAIR, Account


@pytest.mark.rule("S4", "S5")
@pytest.mark.parametrize(("connections", "share"), [(0, MOST_FAIR), (4, MOST_FAIR), (100, 60_000), (9_000, LEAST_FAIR)])
def test_the_share_of_a_connection_is_less_the_more_there_are(connections: int, share: int) -> None:
    memory = Account(Bounds(), 6 * 6_000_000)
    memory.connections = connections
    assert memory.fair_share == share
