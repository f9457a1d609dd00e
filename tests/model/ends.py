"""Links of the model in this process: each does by the rules' own means what ``links/`` does with Proton's."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, cast

from coordinator import outcomes
from coordinator.control import Control
from coordinator.errors import Condition, Refusal
from coordinator.outcomes import Kind
from coordinator.posts import Relay
from coordinator.retirement import Departure
from store.codec.encoding import encode_long, encode_map, encode_symbol
from tests.model import truth
from tests.model.state import WHY_REJECTED, in_txn, rejected
from tests.model.steps import AttachControl, AttachListener, AttachReceiver, AttachSender, Outcome, Post, Retire

if TYPE_CHECKING:
    from coordinator.address.nodes import Address
    from coordinator.check_back import Due
    from coordinator.group.entries import Entry
    from coordinator.group.queues import Queue
    from coordinator.transaction import Transaction
    from store.permissions import Verb
    from tests.model.in_process import InProcess
    from tests.model.state import Label

MARK = encode_map([encode_symbol(truth.MARK) + encode_long(1)])
HIGHEST = encode_map([encode_symbol("x-opt-delay-level") + encode_long(18)])
GIVE_UP = encode_map([encode_symbol("x-opt-delay-level") + encode_long(-1)])

OUTCOMES: dict[Outcome, outcomes.Outcome] = {
    Outcome.ACCEPTED: outcomes.ACCEPTED,
    Outcome.REJECTED: outcomes.Outcome(Kind.REJECTED, error=WHY_REJECTED),
    Outcome.RELEASED: outcomes.RELEASED,
    Outcome.MARKED: outcomes.Outcome(Kind.MODIFIED, annotations=MARK),
    Outcome.FAILED: outcomes.FAILED,
    Outcome.ELSEWHERE: outcomes.Outcome(Kind.MODIFIED, undeliverable_here=True),
    Outcome.FAILED_ELSEWHERE: outcomes.Outcome(Kind.MODIFIED, delivery_failed=True, undeliverable_here=True),
    Outcome.LATER: outcomes.Outcome(Kind.MODIFIED, annotations=HIGHEST),
    Outcome.FAILED_LATER: outcomes.Outcome(Kind.MODIFIED, delivery_failed=True, annotations=HIGHEST),
    Outcome.GIVEN_UP: outcomes.Outcome(Kind.MODIFIED, annotations=GIVE_UP),
}

_keys = itertools.count(1_000_000)


class Connection:
    """Implements :class:`coordinator.address.directory.Maker`."""

    addresses_made = 0
    user_id: str | None = None

    def may(self, verb: Verb, name: str) -> bool:
        return True


class LinkEnd:
    """What every link has. ``on``: the number of its connection."""

    def __init__(self, driver: InProcess, number: int, on: int, session: int) -> None:
        self.driver = driver
        self.number = number
        self.on = on
        self.session = session
        self.open = True
        self.departure = Departure.LOST

    @property
    def connection(self) -> Connection:
        return self.driver.connections[self.on]

    def lost(self) -> None:
        pass

    def refuse(self, refusal: Refusal) -> None:
        if self.open:
            self.driver.detached[self.number] = refusal.condition
            self.open, self.departure = False, Departure.ENDED
            self.lost()


class ControlEnd(LinkEnd):
    """Implements :class:`coordinator.control.Answers`."""

    def __init__(self, driver: InProcess, step: AttachControl, timeout_seconds: float) -> None:
        super().__init__(driver, step.link, step.connection, step.session)
        self.hasty = step.hasty
        self.group = None if step.group is None else truth.producer_group(driver.history, step.group)
        self.control = Control(
            driver.service.registry,
            driver.service.decisions,
            self.connection,
            timeout_seconds,
            self,
            self.group,
        )

    def accept(self, answer: object) -> None:
        self.driver.say(cast("Label", answer), "accepted")

    def reject(self, answer: object, refusal: Refusal) -> None:
        self.driver.say(cast("Label", answer), rejected(refusal.condition))

    number = 0

    user_id = None
    may_query = may_manage = False

    def may_decide(self, group: str, *, own: bool) -> bool:
        return group == self.group

    def lost(self) -> None:
        self.control.lost(ended=self.departure is Departure.ENDED)


class SenderEnd(LinkEnd):
    """Implements :class:`coordinator.posts.PostLink`."""

    peer = "a client"
    continues = False
    ending: Refusal | None = None
    producer: str | None = None

    def __init__(self, driver: InProcess, step: AttachSender, address: Address | None) -> None:
        super().__init__(driver, step.link, step.connection, step.session)
        self.second = step.second
        self.address = address
        self.relay = Relay(driver.service.posts, self) if address is None else None

    def post(self, step: Post, label: Label) -> None:
        txn_id = None if step.txn is None else self.driver.txn_id(step.txn)
        message = truth.octets(self.driver.history, step)
        self.driver.service.posts.take(self, label, message, step.settled, txn_id)

    def tag(self, delivery: Label, settled: bool) -> bytes:
        raise AssertionError("no model has producers")

    def waits(self, delivery: Label, octets: int) -> None:
        pass

    def stored(self, delivery: Label, octets: int) -> None:
        if self.open:
            self.driver.say(delivery, "accepted")

    def refuse_settled(self, delivery: Label, refusal: Refusal) -> None:
        self.refuse(refusal)

    def not_stored(self, delivery: Label, octets: int, refusal: Refusal) -> None:
        raise AssertionError(refusal)

    def stored_in(self, delivery: Label, octets: int, txn: Transaction) -> None:
        if self.open:
            self.accepted_in(delivery, txn)

    def not_stored_in(self, delivery: Label, octets: int, txn: Transaction, refusal: Refusal) -> None:
        if self.open:
            self.rejected_in(delivery, txn, refusal)

    def left(self, delivery: Label) -> None:
        if self.open:
            self.driver.let_go.add(delivery[1])

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
        pass

    def caught_up(self) -> None:
        pass

    def lost(self) -> None:
        if self.relay is not None:
            self.relay.link_lost()


class ReceiverEnd(LinkEnd):
    """Implements :class:`coordinator.group.entries.Consumer`."""

    #: its group goes with it
    goes = False

    def __init__(self, driver: InProcess, step: AttachReceiver | AttachListener, queue: Queue) -> None:
        super().__init__(driver, step.link, step.connection, step.session)
        self.queue = queue
        self.key = next(_keys)
        self.default_outcome: outcomes.Outcome | None = None
        self.has_decided = self.transactional = False
        self.draining = self.waits = self.shut = False
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
        marked = truth.marked(entry.message, entry.annotations)
        self.came.append((truth.number_of(entry.message), entry.attempts, marked))
        entry.link = self
        entry.delivery = place
        self.unsettled[place] = entry
        self.room -= 1
        return True

    def redirect(self, place: str) -> None:
        raise AssertionError("no instance of the model has a place")

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

    def enlisted(self, entry: Entry, txn_id: bytes, outcome: outcomes.Outcome) -> None:
        assert cast("int", entry.delivery) not in self.settled

    def left(self, entry: Entry) -> None:
        if self.open:
            place = cast("int", entry.delivery)
            assert self.unsettled.pop(place) is entry
            assert entry.outcome is not None
            if place not in self.settled:
                said = in_txn(entry.outcome.kind.value)
                self.driver.say(("settled", self.driver.number_of(self.number, place)), said)

    def unretired(self, entry: Entry, description: str) -> None:
        if self.open:
            assert self.unsettled.pop(cast("int", entry.delivery)) is entry
            self.refuse(Refusal(Condition.INTERNAL_ERROR, description))

    def lost(self) -> None:
        self.queue.remove(self)
        unsettled, self.unsettled = self.unsettled, {}
        for entry in unsettled.values():
            entry.link = None
            entry.delivery = None
        self.driver.service.retirement.link_ended(self, unsettled.values(), dropped=self.goes)


class ListenerEnd(ReceiverEnd):
    """Of a broadcast: whatever it says of a message, it is done with it."""

    goes = True

    def __init__(self, driver: InProcess, step: AttachListener, address: Address, queue: Queue) -> None:
        super().__init__(driver, step, queue)
        self.address = address
        self.default_outcome = outcomes.ACCEPTED

    def settle_all(self) -> None:
        for entry in list(self.unsettled.values()):
            self.driver.service.retirement.settle(self, entry, outcomes.ACCEPTED, True)

    def retired(self, entry: Entry, outcome: outcomes.Outcome) -> None:
        if self.open:
            assert self.unsettled.pop(cast("int", entry.delivery)) is entry

    def lost(self) -> None:
        super().lost()
        self.driver.service.subscriptions.remove(self.address, self.queue)


class CheckerEnd:
    """Implements :class:`coordinator.check_back.Checker`: a checker on a connection of its own."""

    number = -1

    def __init__(self, group: str) -> None:
        self.group = group
        self.coming = 0
        self.room = 50
        self.most_octets = 0
        self.has_looked = False
        #: checks, and the numbers of the messages that they showed
        self.came: list[tuple[Due, int]] = []

    def send(self, due: Due, octets: bytes) -> None:
        self.room -= 1
        self.came.append((due, truth.number_of(octets)))

    def none_due(self) -> None:
        self.has_looked = True
