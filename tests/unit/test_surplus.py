"""What consumers with room have refused is offered to other instances (``coordinator/group/queues.py``, rule P11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.group import loading, queues
from coordinator.group.entries import Entry
from coordinator.group.queues import Offer
from tests.fix_queue import Consumer, queue_of

pytestmark = pytest.mark.rule("P11", "D5")

KEYS = (1, 2)


class Offering:
    """A queue with other instances; both of its consumers have refused four messages, of which two are offered at
    once.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(queues, "_AT_ONCE", 2)
        monkeypatch.setattr(loading, "load", lambda window, most, octets: None)
        self.consumers = [Consumer(key, 5) for key in KEYS]
        self.queue = queue_of(self.consumers, peers=1)
        instance: Any = self.queue.instance
        self.timers: list[Callable[[], None]] = []
        self.pauses: list[float] = []
        self.units: list[Offer] = []
        instance.loop.call_later = self._call_later
        instance.commit = SimpleNamespace(add=self.units.append)
        self.come(*range(1, 5))

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        if callback == self.queue.surplus._offer:
            self.pauses.append(seconds)
        self.timers.append(callback)

    def come(self, *numbers: int) -> None:
        """From the store; both have refused them."""
        for number in numbers:
            entry = Entry(self.queue, number, number, b"x", 0, 0, b"")
            entry.refused_by = KEYS
            self.queue.held[number] = entry
            self.queue.normal.give_back(entry)

    def run_timers(self) -> None:
        timers, self.timers[:] = list(self.timers), []
        for run in timers:
            run()

    def offers(self, count: int) -> list[Offer]:
        """So many, before the store has answered any."""
        while len(self.units) < count:
            self.queue.pump()
            self.run_timers()
        return self.units


@pytest.fixture
def offering(monkeypatch: pytest.MonkeyPatch) -> Offering:
    return Offering(monkeypatch)


def test_what_several_offers_brought_to_the_store_is_looked_for_again(offering: Offering) -> None:
    """As where the store answers late, and then all of them at once."""
    for offer in offering.offers(2):
        offer.durable()
    assert offering.queue.normal.bound is None
    offering.run_timers()
    assert offering.queue.normal.bound == (-4, 0)


def test_others_have_a_moment_to_take_them(offering: Offering) -> None:
    offering.offers(1)[0].durable()
    offering.queue.pump()
    assert not offering.queue.normal.more


@pytest.mark.parametrize("durable", [False, True], ids=["on the way", "in the store"])
def test_a_consumer_that_may_take_them_gets_nothing_newer_first(offering: Offering, durable: bool) -> None:
    for offer in offering.offers(1) * durable:
        offer.durable()
    other = Consumer(3, 5)
    offering.queue.consumers[other] = None
    offering.queue.changed(other)
    offering.queue.pump()
    assert other.got == []
    assert offering.queue.normal.bound == (-4, 0)


def test_one_that_may_take_some_of_an_earlier_offer_has_all_looked_for(offering: Offering) -> None:
    """It has refused what was offered last, and not what was before."""
    for entry in list(offering.queue.held.values())[:2]:
        entry.refused_by = (KEYS[0],)
    _, second = offering.consumers
    second.has = 0
    offering.queue.changed(second)
    offering.offers(1)
    offering.queue.pump()
    second.has = 5
    offering.queue.changed(second)
    offering.run_timers()
    assert len(offering.units) == 2
    offering.queue.pump()
    assert offering.queue.normal.bound == (-4, 0)


def test_what_comes_back_again_and_again_is_offered_more_and_more_rarely(offering: Offering) -> None:
    """At once or later: consumers of other instances may have refused it, too."""
    away: Sequence[int] = ()
    for count in range(1, 10):
        offer = offering.offers(count)[-1]
        offer.durable()
        offering.come(*away)
        away = offer._ids
    assert offering.pauses[:9] == [0.1, 0.1, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4]


def test_where_others_take_them_more_are_offered_soon(offering: Offering) -> None:
    for count in range(1, 10):
        offering.offers(count)[-1].durable()
        offering.come(2 * count + 3, 2 * count + 4)
    assert set(offering.pauses) == {0.1}
