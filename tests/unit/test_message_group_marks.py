"""From where a message group is read on (rule P18): what was consumed of it is not walked through again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.bounds import Bounds
from coordinator.group import fifo
from coordinator.group.entries import Entry
from coordinator.group.fifo import FifoQueue
from coordinator.group.lanes import MessageGroup
from coordinator.group.policies import Policies
from coordinator.memory import Account
from store.commit.terms import DeliveryTerms
from store.errors import StoreUnavailable
from store.questions import message_groups as questions
from store.questions.message_groups import Leased

pytestmark = pytest.mark.rule("P18")

KEY = -5
SLACK = 1000


class Instance:
    """Remembers above which ids groups were read, and the timers."""

    bounds = SimpleNamespace(window_messages=100, window_bytes=1 << 20)
    memory = Account(Bounds(), 1 << 30)
    instance_id = 7
    queries: object = None

    def __init__(self, peers: int) -> None:
        self.peers = peers
        self.above: list[int] = []
        self.answer: Callable[[Leased | StoreUnavailable], None] | None = None
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.loop = SimpleNamespace(call_later=lambda seconds, call: self.timers.append((seconds, call)))

    def lease(self, *parameters: Any) -> None:
        (above,), self.answer = parameters[3], parameters[-1]
        self.above.append(above)


class Group:
    """A message group that is claimed, on a queue with a stand-in for its instance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, peers: int) -> None:
        self.instance = Instance(peers)
        monkeypatch.setattr(questions, "lease", self.instance.lease)
        monkeypatch.setattr(fifo, "LOW_WATER_SLACK", SLACK)
        policies = Policies(max_attempts=16, on_expiry="drop", fifo=True, dead_letters=False)
        home = SimpleNamespace(dirty=[])
        self.queue = FifoQueue(cast(Any, self.instance), cast(Any, home), 1, 1, "", policies)
        self.group = self.queue.groups[KEY] = MessageGroup(KEY, self.queue.free)

    def ask(self) -> None:
        self.group.more = True
        self.queue.place(self.group)
        assert self.queue.reading.load(10, 10)

    def came(self, *ids: int) -> None:
        """The answer; what it brought is consumed."""
        assert self.instance.answer is not None
        rows = [(each, each, b"m", 0, 0, b"", False, 4, 0, 0, KEY) for each in ids]
        self.instance.answer(Leased(rows, {KEY: len(ids)} if ids else {}, {}))
        self.group.ready.clear()
        self.queue.ready = 0

    def load(self, *ids: int) -> None:
        self.ask()
        self.came(*ids)

    def entry(self, number: int) -> Entry:
        entry = self.queue.entry_kind(self.queue, number, number, b"m", 0, 0, b"", False, 4)
        entry.group, entry.out, entry.coming = self.group, False, False
        return entry


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Group:
    return Group(monkeypatch, 0)


@pytest.fixture
def among_others(monkeypatch: pytest.MonkeyPatch) -> Group:
    return Group(monkeypatch, 1)


def test_it_is_read_on_behind_the_last_that_came(alone: Group) -> None:
    alone.load(40_000, 45_000)
    alone.load()
    alone.load(46_000)
    alone.load()
    assert alone.instance.above == [0, 45_000, 45_000, 46_000]
    assert not alone.instance.timers


@pytest.mark.parametrize("loading", [True, False])
@pytest.mark.parametrize(
    "news",
    [
        lambda each: each.queue.posted(17, DeliveryTerms(message_group=KEY)),
        lambda each: each.queue.in_store(17),
        lambda each: each.queue.give_back(each.entry(17), leased=False),
        lambda each: each.queue.yielded([17]),
    ],
    ids=["posted", "in store", "given back", "yielded"],
)
def test_what_comes_with_an_old_id_is_read(alone: Group, news: Callable[[Group], None], loading: bool) -> None:
    """Also where it comes while a load is on its way, which may not have seen it."""
    alone.load(40_000)
    alone.queue._yielding[17] = alone.group
    if loading:
        alone.ask()
        news(alone)
        alone.came(41_000)
    else:
        news(alone)
    alone.group.coming = 0
    alone.ask()
    assert alone.instance.above[-1] == 16


def test_after_an_answer_is_lost_all_is_read(alone: Group) -> None:
    alone.load(40_000)
    alone.ask()
    assert alone.instance.answer is not None
    alone.instance.answer(StoreUnavailable("away"))
    alone.queue.reading.load_ended()
    alone.ask()
    assert alone.instance.above == [0, 40_000, 0]


def test_among_others_a_little_more_is_read_and_all_by_and_by(among_others: Group) -> None:
    """What others commit late is not told by its id."""
    among_others.load(40_000)
    among_others.load(41_000)
    among_others.load(42_000)
    ((seconds, look),) = among_others.instance.timers
    assert 0 < seconds <= 1
    look()
    among_others.load()
    assert among_others.instance.above == [0, 40_000 - SLACK, 41_000 - SLACK, 0]
    assert among_others.instance.timers[1:] == [], "a look at all is followed by no other"


def test_a_group_that_was_given_up_is_looked_for_by_and_by(among_others: Group) -> None:
    among_others.load(40_000)
    among_others.load()
    among_others.queue.groups.clear()
    among_others.queue.consumers[cast(Any, object())] = None
    ((_, look),) = among_others.instance.timers
    look()
    assert list(among_others.queue.claims.news) == [KEY]
