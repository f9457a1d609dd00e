"""Clients that work in transactions while the service dies under them, a record of what they were told, and its check.

In the manner of Jepsen: whatever was acknowledged must hold, whatever was rolled back must never have been seen, and an
answer that was lost must resolve, through asking again (T11), to one truth that the store has too.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import psycopg

from store.tables import SCHEMA
from tests.acceptance.engine_client import PATIENCE, Answer, Client, Detached, Lost, Taken

#: Where producers post, and where movers put what they have taken from there.
WORK, MOVED = "work", "moved"

Wish = Literal["commit", "rollback", "none"]


@dataclass(slots=True)
class Txn:
    """A transaction as its client knows it."""

    txn_id: bytes
    client: str
    wish: Wish = "none"
    posted: list[str] = field(default_factory=list)
    retired: list[str] = field(default_factory=list)
    #: None: no answer came
    answer: Answer | None = None
    #: the answer was lost, and this is what asking again brought
    resolved: Answer | None = None
    #: number in :class:`History` of the moment the answer came
    acknowledged_at: int = 0
    #: of ``posted``, in a checkable transaction: no answer came, so it may be missing
    unsure: tuple[str, ...] = ()

    @property
    def known(self) -> Answer | None:
        return self.answer or self.resolved

    @property
    def committed(self) -> bool:
        return self.wish == "commit" and self.known is not None and self.known.accepted


@dataclass(slots=True)
class Seen:
    body: str
    client: str
    delivery_count: int
    #: number in :class:`History` of a moment at which its connection was alive; 0: none is known
    at: int = 0


class History:
    """Everything that happened, in the order in which the clients saw it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.txns: list[Txn] = []
        self.seen: list[Seen] = []
        self.kills = 0
        self._moments = 0
        self.stopping = False
        self.errors: list[str] = []
        #: bodies that others posted to the same addresses
        self.foreign: set[str] = set()

    def moment(self) -> int:
        with self.lock:
            self._moments += 1
            return self._moments

    # -- the check

    def violations(self, left: list[str], decisions: dict[bytes, str]) -> list[str]:
        """The violations. ``left``: bodies in the queues at the end; ``decisions``: the store's ops by txn-id."""
        found = list(self.errors)
        committed = [txn for txn in self.txns if txn.committed]
        owner = {body: txn for txn in self.txns for body in txn.posted}
        retirements: Counter[str] = Counter(body for txn in committed for body in txn.retired)
        remaining = Counter(left)
        for txn in self.txns:
            decision = decisions.get(txn.txn_id)
            if txn.wish == "none" and decision == "commit":
                found.append(f"{txn}: committed, and no client asked for it")
            if txn.known is None:
                if txn.wish != "none":
                    found.append(f"{txn}: never resolved")
                continue
            if not (txn.posted or txn.retired):
                continue  # nothing is stored of an empty one (T35)
            if txn.committed != (decision == "commit"):
                found.append(f"{txn}: answered {txn.known}, and the store says {decision}")
        for body, txn in owner.items():
            if txn.committed:
                places = retirements[body] + remaining[body]
                if places != 1 and not (places == 0 and body in txn.unsure):
                    found.append(f"{body} of {txn}: retired {retirements[body]} times, left {remaining[body]} times")
            elif remaining[body]:
                found.append(f"{body}: left, and not committed: {txn}")
        found += [f"{body}: left, and no client posted it" for body in remaining.keys() - owner.keys() - self.foreign]
        for seen in self.seen:
            if seen.body in self.foreign:
                continue
            if seen.body not in owner:
                found.append(f"{seen}: seen, and no client posted it")
            elif not owner[seen.body].committed:
                found.append(f"{seen}: seen, and not committed: {owner[seen.body]}")
        gone = {body: txn.acknowledged_at for txn in committed if txn.answer for body in txn.retired}
        found += [
            f"{seen}: came back after its retirement was acknowledged at {gone[seen.body]}"
            for seen in self.seen
            if seen.body in gone and seen.at > gone[seen.body]
        ]
        return found

    def summary(self) -> str:
        wishes = Counter(txn.wish for txn in self.txns)
        lost = [txn for txn in self.txns if txn.answer is None and txn.wish != "none"]
        return (
            f"{len(self.txns)} transactions ({dict(wishes)}), "
            f"{sum(len(txn.posted) for txn in self.txns)} messages posted, "
            f"{len(self.seen)} seen, {self.kills} kills, {len(lost)} answers lost, "
            f"of which {sum(txn.committed for txn in lost)} were commits that had happened"
        )


class Gone(Lost):
    """Ends the client by itself."""


class Worker(threading.Thread):
    """A client that works until it is told to stop, and connects again whenever its connection is lost."""

    #: nothing but the client itself may end its connection
    steady = False

    def __init__(self, history: History, port: Callable[[], int], name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.history = history
        self._port = port
        self.dice = random.Random(seed)
        self._number = 0
        self._unknown: list[Txn] = []

    def run(self) -> None:
        try:
            while not self.history.stopping:
                try:
                    self._connected()
                except Gone:
                    pass
                except Lost:
                    assert not self.steady, "the connection was lost"
        except Exception as error:  # noqa: BLE001 - an exception in a thread would be lost
            self.history.errors.append(f"{self.name}: {type(error).__name__}: {error}")

    def _connected(self) -> None:
        client = self.connect()
        try:
            self.resolve(client)
            self.work(client)
        finally:
            client.cut()

    def connect(self) -> Client:
        return Client(self._port(), self.name)

    def resolve(self, client: Client) -> None:
        """Ask again for each answer that was lost."""
        while self._unknown:
            txn = self._unknown[0]
            txn.resolved = client.discharge(txn.txn_id, fail=txn.wish == "rollback")
            self._unknown.pop(0)

    def work(self, client: Client) -> None:
        raise NotImplementedError

    def begin(self, client: Client) -> Txn:
        txn = Txn(client.declare(), self.name)
        with self.history.lock:
            self.history.txns.append(txn)
        return txn

    def end(self, client: Client, txn: Txn, wish: Wish) -> None:
        txn.wish = wish
        self._unknown.append(txn)
        answer = client.discharge(txn.txn_id, fail=wish == "rollback")
        txn.acknowledged_at = self.history.moment()
        txn.answer = answer
        self._unknown.pop()

    def wish(self) -> Wish:
        """One in four rolls back; one in twenty is never discharged."""
        number = self.dice.random()
        return "rollback" if number < 0.25 else "none" if number < 0.3 else "commit"

    def new_body(self) -> str:
        self._number += 1
        return f"{self.name}/{self._number}"

    def note(self, *taken: Taken) -> Callable[[], None]:
        """Call the result once the service has answered something asked later: it was alive at this moment, which what
        a dead connection left to be read does not tell.
        """
        at = self.history.moment()
        seen = [Seen(str(each.body), self.name, each.message.delivery_count) for each in taken]
        self.history.seen += seen

        def alive() -> None:
            for each in seen:
                each.at = at

        return alive

    def rest(self) -> None:
        """Between two transactions."""


class Producer(Worker):
    """Posts a few messages a transaction."""

    posts_to = WORK
    #: of each message
    fields: Mapping[str, object] = {}

    def work(self, client: Client) -> None:
        sender = client.sender(self.posts_to)
        while not self.history.stopping:
            self.rest()
            txn = self.begin(client)
            for _ in range(self.dice.randrange(1, 6)):
                body = self.new_body()
                txn.posted.append(body)
                client.post(sender, body, txn=txn.txn_id, settled=self.dice.random() < 0.5, **self.fields)
            wish = self.wish()
            if wish == "none":
                if self.dice.random() < 0.2:
                    raise Gone("the client goes, and leaves a transaction")
                continue
            self.end(client, txn, wish)


class Consumer(Worker):
    """Takes a few messages a transaction; a mover posts as many to another address in the same one."""

    moves = False
    takes = WORK

    def work(self, client: Client) -> None:
        receiver = client.receiver(self.takes, 20)
        sender = client.sender(MOVED) if self.moves else None
        most = self.dice.randrange(20, 60)
        while not self.history.stopping:
            waiting = client.arrived(receiver)
            if not waiting:
                client.turn(0.05)
                continue
            self.rest()
            taken = [waiting.popleft() for _ in range(min(len(waiting), self.dice.randrange(1, 6)))]
            alive = self.note(*taken)
            txn = self.begin(client)
            alive()
            for each in taken:
                client.retire(each, txn.txn_id)
                txn.retired.append(str(each.body))
                if sender is not None:
                    body = self.new_body()
                    txn.posted.append(body)
                    client.post(sender, body, txn=txn.txn_id, settled=True)
            receiver.flow(len(taken))
            wish = self.wish()
            if wish == "none":
                raise Gone("the client goes, and leaves a transaction")
            self.end(client, txn, wish)
            most -= 1
            if not most:
                raise Gone("the client goes, with messages in its hands")


class Mover(Consumer):
    moves = True


def decisions(url: str) -> dict[bytes, str]:
    """The store's word on each transaction."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            f"select id, decision from {SCHEMA}.op where decision in ('commit', 'rollback')".encode()
        ).fetchall()
    return {row[0].bytes: row[1] for row in rows}


def left(client: Client, url: str, *others: str) -> list[str]:
    """Take all that is still at the addresses, and at ``others``. What clients held a moment ago may come late."""
    bodies: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while True:
        for address in (WORK, MOVED, f"%DLQ%{WORK}", *others):
            bodies += _taken(client, address)
        with psycopg.connect(url) as connection:
            stuck = connection.execute(f"select * from {SCHEMA}.entry limit 20".encode()).fetchall()
        if not stuck:
            return bodies
        assert time.monotonic() < deadline, f"entries that no consumer gets: {stuck}"
        time.sleep(0.05)


def _taken(client: Client, address: str) -> list[str]:
    """What is at an address, which need not be there."""
    try:
        receiver = client.receiver(address, 0)
    except Detached as error:
        if str(error) != "amqp:not-found":
            raise
        return []
    bodies: list[str] = []
    while taken := client.drain(receiver, 1000):
        for each in taken:
            client.accept(each)
            bodies.append(str(each.body))
    receiver.close()
    return bodies
