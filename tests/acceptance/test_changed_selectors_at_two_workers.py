"""The selector of a lasting subscription whose links come to another worker (rules D1, P16)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.selecting import HIGH, LOW, post, subscribed, taken
from tests.acceptance.subscribers import begin
from tests.fix_service import Service, running_service
from tests.fix_wire import DialTo
from tests.wire.peer import Session

pytestmark = pytest.mark.rule("D1", "P16")


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"workers": "2"}) as service:
        yield service


@pytest.fixture
def sessions(dial_to: DialTo, address: str) -> list[Session]:
    """At each worker one of the same container."""
    return [begin(dial_to, worker, f"shop-{address}") for worker in range(2)]


def test_another_selector_at_the_other_worker(sessions: list[Session], address: str) -> None:
    one, other = sessions
    subscribed(one, address, LOW).detach(closed=False)
    post(one, address, 5, 15)
    receiver = subscribed(other, address, HIGH)
    assert taken(receiver) == []
    receiver.detach(closed=False)
    post(one, address, 6, 16)
    assert taken(subscribed(one, address, HIGH)) == [b"16"]


def test_a_shared_one_keeps_its_selector_until_it_is_ended(sessions: list[Session], address: str) -> None:
    """Which worker has links of it, the others do not know."""
    one, other = sessions
    receiver = subscribed(one, address, LOW, "shared", name="sub|1")
    assert subscribed(other, address, HIGH, "shared", name="sub|2").error == "amqp:not-allowed"
    post(one, address, 5, 15)
    assert taken(receiver) == [b"5"]
    receiver.detach()
    post(one, address, 6, 16)
    assert taken(subscribed(other, address, HIGH, "shared", name="sub|3")) == []
