"""Message groups of a fifo queue whose first message all consumers have refused (``modified`` with undeliverable-here):
they hold up no other group (P11, P18).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.acceptance.fifo import SETTINGS, WINDOW, message, post_each, settle
from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_wire import Ask, Begin
from tests.wire.frames import Accepted, Modified
from tests.wire.types import UInt

pytestmark = pytest.mark.rule("P11", "P18")

REFUSED = Modified(undeliverable_here=True)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service(SETTINGS) as service:
        yield service


@pytest.mark.parametrize("grouped", [True, False])
def test_more_of_them_than_the_window_holds(begin: Begin, address: str, grouped: bool) -> None:
    """What comes later goes to those that have refused them, and they, with what comes behind them, to another."""
    session = begin()
    sender, refusing = session.sender(address), session.receiver(address, credit=1000)
    count = 2 * WINDOW + 10
    groups = [f"g{number}" if grouped else None for number in range(count)]
    post_each(sender, *(message(number, group) for number, group in enumerate(groups)))
    settle(REFUSED, *refusing.take_many(count))
    for number in (1000, 1001):
        post_each(sender, message(number, "z"))
        later = refusing.take()
        assert later.body == number
        settle(Accepted(), later)
    post_each(sender, *(message(2000 + number, "g0") for number in range(3)))
    other = session.receiver(address, credit=7)
    first = other.take()
    refusing.detach()
    taken = [first.body]
    settle(Accepted(), first)
    while len(taken) < count + 3:
        delivery = other.take()
        taken.append(delivery.body)
        settle(Accepted(), delivery)
        other.credit(1)
    assert sorted(taken) == [*range(count), 2000, 2001, 2002]
    assert [number for number in taken if number >= 2000 or (grouped and number == 0)] == [0] * grouped + [
        2000,
        2001,
        2002,
    ]


@pytest.mark.rule("P12")
def test_the_life_of_one_ends(begin: Begin, address: str, ask: Ask) -> None:
    """What comes behind it is delivered then; also where the group stands aside."""
    session = begin()
    waiting = []
    for many in (0, 2 * WINDOW):
        sender, refusing = session.sender(f"{address}-{many}"), session.receiver(f"{address}-{many}", credit=1000)
        post_each(sender, message(1, "g", ttl=UInt(5000)))
        settle(REFUSED, refusing.take())
        post_each(sender, *(message(2, f"g{number}") for number in range(many)))
        settle(REFUSED, *refusing.take_many(many))
        post_each(sender, message(3, "g"))
        waiting.append(refusing)
    for refusing in waiting:
        behind = refusing.take()
        assert behind.body == 3
        settle(Accepted(), behind)
    expired = """select count(*) from coordinator.op o join coordinator.half h on h.id = any(o.half_ids)
                   join coordinator.address a on a.id = h.address_id where o.decision = 'expire' and a.name like %s"""
    deadline = time.monotonic() + PATIENCE
    while ask(expired, f"{address}-%") != [(2,)]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
