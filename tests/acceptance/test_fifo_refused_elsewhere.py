"""Message groups of a fifo queue over two workers: a consumer at one gets those that consumers at the other, which has
claimed them, have no room for or have refused (P11, P18).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.fifo import message, numbers, post_each, settle
from tests.fix_service import Service, running_service
from tests.fix_wire import DialTo
from tests.wire.frames import Accepted, Modified, Open
from tests.wire.peer import Session

WINDOW = 100
SETTINGS = {
    "addresses.patterns": '[{"match": "*", "kind": "fifo"}]',
    "bounds.window_messages": str(WINDOW),
    "workers": "2",
}
REFUSED = Modified(undeliverable_here=True)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service(SETTINGS) as service:
        yield service


def begin(dial_to: DialTo, worker: int) -> Session:
    peer = dial_to(worker)
    peer.send(Open(container_id=f"at worker {worker}"))
    peer.remote_open = peer.wait(Open)
    return peer.begin()


@pytest.mark.rule("P18")
@pytest.mark.parametrize("of_one_group", [0, WINDOW + 50])
def test_where_the_other_has_no_room_left(dial_to: DialTo, address: str, of_one_group: int) -> None:
    """Its window is full, of one group or of many."""
    big = [message(number, "big") for number in range(of_one_group)]
    others = [message(1000 + number, f"g{number}") for number in range(WINDOW // 2)]
    post_each(begin(dial_to, 0).sender(address), *big, *others)
    begin(dial_to, 0).receiver(address, credit=3).take_many(3)
    assert all(number > 1000 for number in numbers(begin(dial_to, 1).receiver(address, credit=5).take_many(5)))


@pytest.mark.rule("P11", "P18")
@pytest.mark.parametrize("groups", ["abc", "aab", "---"])
def test_where_all_at_the_other_have_refused_them(dial_to: DialTo, address: str, groups: str) -> None:
    """They have credit left, and get what comes later; the groups come in order."""
    sender = begin(dial_to, 0).sender(address)
    refusing = begin(dial_to, 0).receiver(address, credit=10)
    post_each(sender, *(message(number, None if each == "-" else each) for number, each in enumerate(groups)))
    settle(REFUSED, *refusing.take_many(3))
    taking = begin(dial_to, 1).receiver(address, credit=5)
    taken = taking.take_many(3)
    assert sorted(numbers(taken)) == [0, 1, 2]
    ordered = [number for number in numbers(taken) if groups[number] == groups[0]]
    assert ordered == sorted(ordered)
    settle(Accepted(), *taken)
    taking.detach()
    post_each(sender, message(9, "z"))
    assert refusing.take().body == 9


@pytest.mark.rule("P11")
def test_one_that_comes_to_the_same_worker_later_gets_them(dial_to: DialTo, address: str) -> None:
    sender = begin(dial_to, 0).sender(address)
    refusing = begin(dial_to, 0).receiver(address, credit=10)
    post_each(sender, *(message(number, "a") for number in range(3)))
    settle(REFUSED, *refusing.take_many(3))
    other = begin(dial_to, 1).receiver(address, credit=5)
    taken = other.take_many(3)
    settle(REFUSED, *taken)
    assert numbers(begin(dial_to, 0).receiver(address, credit=5).take_many(3)) == [0, 1, 2]
