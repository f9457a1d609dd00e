"""Questions that PostgreSQL refuses though the connection stays, as one that is cancelled: nothing is left stuck."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from store.embedded.running import running_url
from tests.acceptance.fifo import SETTINGS, numbers, post, settle
from tests.fix_service import Service, running_service
from tests.fix_wire import Begin
from tests.refusing import refused
from tests.wire.frames import Accepted
from tests.wire.peer import PATIENCE


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service(SETTINGS) as service:
        yield service


@contextmanager
def _refused(service: Service, what: str) -> Iterator[None]:
    """What is done in the block meets a store that refuses ``what``, at least once."""
    with refused(running_url(service.data_dir), what) as tries:
        yield
        _until(tries)


def _until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@pytest.mark.rule("P18")
def test_message_groups_that_cannot_be_given_up(service: Service, begin: Begin, address: str) -> None:
    session = begin()
    sender = session.sender(address)
    post(sender, "ab")
    receiver = session.receiver(address, credit=2)
    settle(Accepted(), *receiver.take_many(2))
    with _refused(service, "delete on coordinator.message_group"):
        receiver.detach()
    post(sender, "abc", 10)
    assert sorted(numbers(session.receiver(address, credit=10).take_many(3))) == [10, 11, 12]
