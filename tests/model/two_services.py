"""Random histories over two services on one store, with faults: no answer may contradict an earlier or a later one.

What is checked needs no model of what happens when: each transaction has one outcome, at any instance and any time,
and the store holds all of its messages or none. A listener of a broadcast whose connection holds hears each message of
what was declared after its attach was answered and is committed, once, wherever that is; and none that is rolled back.

``python -m tests.model.two_services --histories 300 --seed 1``: a long run.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from store import migrations
from store.embedded.server import EmbeddedServer
from tests.acceptance.engine_client import Answer, Client, Detached, Lost
from tests.fix_service import PATIENCE
from tests.model.listening import Listening
from tests.model.services import End, two_services

STEPS = 40
CLIENTS = 2
MOST_LISTENING = 3

COMMITTED, ROLLED_BACK = "commit", "rollback"
#: of a transaction of this store, whose discharge asked for a commit, and for a rollback
_MEANS_COMMITTED = {(True, False, ""), (False, True, "amqp:illegal-state")}
_MEANS_ROLLED_BACK = {
    (True, True, ""),
    (False, False, "amqp:transaction:rollback"),
    (False, False, "amqp:transaction:timeout"),
}
#: says nothing: it is under way on this connection already, or the store was away
_UNDER_WAY = "under way already"
_NO_WORD = "amqp:internal-error"


@dataclass
class Txn:
    """A transaction with work, and all that was ever said of it: the outcome, by whom, after how many seconds."""

    id: bytes
    end: End
    bodies: list[str]
    declared: float = field(default_factory=time.monotonic)
    discharged: bool = False
    heard: list[tuple[str, str, float]] = field(default_factory=list)

    def hear(self, answer: Answer, fail: bool, who: str) -> str | None:
        """Take in an answer; what is wrong with it."""
        said = (answer.accepted, fail, answer.condition)
        if said in _MEANS_COMMITTED and _UNDER_WAY not in answer.description:
            outcome = COMMITTED
        elif said in _MEANS_ROLLED_BACK:
            outcome = ROLLED_BACK
        elif _UNDER_WAY in answer.description or answer.condition == _NO_WORD:
            return None
        else:
            return f"{UUID(bytes=self.id)} with fail={fail} is answered {answer} by {who}"
        self.heard.append((outcome, who, round(time.monotonic() - self.declared, 3)))
        if len({outcome for outcome, _, _ in self.heard}) > 1:
            return f"{UUID(bytes=self.id)} is answered {self.heard}"
        return None


@dataclass
class Asked:
    txn: Txn
    fail: bool
    client: Client
    delivery: Any
    who: str
    #: of the transaction, when it was asked
    heard_before: int


class History:
    """One history; :attr:`wrong` is what must not be."""

    def __init__(self, ends: list[End], url: str, seed: int, counts: Counter[str]) -> None:
        self._ends = ends
        self._url = url
        self._dice = random.Random(seed)
        self._name = f"history-{seed}-{time.monotonic_ns()}"
        self._counts = counts
        #: the producer group of its clients' transactions, which are checkable then
        self.group: str | None = None
        self.txns: list[Txn] = []
        self._asked: list[Asked] = []
        self._askers: list[Client] = []
        self._listening: list[Listening] = []
        #: those whose connections are lost
        self._listened: list[Listening] = []
        self.wrong: list[str] = []

    def run(self) -> list[str]:
        for end in self._ends:
            self._connect(end)
        weighted = self._weighted()
        actions, weights = list(weighted), list(weighted.values())
        for _ in range(STEPS):
            for end in self._ends:
                end.mend()
            self._dice.choices(actions, weights)[0]()
            self._turn(self._dice.choice((0.0, 0.0, 0.002, 0.02)))
        for end in self._ends:
            if end.stopped is not None and end.stopped[1] - time.monotonic() > 1:  # to be given up
                while time.monotonic() < end.stopped[1]:
                    self._turn(0.1)
            end.mend(at_once=True)
        deadline = time.monotonic() + PATIENCE
        while self._asked:
            assert time.monotonic() < deadline, f"no answer: {self._asked}"
            self._turn(0.05)
        self._check()
        listeners = [each.client for each in self._listening]
        for client in [*self._askers, *listeners, *(client for end in self._ends for client, _ in end.clients)]:
            client.cut()
        for end in self._ends:
            end.clients.clear()
            end.proxy.give_up_orphans()
        return self.wrong

    def _weighted(self) -> dict[Callable[[], None], int]:
        """Steps, and how often each comes."""
        return {
            self._work: 30,
            self._discharge: 30,
            self._ask: 20,
            self._fault: 12,
            self._listen: 4,
            self._cut_client: 5,
        }

    # -- clients

    def _patiently(self, end: End, group: str | None) -> Client:
        """A connection, once the service is there again. ``group``: the producer group that it names."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                name = f"{self._name}-{len(self._askers)}-{time.monotonic_ns()}"
                client = Client(end.service.port, name, producer_group=group)
                client.control  # noqa: B018 - it is served when this is answered
            except (Lost, Detached):
                assert time.monotonic() < deadline, f"{end.name} does not come back"
                time.sleep(0.05)
            else:
                return client

    def _connect(self, end: End) -> None:
        while len(end.clients) < CLIENTS:
            client = self._patiently(end, self.group)
            try:
                end.clients.append((client, client.sender(self._name)))
            except (Lost, Detached):
                client.cut()

    def _turn(self, seconds: float) -> None:
        """Every client writes and reads, and takes in the answers."""
        until = time.monotonic() + seconds
        while True:
            for end in self._ends:
                end.clients = [(client, sender) for client, sender in end.clients if _turned(client)]
            self._askers = [client for client in self._askers if _turned(client)]
            for listening in list(self._listening):
                there = _turned(listening.client)
                listening.take()
                if not there:
                    self._listening.remove(listening)
                    self._listened.append(listening)
            rest = []
            for asked in self._asked:
                if asked.delivery.remote_state:
                    self._answered(asked, asked.client.answer_of(asked.delivery))
                elif not asked.client.lost:
                    rest.append(asked)
            self._asked = rest
            if time.monotonic() >= until:
                return
            time.sleep(0.001)

    def _answered(self, asked: Asked, answer: Answer) -> None:
        self._hear(asked.txn, answer, asked.fail, asked.who)

    def _hear(self, txn: Txn, answer: Answer, fail: bool, who: str) -> None:
        if wrong := txn.hear(answer, fail, who):
            self.wrong.append(wrong)

    # -- steps

    def _work(self) -> None:
        end = self._dice.choice(self._ends)
        if not end.well:
            return
        self._connect(end)
        client, sender = self._dice.choice(end.clients)
        try:
            txn = Txn(client.declare(), end, [])
            for number in range(self._dice.randint(1, 3)):
                body = f"{len(self.txns)}/{number}"
                client.post(sender, body, txn=txn.id)
                txn.bodies.append(body)
        except (Lost, Detached):
            return
        self.txns.append(txn)
        txn.heard.clear()
        if self._dice.random() < 0.5:
            self._ask_at(txn, client, fail=self._dice.random() < 0.2, who=f"{end.name} (its own)")
            txn.discharged = True

    def _discharge(self) -> None:
        left = [txn for txn in self.txns if not txn.discharged and txn.end.clients]
        if left:
            txn = self._dice.choice(left)
            txn.discharged = True
            # perhaps on the connection that declared it, perhaps on another
            client = self._dice.choice(txn.end.clients)[0]
            self._ask_at(txn, client, fail=self._dice.random() < 0.2, who=txn.end.name)

    def _ask(self) -> None:
        there = [end for end in self._ends if end.well]
        if not there or not self.txns:
            return
        end = self._dice.choice(there)
        client = self._patiently(end, self.group)
        self._askers.append(client)
        for txn in self._dice.sample(self.txns[-4:], min(2, len(self.txns[-4:]))):
            self._ask_at(txn, client, fail=self._dice.random() < 0.3, who=f"{end.name} (asked)")

    def _ask_at(self, txn: Txn, client: Client, *, fail: bool, who: str) -> None:
        try:
            delivery = client.ask_discharge(txn.id, fail=fail)
            self._asked.append(Asked(txn, fail, client, delivery, who, len(txn.heard)))
            client.turn(0)
        except (Lost, Detached):
            pass

    def _listen(self) -> None:
        there = [end for end in self._ends if end.well]
        if not there or len(self._listening) >= MOST_LISTENING:
            return
        client = self._patiently(self._dice.choice(there), None)
        try:
            receiver = client.receiver(f"{self._name}::*", 10_000)
        except (Lost, Detached):
            client.cut()
            return
        self._listening.append(Listening(client, receiver, len(self.txns)))
        self._counts["listeners"] += 1

    def _cut_client(self) -> None:
        clients = [client for end in self._ends for client, _ in end.clients]
        if clients:
            self._dice.choice(clients).cut()

    def _fault(self) -> None:
        end = self._dice.choice(self._ends)
        if end.well:
            end.suffer(self._dice, self._counts)

    # -- what must be so

    def _check(self) -> None:
        """Everything is well again: each is asked, twice, and the store is looked at."""
        for end in (*self._ends, *reversed(self._ends)):
            left = list(self.txns)
            while left:
                client = self._patiently(end, self.group)
                try:
                    while left:
                        fail = self._dice.random() < 0.5
                        answer = client.discharge(left[-1].id, fail=fail)
                        if answer.condition == _NO_WORD:
                            time.sleep(0.05)
                            continue
                        self._hear(left.pop(), answer, fail, f"{end.name} (at the end)")
                except Lost:
                    continue
                client.cut()
        with psycopg.connect(self._url) as connection:
            for txn in self.txns:
                if txn.heard:
                    self._compare(connection, txn)
        self._hear_out()
        for listening in (*self._listening, *self._listened):
            self._compare_heard(listening)

    def _committed(self, since: int) -> list[str]:
        """The messages of transactions, but for so many."""
        found = [txn for txn in self.txns[since:] if txn.heard and txn.heard[-1][0] == COMMITTED]
        return [body for txn in found for body in self._posted(txn)]

    def _posted(self, txn: Txn) -> list[str]:
        """Bodies of what it has posted, once it is committed."""
        return txn.bodies

    def _hear_out(self) -> None:
        """Listeners that are there still hear all that they are to hear."""
        deadline = time.monotonic() + PATIENCE
        while late := [each for each in self._listening if not {*self._committed(each.since)} <= {*each.bodies}]:
            if time.monotonic() > deadline:
                missing = [{*self._committed(each.since)} - {*each.bodies} for each in late]
                self.wrong.append(f"listeners have not heard {missing}")
                return
            self._turn(0.02)
        self._counts["heard whole"] += sum(bool(self._committed(each.since)) for each in self._listening)

    def _compare_heard(self, listening: Listening) -> None:
        """Nothing twice, and nothing that is not committed."""
        heard, committed = Counter(listening.bodies), {*self._committed(0)}
        wrong = [body for body, times in heard.items() if times > 1 or body not in committed]
        if wrong:
            self.wrong.append(f"a listener has heard {wrong}, twice or though they are not committed: {heard}")
        self._counts["heard"] += len(heard)

    def _compare(self, connection: psycopg.Connection[Any], txn: Txn) -> None:
        txn_id = UUID(bytes=txn.id)
        ops = connection.execute(b"select decision from coordinator.op where id = %s", [txn_id]).fetchall()
        halves = connection.execute(
            b"select count(*), count(e.id) from coordinator.half h left join (coordinator.entry e "
            b"join coordinator.consumer_group g on g.id = e.group_id and g.name = '') on e.half_id = h.id "
            b"where h.txn_id = %s",
            [txn_id],
        ).fetchone()
        outcome = txn.heard[-1][0]
        wanted = len(txn.bodies) if outcome == COMMITTED else 0
        if ops != [(outcome,)] or halves != (wanted, wanted):
            self.wrong.append(f"{txn_id}: {txn.heard}; the store has {ops} and {halves}, not {wanted}")


def _turned(client: Client) -> bool:
    if not client.lost:
        with contextlib.suppress(Lost):
            client.turn(0)
    return not client.lost


def run(
    ends: list[End],
    url: str,
    seeds: range,
    told: Callable[[str], object] = print,
    kind: type[History] = History,
) -> Counter[str]:
    """One history for each seed; AssertionError at the first that goes wrong. What was done, counted."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        history = kind(ends, url, seed, counts)
        wrong = history.run()
        assert not wrong, f"seed {seed}:\n" + "\n".join(wrong)
        counts["histories"] += 1
        counts["transactions"] += len(history.txns)
        counts["answers"] += sum(len(txn.heard) for txn in history.txns)
        counts["committed"] += sum(txn.heard[-1][0] == COMMITTED for txn in history.txns if txn.heard)
        told(f"seed {seed}: {dict(counts)}")
    return counts


def main(kind: type[History] = History, settings: Mapping[str, str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=sys.modules[kind.__module__].__doc__)
    parser.add_argument("--histories", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, required=True, help="a short path that every user may pass through")
    chosen = parser.parse_args()
    server = EmbeddedServer(chosen.folder / "store")
    url = server.start()
    try:
        migrations.upgrade(url)
        with two_services(url, chosen.folder, settings) as ends:
            run(ends, url, range(chosen.seed, chosen.seed + chosen.histories), kind=kind)
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
