"""Level one: a history on the rules and a real store, in this process. The loop's clock can be moved."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from heapq import heapify, heappop
from typing import TypeVar

import pytest

from coordinator import check_back
from coordinator.address.addresses import AddressPolicy, Group
from coordinator.address.nodes import Address
from coordinator.bounds import Bounds
from coordinator.check_back import Exhaustion
from coordinator.errors import Refusal
from coordinator.group.entries import now_micros
from coordinator.group.queues import Queue
from coordinator.retirement import Departure
from coordinator.service import Service
from coordinator.settings import (
    AddressPattern,
    AddressSettings,
    CheckSettings,
    Settings,
    TransactionSettings,
)
from store import channels, recovery
from store.database import connected
from tests.fix_loop import EpollLoop
from tests.model import truth
from tests.model.driver import Driver
from tests.model.ends import CheckerEnd, Connection, ControlEnd, LinkEnd, ListenerEnd, ReceiverEnd, SenderEnd
from tests.model.state import ADDRESSES, MOST_CHECKS, MOST_POSTS, POLICIES, WINDOW, Label
from tests.model.steps import (
    NEVER_DECLARED,
    AttachControl,
    AttachListener,
    AttachReceiver,
    AttachSender,
    Check,
    Close,
    Crash,
    Decide,
    Declare,
    Detach,
    Discharge,
    End,
    Hear,
    Open,
    Overdue,
    Post,
    Restart,
    Retire,
    Settle,
    Step,
    Take,
)

SETTINGS = Settings(
    transaction=TransactionSettings(max_messages=MOST_POSTS),
    # checks are due at once, and again when the driver says so
    check=CheckSettings(immunity_seconds=0, interval_seconds=86400, most=MOST_CHECKS),
    addresses=AddressSettings(patterns=tuple(map(AddressPattern.model_validate, truth.patterns()))),
)
#: A transaction is in the store's list of undecided ones by chance, else. The window is small, so that messages go to
#: the store and come back.
BOUNDS = Bounds(register_after_seconds=3600, window_messages=WINDOW)

L = TypeVar("L", bound=LinkEnd)
_fences = itertools.count(1)


class Loop(EpollLoop):
    """Its deadlines can be made due."""

    def hurry(self, call: Callable[[], None]) -> None:
        """It is called in the next turn."""
        self._deadlines = [(0.0 if each == call else due, number, each) for due, number, each in self._deadlines]
        heapify(self._deadlines)

    def hurry_all_of(self, kind: type) -> None:
        """Its methods are called in the next turn."""
        for _, _, call in list(self._deadlines):
            if isinstance(getattr(call, "__self__", None), kind):
                self.hurry(call)

    def stop(self) -> None:
        """What has died does nothing more."""
        while self._deadlines:
            heappop(self._deadlines)


class InProcess(Driver):
    """``company``: another instance lives, which has no consumers: entries are leased one by one."""

    def __init__(self, url: str, *, company: bool) -> None:
        super().__init__(url)
        truth.make_guard(self.truth)
        if company:
            self.truth.execute(
                b"insert into coordinator.instance (slot, host, pid, process_start, version) "
                b"values (1023, 'elsewhere', 1, 1, '1')"
            )
        self._birth()

    def _forget(self) -> None:
        super()._forget()
        self.connections: dict[int, Connection] = {}
        self.links: dict[int, LinkEnd] = {}
        self.let_go: set[int] = set()

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
            registration,
            fenced=self._fenced,
            bounds=BOUNDS,
        )
        self.loop.end_turn = self.service.end_turn
        self._listen()
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
        self._lose(self._open(), Departure.ENDED)
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
        self.loop.turn(0)  # what was put off until the next turn
        self.loop.run_until(
            lambda: (
                service.commit.idle
                and not service.instance.queries.waiting
                and not service.decisions.waiting
                and not service.queues.dirty
            )
        )

    def end(self) -> None:
        """Nothing is undecided then, nor with a client: all that was counted meanwhile is counted off again (S4)."""
        super().end()
        left = {} if self._failed else self._counted()
        self._failed = any(left.values())
        assert not self._failed, left

    def _counted(self) -> dict[str, int]:
        service = self.service
        memory, registry, waiting = service.memory, service.registry, service.commit._waiting
        queues = list(service.queues.by_group)
        for queue in queues:
            queue.count()
        return {
            "transactions": len(registry.txns) + len(registry.working) + len(registry._undecided),
            "octets of transactions": memory.transactions + memory.parked + registry.spool_room._used,
            "octets of windows": memory.windows,
            "entries held": sum(len(queue.held) for queue in queues),
            "units that wait": waiting.count + service.commit._waiting_octets,
        }

    def settle(self) -> None:
        super().settle()
        wanted = self.model.let_go
        assert {number for number, sender in wanted.items() if sender.open} <= self.let_go <= wanted.keys()

    def pause(self) -> None:
        self.loop.turn(0.01)

    # -- steps

    def txn_id(self, number: int) -> bytes:
        return bytes(16) if number == NEVER_DECLARED else self.txn_ids[number]

    def perform(self, step: Step, label: Label, places: list[int]) -> None:
        match step:
            case Open():
                self.connections[step.connection] = Connection()
            case Close():
                departure = Departure.LOST if step.abrupt else Departure.LEFT
                self._lose([each for each in self._open() if each.on == step.connection], departure)
            case End():
                there = (step.connection, step.session)
                self._lose([each for each in self._open() if (each.on, each.session) == there], Departure.LEFT)
            case AttachControl():
                self.links[step.link] = ControlEnd(self, step, SETTINGS.transaction.timeout_seconds)
            case AttachSender():
                known = [self._address(each) for each in range(ADDRESSES)]  # the relay has none to look up
                self.links[step.link] = SenderEnd(self, step, None if step.queue is None else known[step.queue])
            case AttachReceiver():
                self.links[step.link] = ReceiverEnd(self, step, self._queue(step.queue))
            case AttachListener():
                address, queue = self._broadcast(step)
                self.links[step.link] = ListenerEnd(self, step, address, queue)
            case Detach():
                self._lose([self.links[step.link]], Departure.LEFT)
            case Declare():
                self._declare(step, label)
            case Post():
                self._link(step.sender, SenderEnd).post(step, label)
            case Take():
                self._take(step)
            case Hear():
                self._hear(step)
            case Retire():
                receiver = self._link(step.receiver, ReceiverEnd)
                for place in places:
                    receiver.retire(place, step)
            case Discharge():
                self._link(step.control, ControlEnd).control.discharge(self.txn_id(step.txn), step.fail, label)
            case Overdue():
                self._overdue(self.txn_ids[step.txn])
            case Decide():
                self.decide(step)
            case Check():
                self._check_group(step)
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

    def _lose(self, links: list[LinkEnd], departure: Departure) -> None:
        for link in links:
            link.open, link.departure = False, departure
        for link in sorted(links, key=lambda link: not isinstance(link, ReceiverEnd)):
            link.lost()

    def _address(self, number: int) -> Address:
        found: list[Address | Refusal] = []
        self.service.directory.resolve(truth.address(self.history, number), found.append)
        self.loop.run_until(lambda: found)
        assert isinstance(found[0], Address), found
        return found[0]

    def _queue(self, number: int) -> Queue:
        address = self._address(POLICIES[number].address)
        if not POLICIES[number].own:
            assert address.queue is not None
            return address.queue
        return self._join(address, Group(name=truth.group(self.history, number), lasting=True))

    def _broadcast(self, step: AttachListener) -> tuple[Address, Queue]:
        address = self._address(step.address)
        return address, self._join(address, Group(name=f"{self.history}-listener-{step.link}", lasting=False))

    def _join(self, address: Address, group: Group) -> Queue:
        found: list[Queue | Refusal] = []
        self.service.subscriptions.join(address, group, found.append)
        self.loop.run_until(lambda: found)
        assert isinstance(found[0], Queue), found
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
        self.loop.hurry(self.service.registry.sweep)
        self.loop.run_until(lambda: not txn.open or (txn.in_store is not None and txn.in_store.overdue))
        self.wait()

    def _check_group(self, step: Check) -> None:
        name = truth.producer_group(self.history, step.group)
        truth.make_due(self.truth, name)
        checks = self.service.checks
        checker = CheckerEnd(name)
        checks.attached(checker)
        checks.ready(checker)
        self.loop.run_until(lambda: checker.has_looked and not checker.coming)
        self.checks_came([(each.txn_id, each.checks, first, each.halves, each.retired) for each, first in checker.came])
        if step.commit is not None:
            answers: list[bool] = []
            for each, _ in checker.came:
                checks.decide(each, "commit" if step.commit else "rollback", answers.append)
            self.loop.run_until(lambda: len(answers) == len(checker.came))
            assert all(answers)
        checks.lost(checker)
        # it looks each second: what has had its last check just now is not over yet (H10)
        self.loop.hurry_all_of(Exhaustion)
        self.wait()

    def _listen(self) -> None:
        """Note what notices come: the driver waits for its own, which is the last."""
        self._notices: set[str] = set()
        hear = self.service._peers.notified

        def notified(channel: str, payload: str) -> None:
            self._notices.add(payload)
            hear(channel, payload)

        self.service._peers.notified = notified  # type: ignore[method-assign]

    def hear_notices(self) -> None:
        """They come in the order of commits."""
        mine = f"{next(_fences)}"
        self.truth.execute(b"select pg_notify(%s, %s)", [channels.DUE, mine])
        self.loop.run_until(lambda: mine in self._notices)
        self.wait()

    def operate(self, command: Callable[[], None]) -> None:
        """In a thread: what a worker has read ahead it gives back meanwhile."""
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(command)
            self.loop.run_until(done.done)
            done.result()
        self.hear_notices()

    def hear_promoted(self) -> None:
        self.wait()

    def _hear(self, step: Hear) -> None:
        listener = self._link(step.listener, ListenerEnd)
        came = self._drain(listener, len(self.model.heard) + 1)
        self.listened(step.listener, [number for number, _, _ in came])
        listener.settle_all()
        self.wait()

    def _take(self, step: Take) -> None:
        receiver = self._link(step.receiver, ReceiverEnd)
        self.came(step.receiver, self._drain(receiver, max(step.most, len(self.model.taken))))

    def _drain(self, receiver: ReceiverEnd, most: int) -> list[tuple[int, int, bool]]:
        """What comes to it, up to so many."""
        before = len(receiver.came)
        receiver.take(most)
        self.loop.run_until(lambda: not receiver.room)
        receiver.drained()
        return receiver.came[before:]


@contextmanager
def in_process(url: str, *, company: bool) -> Iterator[InProcess]:
    with pytest.MonkeyPatch.context() as patch:
        # a group that was never looked for is looked for back to here, piece by piece: no history is older
        patch.setattr(check_back, "_BEGINNING", now_micros() - 120_000_000)
        driver = InProcess(url, company=company)
        try:
            yield driver
        finally:
            driver.close()
