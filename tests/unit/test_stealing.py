"""What an instance has to tell the others of its links while the store is away (rules P13, S5)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.errors import Refusal
from coordinator.peers import Stealing
from store.asking import Queries
from tests.fix_loop import EpollLoop


class _Link:
    def refuse(self, refusal: Refusal) -> None:
        raise AssertionError(refusal)


def _nothing(*_: object) -> None:
    pass


@pytest.mark.rule("P13", "S5")
def test_links_that_come_and_go_meanwhile_leave_nothing_behind() -> None:
    loop = EpollLoop()
    queries = Queries(loop, "", 1, _nothing, _nothing)  # never connected
    stealing = Stealing(cast("Any", SimpleNamespace(instance_id=1, peers=1, loop=loop, queries=queries)))
    for number in range(50):
        link = _Link()
        stealing.attached(("container", number), link)
        loop.turn(0)
        stealing.lost(("container", number), link)
    assert queries.waiting == 1
    loop.close()
