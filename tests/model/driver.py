"""What both levels share: a history goes step by step, beside the model that says what must come of it."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import psycopg

from tests.fix_service import PATIENCE
from tests.model import truth
from tests.model.model import Model
from tests.model.possible import allows, waits
from tests.model.state import QUEUES, Label, Receiver, in_txn
from tests.model.steps import AttachReceiver, Close, ComeDue, Decide, Detach, Open, Post, Retire, Step, Take
from tests.model.verdicts import crashed, differences

_histories = itertools.count(1)
_EVERYTHING = 1000


class Driver(ABC):
    """One history after the other on one store; what does not hold is an AssertionError at once."""

    def __init__(self, url: str) -> None:
        self.truth: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
        self.histories = self.steps = 0
        self._failed = False
        self._forget()

    def close(self) -> None:
        self.truth.close()

    def _forget(self) -> None:
        self.history = f"history-{next(_histories)}"
        self.model = Model()
        self.txn_ids: dict[int, bytes] = {}
        #: the messages of posts
        self.posts: dict[Label, int] = {}
        #: the service's answers that were not compared yet
        self.heard: dict[Label, str] = {}
        #: conditions of links that the service detached
        self.detached: dict[int, str] = {}

    # -- a history

    def run(self, steps: Sequence[Step]) -> None:
        """A whole history, from an empty store to an empty one."""
        self.begin()
        for step in steps:
            self.do(step)
        self.end()

    def begin(self) -> None:
        if self._failed:
            self.mend()
        self._failed = False
        self._forget()
        self.histories += 1

    def do(self, step: Step) -> None:
        """One step, in the service and in the model."""
        if allows(self.model, step):
            self.steps += 1
            self._guarded(step)

    def end(self) -> None:
        """Check the store; then consume all that is left, in its order, and accept it."""
        if self._failed:
            return
        for connection in list(self.model.connections):
            self.do(Close(connection))
        self._guarded(None)
        self.do(ComeDue())
        self.do(Open(0))
        for queue in range(QUEUES):
            link = _EVERYTHING + queue
            self.do(AttachReceiver(link, 0, queue))
            self.do(Take(link, _EVERYTHING))
            self.do(Retire(link, 0, _EVERYTHING))
            self.do(Detach(link))
        self.do(Close(0))
        self._guarded(None)

    def _guarded(self, step: Step | None) -> None:
        try:
            if step is None:
                self._check()
            else:
                self._both(step)
        except BaseException:
            self._failed = True
            raise

    def _both(self, step: Step) -> None:
        if waits(self.model, step):
            self.settle()
        places = self._places(step)
        due = [[each.number for each in self.model.waiting(queue)] for queue in range(QUEUES)]
        label = ("answer", self.model.apply(step))
        if isinstance(step, Post):
            self.posts[label] = step.message
        if isinstance(step, ComeDue):
            self.come_due(due)
        else:
            self.perform(step, label, places)
        if self.model.decided_elsewhere:
            self.wait()
            self.hear_notices()

    def _places(self, step: Step) -> list[int]:
        """Of the deliveries that a retirement speaks of."""
        if not isinstance(step, Retire):
            return []
        receiver = self.model.links[step.receiver]
        assert isinstance(receiver, Receiver)
        return [receiver.deliveries.index(each) for each in self.model.named(step)]

    def number_of(self, receiver: int, place: int) -> int:
        """The model's number of a delivery."""
        link = self.model.links[receiver]
        assert isinstance(link, Receiver)
        return link.deliveries[place].number

    # -- what a level does

    @abstractmethod
    def perform(self, step: Step, label: Label, places: list[int]) -> None:
        """Do it, without waiting for its answer; ``places`` of the deliveries that a retirement names."""

    @abstractmethod
    def wait(self) -> None:
        """Until every answer has come, and everything that was decided is durable."""

    def hears(self, link: int) -> bool:
        """Whether the client would have heard that the service detached it."""
        return True

    @abstractmethod
    def hear_notices(self) -> None:
        """Wait until the service knows of a decision that another connection to the database has made."""

    @abstractmethod
    def mend(self) -> None:
        """After a failure: make the service fit for another history."""

    def decide(self, step: Decide) -> None:
        entered = self.model.txns[step.txn].entered
        truth.decide(self.truth, self.txn_ids[step.txn], commit=step.commit, checkable=entered)

    def come_due(self, due: list[list[int]]) -> None:
        """The time of these messages comes, by queue; until they have their places."""
        if not any(due):
            return
        for queue, numbers in enumerate(due):
            truth.come_due(self.truth, self.history, queue, numbers)
        deadline = time.monotonic() + PATIENCE
        while truth.on_their_way(self.truth, self.history):
            assert time.monotonic() < deadline, f"{due} do not come"
            self.pause()
        self.hear_promoted()

    @abstractmethod
    def hear_promoted(self) -> None:
        """Wait until the service knows what its schedule has done."""

    # -- what must be so

    def say(self, label: Label, answer: str) -> None:
        assert label not in self.heard, f"{label} is answered twice: {self.heard[label]}, {answer}"
        self.heard[label] = answer

    def settle(self) -> None:
        self.wait()
        heard, due = self.heard, self.model.due
        self.heard = {}
        wrong = [
            f"{label}: {heard.get(label)}, not {sorted(map(str, each.allowed))}"
            for label, each in due.items()
            if heard.get(label) not in each.allowed
        ]
        wrong += [f"{label}: {heard[label]}, and nothing was asked" for label in heard.keys() - due.keys()]
        wanted = {
            link.number: link.condition
            for link in self.model.links.values()
            if link.condition is not None and (link.number in self.detached or self.hears(link.number))
        }
        if self.detached != wanted:
            wrong.append(f"links detached: {self.detached}, not {wanted}")
        assert not wrong, wrong
        self.model.settled()

    def came(self, found: list[tuple[int, int, bool]]) -> None:
        """Of a Take: message, delivery-count, and whether it was marked."""
        taken = self.model.taken
        if self.model.any_order:
            order = {number: place for place, (number, _, _) in enumerate(found)}
            taken.sort(key=lambda each: order.get(each.message.number, -1))
            for receiver in {each.receiver for each in taken}:
                receiver.deliveries[-len(taken) :] = taken
        wanted = [(each.message.number, each.message.stored) for each in taken]
        assert [number for number, _, _ in found] == [number for number, _ in wanted], f"came {found}, not {wanted}"
        for delivery, (number, count, marked) in zip(taken, found, strict=True):
            stored = delivery.message.stored
            assert stored.holds("queue", count, marked), f"message {number} came as {(count, marked)}, not {stored}"
            self.model.seen(delivery, count)

    def checks_came(self, found: list[tuple[bytes, int, int, int, int]]) -> None:
        """Of a Check: txn-id, the check's number, the message shown, and how many halves and retirements there are. The
        store counts each (H9).
        """
        numbers = {txn_id: number for number, txn_id in self.txn_ids.items()}
        came = sorted((numbers[txn_id], *rest) for txn_id, *rest in found)
        assert came == self.model.checked, f"checks of {came}, not {self.model.checked}"
        deadline = time.monotonic() + PATIENCE
        while wrong := truth.counted(self.truth, {txn_id: count for txn_id, count, *_ in found}):
            assert time.monotonic() < deadline, f"checks that the store counts: {wrong}"
            self.pause()

    def _check(self) -> None:
        self.settle()
        stored = truth.stored(self.truth, self.history, self.txn_ids)
        deadline = time.monotonic() + PATIENCE
        while stored.failed:  # their letters are on their way
            assert time.monotonic() < deadline, f"no letter for {stored.failed}"
            self.pause()
            stored = truth.stored(self.truth, self.history, self.txn_ids)
        wrong = differences(
            self.model, stored.ops, stored.queues, stored.dead, stored.halves, stored.held, stored.later
        )
        assert not wrong, wrong

    def pause(self) -> None:
        """A moment for the service."""
        time.sleep(0.005)

    def survey(self) -> None:
        """After a crash: the store is as it may be."""
        stored = truth.stored(self.truth, self.history, self.txn_ids)
        accepted = {label for label, answer in self.heard.items() if answer == in_txn("accepted")}
        heard = {self.posts[label] for label in accepted & self.posts.keys()}
        wrong = crashed(self.model, stored.ops, stored.found, stored.halves, stored.held, heard)
        self.heard.clear()
        assert not wrong, wrong
