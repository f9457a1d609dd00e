"""What both levels share: a history goes step by step, beside the model that says what must come of it."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import psycopg

from coordinator.commands.dead_letters import replay
from coordinator.commands.seek import seek
from store.database import engine
from store.undecided import outcome_of
from tests.fix_service import PATIENCE
from tests.model import counts, truth
from tests.model.model import Model
from tests.model.possible import allows, waits
from tests.model.robbing import rob
from tests.model.state import FIFO, POLICIES, QUEUES, Label, Receiver, in_txn
from tests.model.steps import (
    AttachControl,
    AttachReceiver,
    Close,
    ComeDue,
    Decide,
    Detach,
    Discharge,
    Drop,
    Exhaust,
    Open,
    Post,
    Replay,
    Retire,
    Rob,
    Seek,
    Step,
    Take,
)
from tests.model.verdicts import crashed, differences

_histories = itertools.count(1)
_EVERYTHING = 1000
_ASKING = 999


class Driver(ABC):
    """One history after the other on one store; what does not hold is an AssertionError at once."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.truth: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
        self._engine = engine(url, application_name="test")
        self.histories = self.steps = 0
        self._failed = False
        self._forget()

    def close(self) -> None:
        self.truth.close()
        self._engine.dispose()

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
        #: the ids that each message has had in the store, by its address and number
        self.halves: dict[tuple[int, int], set[int]] = {}

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
        truth.make_groups(self.truth, self.history)
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
        self._ask_about_all()
        for queue in range(QUEUES):
            link = _EVERYTHING + queue
            self.do(AttachReceiver(link, 0, queue))
            self.do(Take(link, _EVERYTHING))
            self.do(Retire(link, 0, _EVERYTHING))
            self.do(Detach(link))
        self.do(Close(0))
        self._guarded(None)

    def _ask_about_all(self) -> None:
        """The client asks what became of each transaction, either way (H15)."""
        self.do(AttachControl(_ASKING, 0))
        for number, txn in list(self.model.txns.items()):
            if txn.op is not None:
                self.do(Discharge(_ASKING, number))
                self.do(Discharge(_ASKING, number, fail=True))

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
        due = [{each.number: each.stored.wait for each in self.model.waiting(queue)} for queue in range(QUEUES)]
        exhausted = [self.txn_ids[txn.number] for txn in self.model.txns.values() if txn.exhausted]
        if isinstance(step, Replay | Seek):
            self._before(step)
        listened = len(self.model.listeners())
        label = ("answer", self.model.apply(step))
        if isinstance(step, Post):
            self.posts[label] = step.message
        if isinstance(step, ComeDue):
            self.come_due(due)
        elif isinstance(step, Exhaust):
            truth.exhaust(self.truth, self.history, exhausted)
            self.until(lambda: not truth.undecided(self.truth, exhausted), "what no checker has answered")
        elif not self._from_outside(step):
            self.perform(step, label, places)
        there = len(self.model.listeners())
        if there != listened:  # what a post costs goes by how many there are
            self.until(lambda: counts.listening(self.truth, self.history) == there, "the group of a listener")
        if self.model.decided_elsewhere or there != listened:
            self.wait()
            self.hear_notices()

    def _from_outside(self, step: Step) -> bool:
        """Whether no client does it, but an operator or another instance."""
        match step:
            case Replay():
                self._replay(step)
            case Seek():
                self._seek(step)
            case Drop():
                self._drop(step)
            case Rob():
                rob(self, step)
            case _:
                return False
        return True

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

    def come_due(self, due: list[dict[int, int]]) -> None:
        """The time of these messages comes, by queue, with the hours that each waits; until they have their places."""
        if not any(due):
            return
        for queue, each in enumerate(due):
            truth.come_due(self.truth, self.history, queue, each)
        self._promoted()

    def _promoted(self) -> None:
        self.until(lambda: not truth.on_their_way(self.truth, self.history), "what is due")
        self.hear_promoted()

    def until(self, done: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, f"{what} waits for ever"
            self.pause()

    # -- what an operator does

    @abstractmethod
    def operate(self, command: Callable[[], None]) -> None:
        """Run it, beside the service."""

    def _before(self, step: Replay | Seek) -> None:
        """Its letters are written; the places of its messages are known."""
        self.until(lambda: not self._stored().failed, "a dead letter")
        self._note_halves()
        address = POLICIES[step.queue].address
        self.model.places = {
            each.number: sorted(self.halves[address, each.number])[each.replays]
            for each in self.model.queues[step.queue]
        }

    def _note_halves(self) -> None:
        for queue, policy in enumerate(POLICIES):
            for number, ids in truth.halves_of(self.truth, self.history, queue).items():
                self.halves.setdefault((policy.address, number), set()).update(ids)

    def _drop(self, step: Drop) -> None:
        """What may go is gone. That nothing else is, later steps show, and the end of the history: it comes whole."""
        self.until(lambda: not self._stored().failed, "a dead letter")
        self._note_halves()
        before = [truth.halves_of(self.truth, self.history, queue) for queue in range(QUEUES)]
        truth.drop_old(self.url, self.history, kept=step.kept)
        after = [truth.halves_of(self.truth, self.history, queue) for queue in range(QUEUES)]
        if step.kept:
            assert after == before, f"of {before} are kept {after}"
        messages = self.model.messages.values()
        known = {(POLICIES[each.queue].address, each.number) for each in messages}
        wanted = {(POLICIES[each.queue].address, each.number) for each in messages if not each.dropped}
        wanted |= self.model.unheard
        there = {(policy.address, number) for policy, found in zip(POLICIES, after, strict=True) for number in found}
        assert there & known == wanted, f"kept, by address: {there & known}, not {wanted}"

    def _replay(self, step: Replay) -> None:
        box = truth.box(self.history, step.queue)
        if [each for each in self.model.queues[step.queue] if each.letter is not None]:
            self.operate(lambda: replay(box, every=True, database_url=self.url))
            self._promoted()
        self._take_places(step.queue)

    def _seek(self, step: Seek) -> None:
        name, place = truth.source(self.history, step.queue), str(self.model.places[step.message])
        back, forth = (place, None) if step.back else (None, place)
        self.operate(lambda: seek(name, back_to=back, forth_to=forth, database_url=self.url))
        self._promoted()
        self._take_places(step.queue)

    def _take_places(self, queue: int) -> None:
        """In which order messages came again is what the store says: what was posted earlier goes first."""
        order = [number for number, _ in self._stored().queues[queue]]
        messages = self.model.queues[queue]
        here = {each.number: each for each in messages if each.stored.place == "queue"}
        assert sorted(order) == sorted(here), f"queue {queue}: {order}, not {sorted(here)}"
        self.model.queues[queue] = [each for each in messages if each.number not in here] + [here[n] for n in order]

    def _stored(self) -> truth.Stored:
        return truth.stored(self.truth, self.history, self.txn_ids)

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

    def came(self, number: int, found: list[tuple[int, int, bool]]) -> None:
        """Of a Take at this receiver: message, delivery-count, and whether it was marked."""
        receiver = self.model.links[number]
        assert isinstance(receiver, Receiver)
        if receiver.queue == FIFO:
            self.model.chosen(receiver, [each for each, _, _ in found])
        taken = self.model.taken
        if self.model.any_order:
            order = {number: place for place, (number, _, _) in enumerate(found)}
            taken.sort(key=lambda each: order.get(each.message.number, -1))
            if taken:
                receiver.deliveries[-len(taken) :] = taken
        wanted = [(each.message.number, each.message.stored) for each in taken]
        assert [number for number, _, _ in found] == [number for number, _ in wanted], f"came {found}, not {wanted}"
        for delivery, (number, count, marked) in zip(taken, found, strict=True):
            stored = delivery.message.stored
            assert stored.comes_as(count, marked), f"{number}: {count, marked}, not {stored}"
            self.model.seen(delivery, count)

    def listened(self, number: int, found: list[int]) -> None:
        """Of a Hear at this listener: the messages, in their order."""
        assert found == self.model.heard, f"the listener {number} has heard {found}, not {self.model.heard}"

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
        self.until(lambda: not self._stored().failed, "a dead letter")
        stored = self._stored()
        wrong = differences(self.model, stored)
        assert not wrong, wrong
        dead = Counter(queue for queue, _ in stored.dead)
        with self._engine.connect() as connection:
            counts.compare(self.model, self.truth, connection, self.history, dead)
        self._compare_outcomes({self.txn_ids[number]: op for number, op in stored.ops.items()})

    def _compare_outcomes(self, ops: dict[bytes, str]) -> None:
        """The view and the command line say of all transactions what the store holds (H15)."""
        undecided = truth.undecided(self.truth, list(self.txn_ids.values()))
        wanted = {**dict.fromkeys(undecided, "undecided"), **ops}
        told = truth.outcomes(self.truth, list(self.txn_ids.values()))
        assert told == wanted, f"the view says {told}, not {wanted}"
        with self._engine.connect() as connection:
            outcomes = {each: outcome_of(connection, UUID(bytes=each)) for each in self.txn_ids.values()}
        said = {txn_id: found.outcome for txn_id, found in outcomes.items() if found is not None}
        assert said == wanted, f"the command line says {said}, not {wanted}"

    def pause(self) -> None:
        """A moment for the service."""
        time.sleep(0.005)

    def survey(self) -> None:
        """After a crash: the store is as it may be."""
        stored = self._stored()
        accepted = {label for label, answer in self.heard.items() if answer == in_txn("accepted")}
        heard = {self.posts[label] for label in accepted & self.posts.keys()}
        wrong = crashed(self.model, stored.ops, stored.found, stored.halves, stored.held, heard)
        self.heard.clear()
        assert not wrong, wrong
