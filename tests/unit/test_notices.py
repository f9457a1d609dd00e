"""What an instance tells the others of entries in the store, and what these make of it (rule D5)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.address.enqueue import Enqueue
from coordinator.address.nodes import Address
from coordinator.group.fifo import FifoQueue
from coordinator.group.lanes import GroupedEntry, MessageGroup
from coordinator.group.queues import Queue
from coordinator.group.serving import Queues
from coordinator.group.units import Share
from store.commit.batch import Batch
from store.commit.parameters import EVERY_GROUP, MOST_KEYS_WOKEN, MOST_WOKEN, notice
from store.commit.terms import PLAIN
from tests.fix_queue import Consumer, queue_of

pytestmark = pytest.mark.rule("D5")

#: the most octets that PostgreSQL takes in a notice
MOST_OCTETS = 7999
READ = 1 << 60


def _told(lowest: int, *, kind: type[Queue] = Queue) -> Queue:
    """A queue, all of whose windows were read far, after a notice with this id."""
    queue = queue_of([Consumer(1, 0)], peers=1, kind=kind)
    for window in queue.windows:
        window.low.marks[:] = [READ] * len(window.low.marks)
    queues = Queues(queue.instance, lambda: None, lambda _: None)
    queues.by_group.add(queue)
    batch = Batch()
    queue.wake(batch, [lowest + 5, lowest])
    queue.wake(batch, [lowest + 9])
    queues.notified(notice(batch.wake, batch.wake_keys).decode())
    return queue


def test_what_others_give_back_is_looked_for_from_its_id_on() -> None:
    queue = _told(17)
    assert all(window.more and set(window.low.marks) == {16} for window in queue.windows)
    assert queue.normal.bound == (-4, 16)


def test_what_is_new_is_no_reason_to_look_further_back() -> None:
    queue = _told(READ + 1)
    assert all(window.more and set(window.low.marks) == {READ} for window in queue.windows)
    assert queue.normal.bound is None


@pytest.mark.rule("H17")
def test_an_old_one_is_looked_for_again_that_a_load_may_pass_without_seeing_it() -> None:
    """It came below what the load brings, after the load had looked; what is new does so all the time."""
    queue: Any = queue_of([Consumer(1, 0)], peers=1)
    queue.instance.ids = SimpleNamespace(last=READ)
    assert not queue.has_passed(17)
    queue.normal.loading = True
    assert queue.has_passed(17)
    assert not queue.has_passed(READ - 1)


def test_what_a_search_has_passed_is_looked_for_again() -> None:
    queue = queue_of([], peers=1)
    search: Any = SimpleNamespace(has_passed=lambda entry_id: entry_id <= READ)
    queue.searches.append(search)
    assert queue.has_passed(READ)
    assert not queue.has_passed(READ + 1)


def test_message_groups_are_read_from_its_id_on() -> None:
    queue = queue_of([], peers=1, kind=FifoQueue)
    assert queue.has_passed(READ)


@pytest.mark.rule("H17", "P18")
@pytest.mark.parametrize(("sign", "waits"), [("<", True), (">", False)], ids=["before what was read", "anything else"])
def test_a_message_group_is_read_again_before_it_goes_on_only_where_older_ones_came_back(
    sign: str, waits: bool
) -> None:
    queue = queue_of([], peers=1, kind=FifoQueue)
    assert isinstance(queue, FifoQueue)
    group = queue.groups[-5] = MessageGroup(-5, queue.free)
    entry = GroupedEntry(queue, 40, 40, b"m", 0, 0, b"")
    entry.group, entry.out, entry.coming = group, False, False
    group.more = False
    queue.keep(entry)
    queue.place(group)
    assert group.ticket
    queues = Queues(queue.instance, lambda: None, lambda _: None)
    queues.by_group.add(queue)
    queues.notified(f"{queue.group_id}{sign}11")
    assert (group.key in queue.free.hungry, not group.ticket) == (waits, waits)
    assert (group.more, group.low) == (True, 0)


def test_a_group_that_is_shared_is_looked_through_from_its_beginning() -> None:
    """The others found it held, and read nothing of it."""
    queue: Any = SimpleNamespace(group_id=7, held={}, home=None)
    batch = Batch()
    Share(queue).write(batch)
    assert notice(batch.wake, set()) == b"7>0"


@pytest.mark.rule("D1")
@pytest.mark.parametrize(
    ("topic", "fans", "told"),
    [(False, False, b"1>5"), (False, True, b"-7>5"), (True, True, b"-7>5")],
    ids=["a queue", "a queue with a listener", "a topic"],
)
@pytest.mark.parametrize("made_by", ["this instance", "the store"])
def test_a_post_is_told_to_all_that_have_an_entry_of_it(topic: bool, fans: bool, told: bytes, made_by: str) -> None:
    instance: Any = SimpleNamespace(peers=1, instance_id=3)
    schedule: Any = SimpleNamespace()
    queue = queue_of([], peers=1)
    address = Address(7, "q", topic=topic, dynamic=False, policies=queue.policies, own_policies={})
    address.queue = None if topic else queue
    address.fans = fans
    enqueue, batch = Enqueue(instance, schedule), Batch()
    if made_by == "the store":
        enqueue.wake(batch, address, 5, PLAIN)
    else:
        assert enqueue.write_entry(batch, address, 5, b"x", PLAIN) is None
    assert notice(batch.wake, batch.wake_keys) == told


def test_what_does_not_fit_into_a_notice_is_told_as_all() -> None:
    widest = (1 << 31) - 1
    assert notice({EVERY_GROUP: 5}, set()) == b""
    assert notice(dict.fromkeys(range(1, MOST_WOKEN + 2), 5), set()) == b""
    groups = {widest - number: (1 << 63) - 1 for number in range(MOST_WOKEN)}
    keys = {(1, -(1 << 63) + number) for number in range(MOST_KEYS_WOKEN)}
    assert 0 < len(notice(groups, set())) <= MOST_OCTETS
    assert notice(groups, keys) == b""
    assert notice({2: 5}, {*keys, (1, -1)}) == b"1,2>5"
