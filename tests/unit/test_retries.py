"""Questions that the store cannot answer are asked again after a pause, by each part that asks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.address import dead_letters
from coordinator.address.addresses import UNUSED, NotMade
from coordinator.address.dead_letters import DeadLetters
from coordinator.address.directory import Directory
from coordinator.codec.selectors import TurnShare
from coordinator.errors import Condition
from coordinator.group.fifo import FifoQueue
from coordinator.group.selecting import Search
from coordinator.group.units import LOAD_RETRY_SECONDS
from links.browsing import Browsing
from store.asking import Query
from store.commit.terms import Rank
from store.errors import StoreFault, StoreUnavailable
from store.questions import addresses, message_groups
from tests.fix_queue import Consumer, queue_of


class Asked:
    """As much of an instance as an asker needs: what was asked, and what is to be called later."""

    def __init__(self) -> None:
        self.questions: list[tuple[Query[Any], Callable[[Any], None]]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.instance_id = 1
        self.queries = SimpleNamespace(ask=lambda query, _, callback: self.questions.append((query, callback)))
        self.loop = SimpleNamespace(call_later=lambda seconds, callback: self.timers.append((seconds, callback)))

    def answer(self, answer: object) -> None:
        _, callback = self.questions.pop(0)
        callback(answer)

    @property
    def names(self) -> list[bytes]:
        return [query.name for query, _ in self.questions]


def test_dead_letters_wait_after_an_error() -> None:
    asked: Any = Asked()
    letters = DeadLetters(asked, asked, asked)
    letters.wake()
    for _ in range(3):
        asked.answer(StoreFault("x"))
        assert asked.questions == []
        ((seconds, again),) = asked.timers
        asked.timers.clear()
        assert seconds == dead_letters._AGAIN_SECONDS
        again()
        assert asked.names == [b"yield_failed"]  # what it leased is not known here
        asked.answer(None)
        assert asked.names == [b"lease_failed"]


def test_dead_letters_go_on_with_a_new_connection() -> None:
    asked: Any = Asked()
    letters = DeadLetters(asked, asked, asked)
    letters.wake()
    asked.answer(StoreUnavailable("x"))
    ((seconds, _),) = asked.timers
    assert seconds < 1


@pytest.mark.rule("P16")
def test_a_consumer_that_chooses_looks_again_after_an_error() -> None:
    consumer: Any = Consumer(1, 1)
    queue = queue_of([])
    asked = Asked()
    instance: Any = queue.instance
    instance.queries, instance.loop, instance.selecting = asked.queries, asked.loop, TurnShare()
    search = Search(queue, consumer, SimpleNamespace(matches=lambda *_: True, wanted=None))  # type: ignore[arg-type]
    queue.searches.append(search)
    queue.pump()
    assert asked.names == [b"browse_urgent"]
    asked.answer(StoreFault("x"))
    queue.pump()
    assert asked.names == []
    ((seconds, again),) = asked.timers
    assert seconds == LOAD_RETRY_SECONDS
    again()
    queue.pump()
    assert asked.names == [b"browse_urgent"]


@pytest.mark.rule("P18")
def test_a_fifo_queue_asks_again_after_a_pause() -> None:
    consumer: Any = Consumer(1, 1)
    queue = queue_of([], kind=FifoQueue)
    asked = Asked()
    instance: Any = queue.instance
    instance.queries, instance.loop = asked.queries, asked.loop
    queue.add(consumer)
    assert isinstance(queue, FifoQueue)

    def fails(name: bytes, then: bytes) -> None:
        queue.pump()
        assert asked.names == [name]
        asked.answer(StoreFault("x"))
        queue.pump()
        assert asked.names == []
        ((seconds, again),) = asked.timers
        asked.timers.clear()
        assert seconds == LOAD_RETRY_SECONDS
        again()
        assert asked.names == [then]

    fails(b"scan_groups", b"forget_groups")
    asked.answer(None)
    queue.news(-5)
    fails(b"claim_groups", b"forget_groups")
    asked.answer(None)
    queue.pump()
    asked.answer(message_groups.Scanned([-5], 0, more=False))
    fails(b"lease_groups", b"held")


@pytest.mark.rule("D3", "P18")
def test_a_fifo_queue_reads_nothing_on_before_a_lost_load_is_back() -> None:
    """Else the next of a message group would go out before those that the lost load has leased."""
    queue = queue_of([], kind=FifoQueue)
    asked = Asked()
    units: list[Any] = []
    instance: Any = queue.instance
    instance.queries, instance.loop, instance.commit = asked.queries, asked.loop, SimpleNamespace(add=units.append)
    consumer: Any = Consumer(1, 1)
    queue.add(consumer)
    queue.pump()
    asked.answer(message_groups.Scanned([-5], 0, more=False))
    queue.pump()
    assert asked.names == [b"lease_groups"]
    queue.returning += 1  # others on their way to the store
    asked.answer(StoreUnavailable("x"))
    queue.yielded([])
    queue.pump()
    assert asked.names == []
    ((_, reclaim),) = asked.timers
    reclaim()
    assert asked.names == [b"held"]
    asked.answer([7])
    units.pop().durable()
    queue.pump()
    assert asked.names == []
    units.pop().durable()
    queue.pump()
    assert asked.names == [b"lease_groups"]


@pytest.mark.rule("P8")
def test_a_browser_looks_again_after_an_error() -> None:
    asked = Asked()
    touched: list[bool] = []
    browser: Any = SimpleNamespace(
        _loading=True,
        open=True,
        connection=SimpleNamespace(service=SimpleNamespace(instance=asked, loop=asked.loop)),
        _queue=SimpleNamespace(touch=lambda: touched.append(True)),
    )
    browser._look_again = lambda: Browsing._look_again(browser)
    Browsing._loaded(browser, Rank.NORMAL, StoreFault("x"))
    assert browser._loading
    ((seconds, again),) = asked.timers
    assert seconds == LOAD_RETRY_SECONDS
    again()
    assert not browser._loading
    assert touched == [True]


class _Looking(Browsing):
    """A browser that shows what it is told, and remembers nothing else."""

    __slots__ = ()

    def __init__(self) -> None:
        self._stale, self._again, self._at = {}, set(), {}
        self._loading, self.open = False, True
        self._queue: Any = SimpleNamespace(touch=lambda: None)
        self.arrived()

    def _show(self, rows: Any) -> tuple[int, int] | None:
        return rows[-1] if rows else None


@pytest.mark.rule("P8", "P17")
def test_a_browser_forgets_no_message_that_comes_while_it_looks() -> None:
    """It may be before what the question under way has found, or the question saw the store before it."""
    browser = _Looking()
    browser.arrived()
    browser._loaded(Rank.URGENT, _row(8, 5))
    assert browser._stale[Rank.URGENT] == (8, 5)  # it goes on from there
    browser._loaded(Rank.URGENT, [])
    assert list(browser._stale) == [Rank.NORMAL, Rank.PATIENT]
    looked = []
    while browser._stale:
        looked.append(min(browser._stale))
        assert looked[-1] is Rank.NORMAL or browser._stale[looked[-1]] == browser._start(looked[-1])
        browser._loaded(looked[-1], [])
    assert looked == [Rank.NORMAL, Rank.URGENT, Rank.PATIENT, Rank.NORMAL, Rank.PATIENT]
    assert not browser._again


@pytest.mark.rule("P8", "P17")
def test_a_browser_looks_at_each_rank_however_many_messages_come() -> None:
    browser = _Looking()
    looked = []
    for number in range(80):
        rank = min(browser._stale)
        looked.append(rank)
        browser.arrived()
        browser._loaded(rank, _row(4, number) if rank is Rank.NORMAL and number < 30 else [])
    assert {rank: looked.count(rank) > 5 for rank in Rank} == dict.fromkeys(Rank, True)


def _row(priority: int, number: int) -> Any:
    return [(priority, number)]


def _topic(number: int, groups: int = 0) -> addresses.Stored:
    return addresses.Stored(
        number, "topic", "normal", "drop", 16, "immediate", "use", None, groups, None, None, None, {}
    )


def test_all_addresses_are_looked_at_in_one_question() -> None:
    asked: Any = Asked()
    asked.memory = SimpleNamespace(most_addresses=100)
    asked.by_group = {}
    directory = Directory(asked, asked, SimpleNamespace())  # type: ignore[arg-type]
    found: list[Any] = []
    for number in range(50):
        directory.resolve(f"news/{number}", found.append)
        asked.answer(_topic(number))
    directory.all_changed()
    ((query, answered),) = asked.questions
    assert query is addresses.FIND_ALL
    answered({f"news/{number}": _topic(number, groups=number) for number in range(1, 50)})
    assert [address.groups for address in found[1:]] == list(range(1, 50))
    assert found[0].gone
    assert directory.known("news/0") is None


def test_the_store_is_told_of_addresses_in_use_and_asked_about_those_that_were_not() -> None:
    asked: Any = Asked()
    asked.memory = SimpleNamespace(most_addresses=100)
    asked.by_group = {}
    policy: Any = SimpleNamespace(decide=lambda *_, **__: NotMade(condition="not-found", message=""))
    directory = Directory(asked, asked, policy)
    found: list[Any] = []
    for number in (1, 2):
        directory.resolve(f"news/{number}", found.append)
        asked.answer(_topic(number))
    ((seconds, note),) = asked.timers
    assert seconds == UNUSED.total_seconds() / 8
    found[0].users.add(object())
    for address in found:
        address.noted -= UNUSED.total_seconds() / 4 + 1
    assert directory.known("news/1") is None
    note()
    ((query, answered),) = asked.questions
    assert query is addresses.NOTE_USES
    answered(None)
    asked.questions.clear()
    assert directory.known("news/1") is found[0]
    assert directory.known("news/2") is None
    directory.resolve("news/2", found.append)
    asked.answer(None)
    assert found[1].gone
    assert found[2].condition is Condition.NOT_FOUND
