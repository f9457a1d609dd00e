"""Level one: a history on the rules and a real store, in this process. Links are the least that the rules ask for.

They do by the rules' own means what ``links/`` does with Proton's: there is no wire, and the loop's clock can be moved.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop
from typing import TypeVar, cast

from coordinator import outcomes
from coordinator.address.addresses import AddressPolicy
from coordinator.address.directory import Address
from coordinator.codec.encoding import encode_long, encode_map, encode_symbol
from coordinator.control import Control
from coordinator.errors import Refusal
from coordinator.group.entries import Entry
from coordinator.group.queues import Queue
from coordinator.outcomes import Kind
from coordinator.registry import SWEEP_SECONDS
from coordinator.service import Service
from coordinator.settings import AddressPattern, AddressSettings, LimitSettings, Settings, TransactionSettings
from coordinator.transactions import Transaction
from store import recovery
from store.database import connected
from tests.fix_loop import EpollLoop
from tests.model import truth
from tests.model.driver import Driver
from tests.model.state import MAX_ATTEMPTS, MOST_POSTS, WINDOW, Label, in_txn, rejected
from tests.model.steps import (
    NEVER_DECLARED,
    AttachControl,
    AttachReceiver,
    AttachSender,
    Close,
    Crash,
    Decide,
    Declare,
    Detach,
    Discharge,
    End,
    Open,
    Outcome,
    Overdue,
    Post,
    Restart,
    Retire,
    Settle,
    Step,
    Take,
)

SETTINGS = Settings(
    # a transaction is in the store's list of undecided ones by chance, else
    transaction=TransactionSettings(max_messages=MOST_POSTS, register_after_seconds=3600),
    # small, so that messages go to the store and come back
    limits=LimitSettings(window_messages=WINDOW),
    addresses=AddressSettings(patterns=(AddressPattern(match="*", max_attempts=MAX_ATTEMPTS),)),
)

MARK = encode_map([encode_symbol("x-opt-mark") + encode_long(1)])

OUTCOMES: dict[Outcome, outcomes.Outcome] = {
    Outcome.ACCEPTED: outcomes.ACCEPTED,
    Outcome.REJECTED: outcomes.Outcome(Kind.REJECTED, error="by the consumer"),
    Outcome.RELEASED: outcomes.RELEASED,
    Outcome.MARKED: outcomes.Outcome(Kind.MODIFIED, annotations=MARK),
    Outcome.FAILED: outcomes.FAILED,
    Outcome.ELSEWHERE: outcomes.Outcome(Kind.MODIFIED, undeliverable_here=True),
    Outcome.FAILED_ELSEWHERE: outcomes.Outcome(Kind.MODIFIED, delivery_failed=True, undeliverable_here=True),
}

_keys = itertools.count(1_000_000)


class Loop(EpollLoop):
    """Its deadlines can be made due."""

    def hurry(self, seconds: float) -> None:
        self._deadlines = [(due - seconds, number, call) for due, number, call in self._deadlines]

    def stop(self) -> None:
        """What has died does nothing more."""
        while self._deadlines:
            heappop(self._deadlines)


class LinkEnd:
    """What every link has. ``on``: the number of its connection."""

    def __init__(self, driver: InProcess, number: int, on: int, session: int) -> None:
        self.driver = driver
        self.number = number
        self.on = on
        self.session = session
        self.open = True

    @property
    def connection(self) -> object:
        return self.driver.connections[self.on]

    def lost(self) -> None:
        pass

    def refuse(self, refusal: Refusal) -> None:
        if self.open:
            self.driver.detached[self.number] = refusal.condition
            self.open = False
            self.lost()


L = TypeVar("L", bound=LinkEnd)


class ControlEnd(LinkEnd):
    """Implements :class:`coordinator.control.Answers`."""

    def __init__(self, driver: InProcess, step: AttachControl) -> None:
        super().__init__(driver, step.link, step.connection, step.session)
        self.hasty = step.hasty
        self.control = Control(
            driver.service.registry,
            driver.service.decisions,
            self.connection,
            SETTINGS.transaction.timeout_seconds,
            self,
        )

    def accept(self, answer: object) -> None:
        self.driver.say(cast("Label", answer), "accepted")

    def reject(self, answer: object, refusal: Refusal) -> None:
        self.driver.say(cast("Label", answer), rejected(refusal.condition))

    def lost(self) -> None:
        self.control.lost()


class SenderEnd(LinkEnd):
    """Implements :class:`coordinator.posts.PostLink`."""

    peer = "a client"
    relay = None
    continues = False
    ending: Refusal | None = None

    def __init__(self, driver: InProcess, step: AttachSender, address: Address) -> None:
        super().__init__(driver, step.link, step.connection, step.session)
        self.second = step.second
        self.address = address

    def post(self, step: Post, label: Label) -> None:
        txn_id = None if step.txn is None else self.driver.txn_id(step.txn)
        message = truth.octets(step.message, malformed=step.malformed)
        self.driver.service.posts.take(self, label, message, step.settled, txn_id)

    def waits(self, delivery: Label, octets: int) -> None:
        pass

    def stored(self, delivery: Label, octets: int) -> None:
        if self.open:
            self.driver.say(delivery, "accepted")

    def not_stored(self, delivery: Label | None, octets: int, refusal: Refusal) -> None:
        raise AssertionError(refusal)

    def accepted_in(self, delivery: Label, txn: Transaction) -> None:
        self.driver.say(delivery, in_txn("accepted"))

    def rejected_in(self, delivery: Label, txn: Transaction, refusal: Refusal) -> None:
        self.driver.say(delivery, in_txn(rejected(refusal.condition)))

    def rejected(self, delivery: Label, refusal: Refusal) -> None:
        self.driver.say(delivery, rejected(refusal.condition))

    def decided(self, delivery: Label, committed: bool) -> None:
        if self.open:
            self.driver.say(("decided", delivery[1]), "accepted" if committed else "released")

    def parked(self, octets: int) -> None:
        raise AssertionError

    def caught_up(self) -> None:
        raise AssertionError


class ReceiverEnd(LinkEnd):
    """Implements :class:`coordinator.group.entries.Consumer`."""

    def __init__(self, driver: InProcess, step: AttachReceiver, queue: Queue) -> None:
        super().__init__(driver, step.link, step.connection, step.session)
        self.queue = queue
        self.key = next(_keys)
        self.default_outcome: outcomes.Outcome | None = None
        self.draining = False
        self.room = 0
        #: all that ever came: the message and its attempts then
        self.came: list[tuple[int, int, bool]] = []
        self.unsettled: dict[int, Entry] = {}
        #: by this side, which is told no more of them
        self.settled: set[int] = set()
        queue.add(self)

    def take(self, most: int) -> None:
        self.room = most
        self.draining = True
        self.queue.changed(self)

    def send(self, entry: Entry) -> bool:
        assert entry.message is not None
        place = len(self.came)
        self.came.append((truth.number_of(entry.message), entry.attempts, bool(entry.annotations)))
        entry.link = self
        entry.delivery = place
        self.unsettled[place] = entry
        self.room -= 1
        return True

    def drained(self) -> None:
        self.room = 0
        self.draining = False

    def retire(self, place: int, step: Retire) -> None:
        entry = self.unsettled.get(place)
        if entry is None or not self.open:
            return
        if step.settled:
            self.settled.add(place)
        service = self.driver.service
        outcome = None if step.outcome is Outcome.NONE else OUTCOMES[step.outcome]
        if step.txn is not None:
            txn_id = self.driver.txn_id(step.txn)
            service.retirement.retire(self, self.connection, entry, txn_id, outcome, step.settled)
        else:
            service.retirement.settle(self, entry, outcome, step.settled)

    def retired(self, entry: Entry, outcome: outcomes.Outcome) -> None:
        if self.open:
            place = cast("int", entry.delivery)
            assert self.unsettled.pop(place) is entry
            if place not in self.settled:
                self.driver.say(("settled", self.driver.number_of(self.number, place)), outcome.kind.value)
            if self.room:
                self.queue.changed(self)

    def unretired(self, entry: Entry, description: str) -> None:
        raise AssertionError(description)

    def lost(self) -> None:
        self.queue.remove(self)
        unsettled, self.unsettled = self.unsettled, {}
        for entry in unsettled.values():
            entry.link = None
            entry.delivery = None
            self.driver.service.retirement.link_lost(entry, dropped=False)


class InProcess(Driver):
    """``company``: another instance lives, which has no consumers: entries are leased one by one."""

    def __init__(self, url: str, *, company: bool) -> None:
        super().__init__(url)
        self.url = url
        if company:
            self.truth.execute(
                b"insert into coordinator.instance (slot, host, pid, process_start, version) "
                b"values (1023, 'elsewhere', 1, 1, '1')"
            )
        self._birth()

    def _forget(self) -> None:
        super()._forget()
        self.connections: dict[int, object] = {}
        self.links: dict[int, LinkEnd] = {}

    # -- the instance

    def _birth(self) -> None:
        with connected(self.url) as connection:
            registration = recovery.register(connection, "1")
            recovery.recover(connection)
        self.loop = Loop()
        self.service = Service(
            self.loop,
            SETTINGS,
            AddressPolicy(SETTINGS.addresses),
            self.url,
            instance_id=registration.instance_id,
            slot=registration.slot,
            store_id=registration.store_id,
            secret=registration.secret,
            highest_id=registration.highest_id,
            fenced=self._fenced,
        )
        self.loop.end_turn = self.service.end_turn
        self.service.start()
        self.wait()

    def _fenced(self) -> None:
        raise AssertionError("taken for dead")

    def _death(self) -> None:
        self.service.close()
        self.loop.stop()
        self.loop.close()
        for link in self.links.values():
            link.open = False

    def close(self) -> None:
        """The next instance on the store is alone."""
        self._death()
        self.truth.execute(b"update coordinator.instance set ended_at = now() where ended_at is null")
        super().close()

    def _crash(self) -> None:
        instance = self.service.instance.instance_id
        self._death()
        # this process lives, but the instance's does not
        self.truth.execute(
            b"update coordinator.instance set process_start = process_start + 1 where id = %s", [instance]
        )
        self._birth()

    mend = _crash

    def _restart(self) -> None:
        self._lose(self._open())
        self.wait()
        instance = self.service.instance.instance_id
        self._death()
        with connected(self.url) as connection:
            recovery.end(connection, instance)
        self._birth()
        self.heard.clear()
        self.model.settled()

    def wait(self) -> None:
        service = self.service
        self.loop.run_until(
            lambda: (
                service.commit.idle
                and not service.instance.queries.waiting
                and not service.decisions.waiting
                and not service.queues.dirty
            )
        )

    def pause(self) -> None:
        self.loop.turn()

    # -- steps

    def txn_id(self, number: int) -> bytes:
        return bytes(16) if number == NEVER_DECLARED else self.txn_ids[number]

    def perform(self, step: Step, label: Label, places: list[int]) -> None:
        match step:
            case Open():
                self.connections[step.connection] = f"connection {step.connection}"
            case Close():
                self._lose([each for each in self._open() if each.on == step.connection])
            case End():
                there = (step.connection, step.session)
                self._lose([each for each in self._open() if (each.on, each.session) == there])
            case AttachControl():
                self.links[step.link] = ControlEnd(self, step)
            case AttachSender():
                self.links[step.link] = SenderEnd(self, step, self._address(step.queue))
            case AttachReceiver():
                queue = self._address(step.queue).queue
                assert queue is not None
                self.links[step.link] = ReceiverEnd(self, step, queue)
            case Detach():
                self._lose([self.links[step.link]])
            case Declare():
                self._declare(step, label)
            case Post():
                self._link(step.sender, SenderEnd).post(step, label)
            case Take():
                self._take(step)
            case Retire():
                receiver = self._link(step.receiver, ReceiverEnd)
                for place in places:
                    receiver.retire(place, step)
            case Discharge():
                self._link(step.control, ControlEnd).control.discharge(self.txn_id(step.txn), step.fail, label)
            case Overdue():
                self._overdue(self.txn_ids[step.txn])
            case Decide():
                truth.decide(self.truth, self.txn_ids[step.txn])
            case Crash():
                self._crash()
                self.survey()
            case Restart():
                self._restart()
            case Settle():
                pass
        self.service.end_turn()

    def _link(self, number: int, kind: type[L]) -> L:
        link = self.links[number]
        assert isinstance(link, kind)
        return link

    def _open(self) -> list[LinkEnd]:
        return [each for each in self.links.values() if each.open]

    def _lose(self, links: list[LinkEnd]) -> None:
        for link in links:
            link.open = False
        for link in sorted(links, key=lambda link: not isinstance(link, ReceiverEnd)):
            link.lost()

    def _address(self, queue: int) -> Address:
        found: list[Address | Refusal] = []
        self.service.directory.resolve(truth.address(self.history, queue), found.append)
        self.loop.run_until(lambda: found)
        assert isinstance(found[0], Address), found
        return found[0]

    def _declare(self, step: Declare, label: Label) -> None:
        control = self._link(step.control, ControlEnd)
        txn = control.control.declare()
        self.txn_ids[step.txn] = txn.id
        self.say(label, "declared")
        if control.hasty:
            self._overdue(txn.id)

    def _overdue(self, txn_id: bytes) -> None:
        txn = self.service.registry.txns[txn_id]
        txn.begin()
        txn.began -= txn.timeout
        self.loop.hurry(SWEEP_SECONDS)
        self.loop.run_until(lambda: not txn.open)

    def _take(self, step: Take) -> None:
        receiver = self._link(step.receiver, ReceiverEnd)
        before = len(receiver.came)
        receiver.take(step.most)
        self.loop.run_until(lambda: not receiver.room)
        receiver.drained()
        self.came(receiver.came[before:])


@contextmanager
def in_process(url: str, *, company: bool) -> Iterator[InProcess]:
    driver = InProcess(url, company=company)
    try:
        yield driver
    finally:
        driver.close()
