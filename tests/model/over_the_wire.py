"""Level two: a history through the wire, against a service that runs; its worker is killed where the history says.

One file because it is one end of the wire: how the answer to a step is heard is beside what the step sends.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from store.embedded.running import running_url
from tests.fix_service import Service
from tests.model import truth
from tests.model.driver import Driver
from tests.model.state import ADDRESSES, MOST_CHECKS, MOST_POSTS, TIMEOUT, WINDOW, Label, Receiver, in_txn, rejected
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
    Outcome,
    Overdue,
    Post,
    Restart,
    Retire,
    Settle,
    Step,
    Take,
)
from tests.wire import frames, links
from tests.wire.frames import (
    Accepted,
    Declared,
    Disposition,
    Error,
    Modified,
    Rejected,
    Released,
    State,
    TransactionalState,
)
from tests.wire.messages import data
from tests.wire.peer import Peer, Session
from tests.wire.types import Int, Symbol, UInt

#: As in :data:`tests.model.in_process.SETTINGS`, by their names.
SETTINGS = {
    "transaction.max_messages": str(MOST_POSTS),
    "bounds.register_after_seconds": "3600",
    "check.immunity_seconds": "0",
    "check.interval_seconds": "86400",
    "check.most": str(MOST_CHECKS),
    "bounds.window_messages": str(WINDOW),
    "addresses.patterns": json.dumps(truth.patterns()),
}

_CHECKED: dict[bool | None, State] = {True: Accepted(), False: Rejected(), None: Released()}

OUTCOMES: dict[Outcome, State | None] = {
    Outcome.NONE: None,
    Outcome.ACCEPTED: Accepted(),
    Outcome.REJECTED: Rejected(error=Error(condition="amqp:internal-error", description="by the consumer")),
    Outcome.RELEASED: Released(),
    Outcome.MARKED: Modified(message_annotations={truth.MARK: UInt(1)}),
    Outcome.FAILED: Modified(delivery_failed=True),
    Outcome.ELSEWHERE: Modified(undeliverable_here=True),
    Outcome.FAILED_ELSEWHERE: Modified(delivery_failed=True, undeliverable_here=True),
    Outcome.LATER: Modified(message_annotations={"x-opt-delay-level": Int(18)}),
    Outcome.FAILED_LATER: Modified(delivery_failed=True, message_annotations={"x-opt-delay-level": Int(18)}),
    Outcome.GIVEN_UP: Modified(message_annotations={"x-opt-delay-level": Int(-1)}),
}

_HASTE: dict[Symbol, object] = {Symbol("coordinator:timeout-ms"): UInt(1)}
_GROUP = Symbol("coordinator:producer-group")


def answer_of(state: Any) -> str:
    """A delivery state in the model's words."""
    match state:
        case Declared():
            return "declared"
        case Accepted():
            return "accepted"
        case Released():
            return "released"
        case Modified():
            return "modified"
        case Rejected(error=Error(condition=condition)):
            return rejected(str(condition))
        case Rejected():
            return "rejected"
        case TransactionalState(outcome=outcome):
            return in_txn(answer_of(outcome))
    return repr(state)


class OverTheWire(Driver):
    def __init__(self, service: Service) -> None:
        self.service = service
        self._scratch, self._fences = "scratch", "fences"
        self._looked = 0
        super().__init__(running_url(service.data_dir))
        self._worker = self._worker_pid(0)
        self._observe()

    def _forget(self) -> None:
        super()._forget()
        self.peers: dict[int, Peer] = {}
        #: a session of each connection for questions alone
        self.aside: dict[int, Session] = {}
        self.sessions: dict[tuple[int, int], Session] = {}
        self.links: dict[int, links.Link] = {}
        #: what came on each receiver
        self.deliveries: dict[int, list[links.Delivery]] = {}
        #: posts, declares and discharges: their sender and delivery id
        self._asked: dict[Label, tuple[links.Sender, int]] = {}
        #: those of them that have their first answer
        self._answered: set[Label] = set()
        self._last = -1
        self._named: set[int] = set()

    def close(self) -> None:
        for each in self.peers.values():
            each.close_socket()
        self._observer.close_socket()
        super().close()

    def mend(self) -> None:
        for each in self.peers.values():
            each.close_socket()
        self._observer.close_socket()
        self._observe()

    # -- the service

    def _worker_pid(self, since: int) -> int:
        return int(self.service.wait_for(lambda line: line.get("event") == "worker ready", since=since)["pid"])

    def _observe(self) -> None:
        """A connection that no history touches, to ask what became of things."""
        self._observer = Peer(self.service.port)
        self._observer.open()
        self._observing = self._observer.begin()
        self._asking = self._observing.control()
        self._fence = self._observing.sender(self._scratch)

    def _crash(self) -> None:
        since = len(self.service.log_lines())
        os.kill(self._worker, signal.SIGKILL)
        self._worker = self._worker_pid(since)
        for each in [*self.peers.values(), self._observer]:
            each.close_socket()
        self.peers.clear()
        self.aside.clear()
        self.sessions.clear()
        # what was heard before the end and not compared yet says nothing of what follows
        self._asked.clear()
        for found in self.deliveries.values():
            found.clear()
        self._last = -1
        self._observe()

    # -- steps

    def txn_id(self, number: int) -> bytes:
        return bytes(16) if number == NEVER_DECLARED else self.txn_ids[number]

    def perform(self, step: Step, label: Label, places: list[int]) -> None:
        connection = self._connection_of(step)
        if connection != self._last:  # one connection is not ordered before another but by an answer
            self._sync(self._last)
            self._last = connection
        match step:
            case Open():
                self._open(step.connection)
            case Close():
                self._close(step)
            case End():
                self.sessions.pop((step.connection, step.session)).end()
            case AttachControl():
                properties = dict(_HASTE) if step.hasty else {}
                if step.group is not None:
                    properties[_GROUP] = truth.producer_group(self.history, step.group)
                self.links[step.link] = self._session(step).control(properties=properties or None)
            case AttachSender():
                self.links[step.link] = self._sender(step)
            case AttachReceiver():
                self.links[step.link] = self._session(step).receiver(truth.source(self.history, step.queue))
                self.deliveries[step.link] = []
            case AttachListener():
                name = truth.address(self.history, step.address)
                self.links[step.link] = self._session(step).receiver(f"{name}::*")
                self.deliveries[step.link] = []
            case Detach():
                self.links[step.link].detach(closed=step.closed)
            case Declare():
                self._declare(step, label)
            case Post():
                self._post(step, label)
            case Take():
                self._take(step)
            case Hear():
                self._hear_all(step)
            case Retire():
                self._retire(step, places)
            case Discharge():
                control = self.links[step.control]
                assert isinstance(control, links.Control)
                body = frames.Discharge(txn_id=self.txn_id(step.txn), fail=step.fail)
                self._asked[label] = (control, control.request(body))
            case Decide():
                self.decide(step)
            case Check():
                self._check_group(step)
            case Crash():
                self._crash()
                self.survey()
            case Settle():
                pass
            case Overdue() | Restart():
                raise AssertionError(f"not through the wire: {step}")

    def _connection_of(self, step: Step) -> int:
        match step:
            case Open() | Close() | End() | AttachControl() | AttachSender() | AttachReceiver() | AttachListener():
                return step.connection
            case Detach():
                return self.model.links[step.link].connection
            case Declare() | Discharge():
                return self.model.links[step.control].connection
            case Post():
                return self.model.links[step.sender].connection
            case Take() | Retire():
                return self.model.links[step.receiver].connection
            case Hear():
                return self.model.links[step.listener].connection
        return -1

    def _sync(self, connection: int) -> None:
        """What was sent on it the service has read."""
        if connection in self.aside:
            self.aside[connection].sync()
        self._named.clear()

    def _open(self, connection: int) -> None:
        found = self.peers[connection] = Peer(self.service.port)
        found.open(idle_time_out=100)  # empty frames between all others
        self.aside[connection] = found.begin()

    def _close(self, step: Close) -> None:
        for there in [each for each in self.sessions if each[0] == step.connection]:
            del self.sessions[there]
        del self.aside[step.connection]
        found = self.peers.pop(step.connection)
        if not step.abrupt:
            found.close()
            return
        found.close_socket()
        # the end of the stream is there before what is sent now: after two turns it was read
        self._observing.sync()
        self._observing.sync()

    def _session(self, step: AttachControl | AttachSender | AttachReceiver | AttachListener) -> Session:
        there = (step.connection, step.session)
        if there not in self.sessions:
            self.sessions[there] = self.peers[step.connection].begin()
        return self.sessions[there]

    def _sender(self, step: AttachSender) -> links.Sender:
        session = self._session(step)
        names = [truth.address(self.history, each) for each in range(ADDRESSES)]
        if step.queue is not None:
            return session.sender(names[step.queue], rcv_settle_mode=int(step.second))
        for name in names:  # the relay has none to look up
            session.sender(name).detach()
        return session.sender(frames.Target(), rcv_settle_mode=int(step.second))

    def _declare(self, step: Declare, label: Label) -> None:
        control = self.links[step.control]
        assert isinstance(control, links.Control)
        self.txn_ids[step.txn] = control.declare()
        self.say(label, "declared")
        link = self.model.links[step.control]
        if getattr(link, "hasty", False):
            # what is refused leaves nothing in it
            sender = self.aside[link.connection].sender(self._scratch)
            while answer_of(sender.outcome(truth.MALFORMED, txn=self.txn_ids[step.txn])) != rejected(TIMEOUT):
                time.sleep(0.02)
            sender.detach()

    def _post(self, step: Post, label: Label) -> None:
        sender = self.links[step.sender]
        assert isinstance(sender, links.Sender)
        number = sender.post(
            truth.octets(self.history, step),
            txn=None if step.txn is None else self.txn_id(step.txn),
            settled=step.settled,
        )
        if not step.settled:
            self._asked[label] = (sender, number)

    def _check_group(self, step: Check) -> None:
        name = truth.producer_group(self.history, step.group)
        truth.make_due(self.truth, name)
        checker = self._observing.receiver(f"$check/{name}")
        came = checker.drain(50)
        told = [each.message.delivery_annotations for each in came]
        self.checks_came(
            [
                (
                    each["x-opt-txn-id"],
                    each["x-opt-check-count"],
                    int(check.body),
                    each["x-opt-half-count"],
                    each["x-opt-retired-count"],
                )
                for each, check in zip(told, came, strict=True)
            ]
        )
        for check in came:
            check.disposition(_CHECKED[step.commit], settled=False)
            assert check.settlement().state == _CHECKED[step.commit]
        checker.detach()

    def hear_notices(self) -> None:
        """They come in the order of commits, and what they make the service ask is asked in their order."""
        control = self._observing.control(properties={_GROUP: "fences"})
        fences = self._observing.receiver(self._fences)
        txn_id = control.declare()
        assert answer_of(self._observing.sender(self._fences).outcome(data(b"fence"), txn=txn_id)) == in_txn("accepted")
        truth.decide(self.truth, txn_id, commit=True, checkable=True)
        fences.take().disposition(Accepted())
        assert answer_of(self._asking.discharge(txn_id, fail=False)) == "accepted"
        fences.detach()
        control.detach()

    def operate(self, command: Callable[[], None]) -> None:
        command()
        self.hear_notices()

    def hear_promoted(self) -> None:
        """A question on the connection of the schedule is answered after those before it."""
        self._looked += 1
        self._observing.sender(f"{self._scratch}-{self._looked}").detach()

    def _take(self, step: Take) -> None:
        receiver = self.links[step.receiver]
        assert isinstance(receiver, links.Receiver)
        came = receiver.drain(max(step.most, len(self.model.taken)))
        self.deliveries[step.receiver] += came
        self.came(
            step.receiver, [(int(each.body), each.count, truth.MARK in each.message.annotations) for each in came]
        )
        taker = self.model.links[step.receiver]
        assert isinstance(taker, Receiver)
        tags = truth.tags(self.truth, self.history, taker.queue)
        assert [each.tag for each in came] == [tags[int(each.body)] for each in came]

    def _hear_all(self, step: Hear) -> None:
        listener = self.links[step.listener]
        assert isinstance(listener, links.Receiver)
        came = listener.drain(len(self.model.heard) + 1)
        self.listened(step.listener, [int(each.body) for each in came])
        for each in came:
            each.disposition(OUTCOMES[step.outcome])
        self._sync(self._last)

    def _retire(self, step: Retire, places: list[int]) -> None:
        """As few dispositions as name these deliveries and no others."""
        numbers = {self.deliveries[step.receiver][place].id for place in places}
        if self._named & numbers:  # a client that does not wait in between has said the last thing only
            self._sync(self._last)
        self._named |= numbers
        outcome = OUTCOMES[step.outcome]
        state = outcome if step.txn is None else TransactionalState(txn_id=self.txn_id(step.txn), outcome=outcome)
        session = self.links[step.receiver].session
        for first in sorted(numbers):
            if first - 1 in numbers:
                continue
            last = first
            while last + 1 in numbers:
                last += 1
            session.send(Disposition(role=frames.RECEIVER, first=first, last=last, settled=step.settled, state=state))

    # -- answers

    def hears(self, link: int) -> bool:
        return self.links[link].session in self.sessions.values()

    def wait(self) -> None:
        for connection in list(self.aside):
            self._sync(connection)
        self._last = -1
        for label, (sender, number) in self._asked.items():
            due = self.model.due.get(label)
            if due is not None and None not in due.allowed:
                self._hear(label, sender, number)
        # T11: a decision is remembered, and a question waits for it, and for those that the service has asked before
        for txn in self.model.txns.values():
            if (txn.pending or txn.others) and not txn.open:
                found = answer_of(self._asking.discharge(self.txn_ids[txn.number], fail=txn.op == "rollback"))
                assert found == "accepted", f"transaction {txn.number}, decided {txn.op}, is answered {found}"
        # settlements go to the store at the end of a turn: after the first of these at the latest
        for _ in range(2):
            assert self._fence.outcome(data(b"fence")) == Accepted()
        for connection in list(self.aside):
            self._sync(connection)
        self._collect()

    def _hear(self, label: Label, sender: links.Sender, number: int) -> None:
        answers = sender.session.answers[number]
        while not answers:
            if sender.detached is not None:
                return
            sender.session.peer.step()
        self._first_or_second(label, answers.popleft())

    def _first_or_second(self, label: Label, answer: Disposition) -> None:
        self.say(("decided", label[1]) if label in self._answered else label, answer_of(answer.state))
        self._answered.add(label)

    def _collect(self) -> None:
        """What has come beside."""
        for label, (sender, number) in list(self._asked.items()):
            link = self.model.links[next(each for each, found in self.links.items() if found is sender)]
            answers = sender.session.answers[number]
            while answers:
                answer = answers.popleft()
                # the engine lets go of what a link that went has left open, and says nothing new of it
                if link.open or (answer.state is not None and label not in self._answered):
                    self._first_or_second(label, answer)
            another = any((link, label[1]) in txn.unsettled for txn in self.model.txns.values())  # T25
            if not link.open or not another:
                del self._asked[label]
        for number, end in self.links.items():
            if isinstance(end, links.Receiver):
                self._settlements(number, end)
            error = None if end.detached is None else end.detached.error
            if error is not None and number not in self.detached:
                self.detached[number] = str(error.condition)
                if end.session in self.sessions.values():
                    end.session.send(frames.Detach(handle=end.handle, closed=True))

    def _settlements(self, number: int, receiver: links.Receiver) -> None:
        wanted = self.model.links[number]
        for place, delivery in enumerate(self.deliveries[number]):
            found = receiver.session.settlements[delivery.id]
            while found:
                disposition = found.popleft()
                held = isinstance(disposition.state, TransactionalState)  # H20
                if (disposition.state is None or held) and not wanted.open:  # the engine lets go of it with the link
                    continue
                if held and not disposition.settled:
                    continue
                assert disposition.settled, disposition
                self.say(("settled", self.number_of(number, place)), answer_of(disposition.state))
