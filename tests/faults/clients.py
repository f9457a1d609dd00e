"""The load: clients on machines of their own, who know two services and go to the other when they lose one."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from proton import Disposition

from tests.acceptance.engine_client import Answer, Client, Detached, Lost, Taken
from tests.acceptance.history import MOVED, WORK, Consumer, Gone, Mover, Producer, Txn, Worker
from tests.faults.record import ACCOUNTS, LINE, Checkable, Record, Sale, account_message
from tests.fix_machines import Machine
from tests.fix_service import PATIENCE

PORT = 5672
GROUP = "shop"
#: A client that hears nothing for so long takes its connection for lost.
_SILENCE_SECONDS = 4.0
_CONNECT_SECONDS = 2.0
_TRANSACTIONAL, _ACCEPTED = 0x34, 0x24


class Abroad(Worker):
    """``hosts``: addresses of the services it may use. ``group``: of producers, so that transactions are checkable."""

    group: str | None = None
    #: seconds between two transactions, on average
    pause = 0.08
    history: Record

    def __init__(self, record: Record, machine: Machine, hosts: Sequence[str], name: str, seed: int) -> None:
        super().__init__(record, lambda: PORT, name, seed)
        self._machine = machine
        self._hosts = hosts
        self._connections = seed

    def run(self) -> None:
        self._machine.enter()
        super().run()

    def connect(self) -> Client:
        self._connections += 1
        return Client(
            self._port(),
            self.name,
            host=self._hosts[self._connections % len(self._hosts)],
            patience=_CONNECT_SECONDS,
            idle_timeout_seconds=_SILENCE_SECONDS,
            producer_group=self.group,
        )

    def _connected(self) -> None:
        try:
            super()._connected()
        except Detached as error:
            self.history.detached[str(error)] += 1
            time.sleep(0.1)
        except Lost:
            time.sleep(0.05)
            raise

    def rest(self) -> None:
        time.sleep(self.dice.uniform(0, 2 * self.pause))


class Poster(Abroad, Producer):
    pause = 0.15


class LinePoster(Poster):
    """All that it posts is of one message group, which has its name."""

    posts_to = LINE

    def __init__(self, record: Record, machine: Machine, hosts: Sequence[str], name: str, seed: int) -> None:
        super().__init__(record, machine, hosts, name, seed)
        self.fields = {"group_id": name}


class Taker(Abroad, Consumer):
    pause = 0.03


class MovedTaker(Taker):
    takes = MOVED


class LineTaker(Taker):
    takes = LINE


class Carrier(Abroad, Mover):
    """Takes from one queue, and posts to another in the same transaction."""

    pause = 0.03


class Probe(Abroad):
    """Commits one message after the other; ``answered``: when each was begun, and when its commit was answered."""

    def __init__(self, record: Record, machine: Machine, hosts: Sequence[str], name: str, seed: int) -> None:
        super().__init__(record, machine, hosts, name, seed)
        self.answered: list[tuple[float, float]] = []

    def work(self, client: Client) -> None:
        sender = client.sender(WORK)
        while not self.history.stopping:
            self.rest()
            asked = time.monotonic()
            txn = self.begin(client)
            txn.posted.append(self.new_body())
            client.post(sender, txn.posted[0], txn=txn.txn_id)
            self.end(client, txn, "commit")
            if txn.committed:
                self.answered.append((asked, time.monotonic()))

    def first_after(self, moment: float) -> float | None:
        """When the first commit was answered that was begun after ``moment``; None: none was yet."""
        found = None
        for asked, answered in reversed(self.answered):
            if asked < moment:
                break
            found = answered
        return found


class CheckablePoster(Abroad):
    """Posts are durable when they are answered; some transactions it leaves to the checkers (H7)."""

    group = GROUP

    def work(self, client: Client) -> None:
        sender = client.sender(WORK)
        while not self.history.stopping:
            self.rest()
            txn = Checkable(client.declare(), self.name, wish="commit" if self.dice.random() < 0.7 else "rollback")
            body = self.new_body()
            with self.history.lock:
                self.history.txns.append(txn)
                self.history.checkable[body] = txn
            for number in range(self.dice.randrange(1, 4)):
                txn.unsure = (body if number == 0 else self.new_body(),)
                txn.posted += txn.unsure
                delivery = client.post(sender, txn.unsure[0], txn=txn.txn_id)
                client.until(lambda delivery=delivery: delivery.settled, sender)  # type: ignore[misc]
                if not _accepted(delivery):
                    txn.wish = "rollback"  # of what was refused its client knows
                    break
                delivery.settle()
                txn.unsure = ()
            if self.dice.random() < 0.2:
                raise Gone("the client goes, and leaves it to the checkers")
            self.end(client, txn, txn.wish)


def _accepted(delivery: Any) -> bool:
    state = int(delivery.remote_state)
    return state == _TRANSACTIONAL and int(delivery.remote.data[1].descriptor) == _ACCEPTED


class Checker(Abroad):
    """Answers what became of the transactions of :class:`CheckablePoster`; one time in ten it cannot tell."""

    group = GROUP

    def work(self, client: Client) -> None:
        receiver = client.receiver(f"$check/{GROUP}", 10)
        waiting = client.arrived(receiver)
        while not self.history.stopping:
            client.turn(0.2)
            while waiting:
                check = waiting.popleft()
                wish = self.history.checkable[str(check.body)].wish
                outcome = Disposition.ACCEPTED if wish == "commit" else Disposition.REJECTED
                if self.dice.random() < 0.1:
                    wish, outcome = "none", Disposition.RELEASED
                check.delivery.update(outcome)
                check.delivery.settle()
                with self.history.lock:
                    self.history.checks[wish] += 1
                receiver.flow(1)


class Banker(Abroad):
    """Moves money: takes the messages of two accounts, and posts their new balances, in one transaction."""

    def work(self, client: Client) -> None:
        receivers = [client.receiver(account, 0) for account in ACCOUNTS]
        senders = [client.sender(account) for account in ACCOUNTS]
        while not self.history.stopping:
            self.rest()
            chosen = sorted(self.dice.sample(range(len(ACCOUNTS)), 2))  # in one order, so that no two wait in a circle
            taken = [each for number in chosen if (each := self._take(client, receivers[number]))]
            if len(taken) < 2:
                for each in taken:
                    _release(each)
                continue
            alive = self.note(*taken)
            txn = self.begin(client)
            alive()
            amount = self.dice.randrange(1, 100)
            for number, each, change in zip(chosen, taken, (-amount, amount), strict=True):
                client.retire(each, txn.txn_id)
                txn.retired.append(str(each.body))
                balance = int(str(each.body).split(":")[1]) + change
                txn.posted.append(account_message(ACCOUNTS[number], balance, self.new_body()))
                client.post(senders[number], txn.posted[-1], txn=txn.txn_id, settled=self.dice.random() < 0.5)
            wish = self.wish()
            if wish == "none":
                raise Gone("the client goes, and leaves a transaction")
            self.end(client, txn, wish)

    def _take(self, client: Client, receiver: Any) -> Taken | None:
        """The message of an account; None: it did not come for a while, another has it."""
        receiver.flow(1)
        waiting = client.arrived(receiver)
        deadline = time.monotonic() + 2
        while not waiting and time.monotonic() < deadline and not self.history.stopping:
            client.turn(0.1)
        if not waiting:
            late = client.drain(receiver, 0)
            return late[0] if late else None
        return waiting.popleft()


def _release(taken: Taken) -> None:
    taken.delivery.update(Disposition.RELEASED)
    taken.delivery.settle()


class Application(threading.Thread):
    """Posts in SQL transactions of its own, each with a row that tells whether it is committed (X2)."""

    def __init__(self, record: Record, machine: Machine, url: str, name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self._record, self._machine, self._url = record, machine, url
        self._dice = random.Random(seed)
        self._number = 0

    def run(self) -> None:
        self._machine.enter()
        try:
            while not self._record.stopping:
                try:
                    self._connected()
                except psycopg.Error:
                    time.sleep(0.1)
        except Exception as error:  # noqa: BLE001 - an exception in a thread would be lost
            self._record.errors.append(f"{self.name}: {type(error).__name__}: {error}")

    def _connected(self) -> None:
        with psycopg.connect(
            self._url,
            application_name=self.name,
            connect_timeout=2,
            keepalives_idle=2,
            keepalives_interval=1,
            keepalives_count=3,
            tcp_user_timeout=4000,
        ) as own:
            while not self._record.stopping:
                time.sleep(self._dice.uniform(0, 0.4))
                self._sell(own)

    def _sell(self, own: psycopg.Connection[Any]) -> None:
        key = uuid.uuid4()
        txn = Sale(key.bytes, self.name)
        with self._record.lock:
            self._record.txns.append(txn)
        own.execute("insert into sale values (%s)", [key])
        for _ in range(self._dice.randrange(1, 4)):
            self._number += 1
            txn.posted.append(f"{self.name}/{self._number}")
            own.execute("select coordinator.post(%s, %s)", [WORK, txn.posted[-1]])
        if self._dice.random() < 0.25:
            txn.wish = "rollback"
            own.rollback()
        else:
            txn.wish = "commit"
            own.commit()
            txn.answer = Answer(True)


def joined(threads: Sequence[threading.Thread], fail: Callable[[str], None]) -> None:
    """Wait until all have ended."""
    deadline = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            fail(f"{thread.name} did not end within {PATIENCE:g} s")


def opened(client: Client, record: Record, balance: int) -> None:
    """Open the accounts, and make the other addresses."""
    for address in (WORK, MOVED, LINE):
        client.sender(address)
    txn = Txn(client.declare(), "bank", wish="commit")
    record.txns.append(txn)
    for account in ACCOUNTS:
        txn.posted.append(account_message(account, balance, "bank/0"))
        client.post(client.sender(account), txn.posted[-1], txn=txn.txn_id)
    txn.answer = client.discharge(txn.txn_id, fail=False)
    assert txn.answer.accepted, txn.answer
