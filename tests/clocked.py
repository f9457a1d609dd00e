"""A reactor by whose clock nothing takes time but what its test says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from links.reactor import Reactor


class Clocked(Reactor):
    """``now``: its clock, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0


Made = TypeVar("Made", bound=Clocked)


@contextmanager
def clocked(reactor: Made, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Inside the block it reads by its own clock."""
    monkeypatch.setattr("links.reactor.time.monotonic", lambda: reactor.now)
    yield reactor
    reactor._epoll.close()
