"""Random histories of checkable transactions over two services on one store, with the same faults.

Each transaction posts messages, and some take one from another address. Its owner discharges it, or leaves it: then
another connection of its producer group does, at either service (H20), or a checker says what became of it (H8), or no
checker knows, until it is rolled back and its messages are set aside (H10). Whatever is decided, by whatever connection
and over any fault: no answer contradicts another, what was committed arrives exactly once, and nothing else arrives.

``python -m tests.model.checkable_services --histories 300 --seed 1``: a long run.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
from proton import Delivery, Receiver, Sender

from coordinator.address.addresses import UNANSWERED as ASIDE
from tests.acceptance.engine_client import Answer, Client, Detached, Lost, Taken
from tests.fix_service import PATIENCE
from tests.model import counts
from tests.model.services import End
from tests.model.two_services import COMMITTED, ROLLED_BACK, Asked, History, Txn, main

SETTINGS = {
    "check.immunity_seconds": "0",
    "check.interval_seconds": "0.2",
    "check.most": "2",
    # clients are cut again and again, and none of what they had in hand is to be a dead letter
    "addresses.patterns": '[{"match": "*", "max_attempts": 10000}]',
}
#: messages that transactions may take
INPUTS = 12
CHECKERS = 2

_ILLEGAL_STATE, _UNKNOWN_ID = "amqp:illegal-state", "amqp:transaction:unknown-id"
_TRANSACTIONAL, _ACCEPTED = 0x34, 0x24
#: of a checker: None: it does not know
_DECISIONS: dict[str | None, int] = {
    COMMITTED: Delivery.ACCEPTED,
    ROLLED_BACK: Delivery.REJECTED,
    None: Delivery.RELEASED,
}


@dataclass
class Checkable(Txn):
    """``posts``: those without an answer yet; ``accepted``: bodies of those that were accepted; ``taken``: bodies of
    what it has retired.
    """

    client: Client | None = None
    posts: dict[str, Any] = field(default_factory=dict)
    accepted: set[str] = field(default_factory=set)
    taken: list[str] = field(default_factory=list)
    #: its owner was told that it is committed as the owner has left it: with all of its work
    whole: bool = False
    #: one of its group, or a checker, has asked for a commit
    wanted: bool = False

    def hear(self, answer: Answer, fail: bool, who: str) -> str | None:
        """Its owner is told so, too, where another has committed it without all of its work (H5)."""
        wrong = super().hear(answer, fail or answer.condition == _ILLEGAL_STATE, who)
        if wrong is None and not self.wanted and self.heard and self.heard[-1][0] == COMMITTED:
            return f"{UUID(bytes=self.id)} is committed, and none of its group asked for that: {self.heard}"
        return wrong


@dataclass
class Verdict:
    """What a checker has said, and its service has not answered yet."""

    txn: Checkable
    decision: str
    client: Client
    taken: Taken
    who: str


class CheckableHistory(History):
    def __init__(self, ends: list[End], url: str, seed: int, counts: Counter[str]) -> None:
        super().__init__(ends, url, seed, counts)
        self.group = f"{self._name}-producers"
        self._inputs: dict[Client, Receiver] = {}
        self._checkers: list[tuple[Client, Receiver, str]] = []
        self._verdicts: list[Verdict] = []
        self._strangers: set[Client] = set()

    def run(self) -> list[str]:
        client = self._patiently(self._ends[0], None)
        sender = client.sender(f"{self._name}-in")
        for number in range(INPUTS):
            assert client.outcome(client.post(sender, f"in/{number}")) == Delivery.ACCEPTED
        client.close()
        return super().run()

    def _weighted(self) -> dict[Callable[[], None], int]:
        return {**super()._weighted(), self._discharge: 12, self._ask: 12, self._check_back: 12}

    # -- clients

    def _turn(self, seconds: float) -> None:
        super()._turn(seconds)
        for txn in self.txns:
            assert isinstance(txn, Checkable)
            self._hear_posts(txn)
        for client, receiver, who in self._checkers:
            while not client.lost and client.arrived(receiver):
                self._say(client, receiver, client.arrived(receiver).popleft(), who)
        rest = []
        for verdict in self._verdicts:
            if verdict.taken.delivery.settled:
                self._hear_verdict(verdict)
            elif not verdict.client.lost:
                rest.append(verdict)
        self._verdicts = rest

    @staticmethod
    def _hear_posts(txn: Checkable) -> None:
        assert txn.client is not None
        if txn.client.lost:
            txn.posts.clear()
        for body, delivery in list(txn.posts.items()):
            if delivery.remote_state:
                del txn.posts[body]
                if delivery.remote_state == _TRANSACTIONAL and delivery.remote.data[1].descriptor == _ACCEPTED:
                    txn.accepted.add(body)
                delivery.settle()

    def _say(self, client: Client, receiver: Receiver, check: Taken, who: str) -> None:
        told = check.message.instructions
        assert told is not None
        txn_id = bytes(told["x-opt-txn-id"])
        self._counts["checks"] += 1
        found = [txn for txn in self.txns if txn.id == txn_id]
        if not found:
            self.wrong.append(f"{who} is asked about {UUID(bytes=txn_id)}")
            return
        assert isinstance(found[0], Checkable)
        kind = self._dice.choice((COMMITTED, COMMITTED, ROLLED_BACK, None, None, "silent"))
        try:
            if kind != "silent":
                check.delivery.update(_DECISIONS[kind])
            if kind is None:
                check.delivery.settle()
            elif kind != "silent":
                found[0].wanted = found[0].wanted or kind == COMMITTED
                self._verdicts.append(Verdict(found[0], kind, client, check, who))
            receiver.flow(1)
            client.turn(0)
        except Lost:
            pass

    def _hear_verdict(self, verdict: Verdict) -> None:
        """It stands, or was released: then the transaction is decided otherwise, or the store was away."""
        state = verdict.taken.delivery.remote_state
        if state == _DECISIONS[verdict.decision]:
            self._hear(verdict.txn, Answer(True), verdict.decision == ROLLED_BACK, verdict.who)
        elif state != Delivery.RELEASED:
            self.wrong.append(f"{verdict.who} said {verdict.decision} of {UUID(bytes=verdict.txn.id)}: {state}")
        verdict.taken.delivery.settle()

    def _answered(self, asked: Asked, answer: Answer) -> None:
        txn = asked.txn
        assert isinstance(txn, Checkable)
        if (
            asked.client in self._strangers
            and answer.condition == _UNKNOWN_ID
            and f"{self.group}" in answer.description
        ):
            self._counts["strangers refused"] += 1
            if asked.heard_before:
                self.wrong.append(f"{UUID(bytes=txn.id)} is undecided for {asked.who}, after {txn.heard}")
            return
        super()._answered(asked, answer)
        txn.whole = txn.whole or (asked.client is txn.client and answer.accepted and not asked.fail)

    # -- steps

    def _work(self) -> None:
        end = self._dice.choice(self._ends)
        if not end.well:
            return
        self._connect(end)
        client, sender = self._dice.choice(end.clients)
        try:
            txn = Checkable(client.declare(), end, [], client=client)
        except (Lost, Detached):
            return
        self.txns.append(txn)
        try:
            if self._dice.random() < 0.5:
                self._take(txn, client)
            self._post(txn, client, sender)
        except (Lost, Detached):
            return
        kind = self._dice.random()
        if kind < 0.35:
            self._ask_at(txn, client, fail=self._dice.random() < 0.2, who=f"{end.name} (its own)")
            txn.discharged = True
        elif kind < 0.85:
            until = time.monotonic() + self._dice.choice((0.0, 0.2, 0.2))
            while txn.posts and time.monotonic() < until:
                self._turn(0.005)
            client.cut()

    def _take(self, txn: Checkable, client: Client) -> None:
        if client not in self._inputs:
            self._inputs[client] = client.receiver(f"{self._name}-in", credit=1)
        receiver = self._inputs[client]
        if client.arrived(receiver):
            taken = client.arrived(receiver).popleft()
            txn.taken.append(taken.body)
            client.retire(taken, txn.id, settle=self._dice.random() < 0.5)
            receiver.flow(1)
            client.turn(0)  # before what follows: transfers of one turn go first

    def _post(self, txn: Checkable, client: Client, sender: Sender) -> None:
        for number in range(self._dice.randint(1, 3)):
            body = f"{len(self.txns)}/{number}"
            txn.bodies.append(body)
            txn.posts[body] = client.post(sender, body, txn=txn.id)

    def _ask_at(self, txn: Txn, client: Client, *, fail: bool, who: str) -> None:
        assert isinstance(txn, Checkable)
        txn.wanted = txn.wanted or not (fail or client in self._strangers)
        super()._ask_at(txn, client, fail=fail, who=who)

    def _discharge(self) -> None:
        """By any connection of the group, at either service."""
        left = [txn for txn in self.txns if not txn.discharged]
        there = [(end, client) for end in self._ends if end.well for client, _ in end.clients if not client.lost]
        if left and there:
            txn = self._dice.choice(left)
            txn.discharged = True
            end, client = self._dice.choice(there)
            self._ask_at(txn, client, fail=self._dice.random() < 0.3, who=f"{end.name} (of the group)")

    def _ask(self) -> None:
        """By a connection that is not of the group, one that has a checker of it, or another of it."""
        there = [end for end in self._ends if end.well]
        if not there or not self.txns:
            return
        end = self._dice.choice(there)
        who = self._dice.choice(("stranger", "stranger", "of the group", "checker"))
        checkers = [client for client, _, _ in self._checkers if not client.lost]
        if who == "checker" and checkers:
            client = self._dice.choice(checkers)
        else:
            client = self._patiently(end, self.group if who == "of the group" else None)
            self._askers.append(client)
            if who != "of the group":
                self._strangers.add(client)
        for txn in self._dice.sample(self.txns[-4:], min(2, len(self.txns[-4:]))):
            self._ask_at(txn, client, fail=self._dice.random() < 0.3, who=f"{end.name} ({who} asked)")

    def _check_back(self) -> None:
        """A checker comes, or one of those there is cut."""
        self._checkers = [each for each in self._checkers if not each[0].lost]
        there = [end for end in self._ends if end.well]
        if len(self._checkers) == CHECKERS:
            self._dice.choice(self._checkers)[0].cut()
        elif there:
            end = self._dice.choice(there)
            client = self._patiently(end, None)
            self._askers.append(client)
            try:
                receiver = client.receiver(f"$check/{self.group}", credit=3)
            except (Lost, Detached):
                return
            self._checkers.append((client, receiver, f"{end.name} (checker)"))

    # -- what must be so

    def _posted(self, txn: Txn) -> list[str]:
        """Another may have committed it before its owner had posted all (H5)."""
        with psycopg.connect(self._url) as connection:
            return counts.bodies(connection, txn.id)

    def _check(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._verdicts or any(txn.posts for txn in self.txns if isinstance(txn, Checkable)):
            assert time.monotonic() < deadline, f"no answer: {self._verdicts}, {self.txns}"
            self._turn(0.05)
        for client in [*self._askers, *(client for end in self._ends for client, _ in end.clients)]:
            client.cut()
        for end in self._ends:
            end.proxy.give_up_orphans()
        if self._dice.random() < 0.5:
            self._leave_to_checkers()
        for txn in self.txns:
            assert isinstance(txn, Checkable)
            txn.wanted = True  # it is asked by its group
        super()._check()
        self._arrivals()

    def _leave_to_checkers(self) -> None:
        """Where a checker is, each transaction that was left comes to its end, whatever is said of it (H7 to H11)."""
        deadline = time.monotonic() + PATIENCE
        undecided = b"select uuid_send(id) from coordinator.txn where producer_group = %s"
        with psycopg.connect(self._url, autocommit=True) as connection:
            while left := connection.execute(undecided, [self.group]).fetchall():
                assert time.monotonic() < deadline, f"undecided: {[txn_id.hex() for (txn_id,) in left]}"
                if not [checker for checker in self._checkers if not checker[0].lost]:
                    self._check_back()
                self._turn(0.05)
        for client in self._askers:
            client.cut()
        self._turn(0)

    def _compare(self, connection: psycopg.Connection[Any], txn: Txn) -> None:
        ops = connection.execute(b"select decision, reason from coordinator.op where id = %s", [UUID(bytes=txn.id)])
        decided = ops.fetchall()
        if [decision for decision, _ in decided] != [txn.heard[-1][0]]:
            self.wrong.append(f"{UUID(bytes=txn.id)}: {txn.heard}; the store has {decided}")
            return
        self._counts[f"{decided[0][0]} {decided[0][1] or 'discharged'}"] += 1

    def _arrivals(self) -> None:
        """All that is there is consumed, and is what the transactions have left."""
        came = {name: self._consumed(name) for name in (self._name, f"{self._name}-in")}
        aside = self._consumed(ASIDE)
        with psycopg.connect(self._url) as connection:
            wanted: Counter[str] = Counter()
            wanted_aside: Counter[str] = Counter()
            for txn in self.txns:
                assert isinstance(txn, Checkable)
                stored = counts.bodies(connection, txn.id)
                decided = connection.execute(
                    b"select decision, reason from coordinator.op where id = %s", [UUID(bytes=txn.id)]
                )
                decision, reason = decided.fetchone() or ("", "")
                if decision == COMMITTED:
                    wanted.update(stored)
                    self._look_whole(txn, set(stored))
                elif reason == "check-exhausted":
                    wanted_aside.update(stored)
            left = connection.execute(
                b"select t.*, o.decision, o.reason from coordinator.txn t left join coordinator.op o on o.id = t.id "
                b"where t.producer_group = %s",
                [self.group],
            ).fetchall()
        if came[self._name] != wanted:
            self.wrong.append(f"came: {came[self._name]}, not {wanted}")
        if aside != wanted_aside:
            self.wrong.append(f"set aside: {aside}, not {wanted_aside}")
        if left:
            told = [(each.id.hex(), each.heard) for each in self.txns]
            self.wrong.append(f"transactions are undecided: {left}, of {told}")
        self._look_at_inputs(came[f"{self._name}-in"])

    def _look_whole(self, txn: Checkable, stored: set[str]) -> None:
        if not txn.accepted <= stored <= set(txn.bodies) or (txn.whole and stored != set(txn.bodies)):
            self.wrong.append(f"{UUID(bytes=txn.id)}: {txn.heard}; {stored} of {txn.bodies}, accepted {txn.accepted}")

    def _look_at_inputs(self, came: Counter[str]) -> None:
        """Each is there once, or was taken by a transaction that was committed."""
        for body in (f"in/{number}" for number in range(INPUTS)):
            takers = [each for each in self.txns if isinstance(each, Checkable) and body in each.taken]
            committed = [each for each in takers if each.heard[-1][0] == COMMITTED]
            sure = sum(each.whole for each in committed)
            there = came.pop(body, 0)
            if there > 1 or there + sure > 1 or (not there and not committed):
                told = [(UUID(bytes=each.id), each.heard, each.whole) for each in takers]
                self.wrong.append(f"{body} is there {there} times; it was taken by {told}")
        if came:
            self.wrong.append(f"nobody has posted {came}")

    def _consumed(self, address: str) -> Counter[str]:
        """Until the store has none; what a dead instance has leased comes back in time."""
        there = (
            b"select count(*) from coordinator.address a join coordinator.consumer_group g on g.address_id = a.id "
            b"join coordinator.entry e on e.group_id = g.id where a.name = %s"
        )
        found: Counter[str] = Counter()
        deadline = time.monotonic() + PATIENCE
        with psycopg.connect(self._url, autocommit=True) as connection:
            while connection.execute(there, [address]).fetchone() != (0,):
                assert time.monotonic() < deadline, f"something at {address} does not come"
                client = self._patiently(self._dice.choice(self._ends), None)
                for taken in client.drain(client.receiver(address, 0), 1000):
                    found[taken.body] += 1
                    client.accept(taken)
                client.close()
        return found


if __name__ == "__main__":
    sys.exit(main(CheckableHistory, SETTINGS))
