"""What the service must do, in as few words as there are: everything happens at once, in the order of the steps.

It is written from the rules (docs/reference/rules.md) and imports nothing of the service. Both drivers ask it what each
step is to be answered with, what a consumer is to get, and what the store is to hold afterwards.

What it leaves out: topics and groups beside the default one, selectors, priorities, expiry, delays, browsers, the
anonymous relay, deliveries in several frames, consumers that are sent settled deliveries, credit that stays (a consumer
takes when it says so), more than one live instance with consumers, and limits of memory. A client does not speak of a
delivery while a decision on it is under way, except to name the same transaction again (T34): the standard gives no
order for it. Nor does it settle without a state what it has given one before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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

#: What the drivers set up the service with.
QUEUES = 2
MAX_ATTEMPTS = 3
MOST_POSTS = 3
#: Messages that a consumer has refused, in memory where it could take others; fewer than a window holds.
MOST_REFUSED = 3
WINDOW = 4

ACCEPTED, RELEASED = "accepted", "released"
#: As the service says it when it settles a delivery.
KIND = {
    Outcome.ACCEPTED: "accepted",
    Outcome.REJECTED: "rejected",
    Outcome.RELEASED: "released",
    Outcome.MARKED: "modified",
    Outcome.FAILED: "modified",
    Outcome.ELSEWHERE: "modified",
    Outcome.FAILED_ELSEWHERE: "modified",
}
ILLEGAL_STATE = "amqp:illegal-state"
DECODE_ERROR = "amqp:decode-error"
RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
UNKNOWN_ID = "amqp:transaction:unknown-id"
ROLLBACK = "amqp:transaction:rollback"
TIMEOUT = "amqp:transaction:timeout"


def rejected(condition: str) -> str:
    return f"rejected {condition}"


def in_txn(answer: str) -> str:
    return f"in the transaction: {answer}"


#: ("answer", step), ("decided", step): the second one to a post (T25), ("settled", delivery): the service settles it.
Label = tuple[str, int]


@dataclass(eq=False)
class Link:
    number: int
    connection: int
    session: int
    open: bool = True
    #: of the detach, where the service sent it
    condition: str | None = None


@dataclass(eq=False)
class Control(Link):
    hasty: bool = False


@dataclass(eq=False)
class Sender(Link):
    queue: int = 0
    second: bool = False


@dataclass(eq=False)
class Receiver(Link):
    queue: int = 0
    deliveries: list[Delivery] = field(default_factory=list)


@dataclass(frozen=True)
class Stored:
    """``place``: "queue", "dead" (its letter is written or will be), or "nowhere". ``least``, ``most``: attempts.

    ``marked``: a consumer's annotation is on it.
    """

    place: str
    least: int = 0
    most: int = 0
    marked: bool = False

    def holds(self, place: str, attempts: int, marked: bool) -> bool:
        if place != "queue":
            return self.place == place
        return self.place == place and self.least <= attempts <= self.most and self.marked is marked

    def survived(self, *, sent: bool) -> Stored:
        """After a crash, which alone uses up no attempts; an entry that was not sent may count as sent (D5)."""
        if self.place != "queue":
            return self
        least = max(self.least, min(self.least + 1, MAX_ATTEMPTS - 1)) if sent else self.least
        return replace(self, least=least, most=max(self.most, min(self.most + 1, MAX_ATTEMPTS - 1)))


@dataclass(eq=False)
class Message:
    number: int
    queue: int
    stored: Stored
    #: the delivery that holds it
    delivery: Delivery | None = None
    #: receivers that it is not to come to again
    refused_by: set[int] = field(default_factory=set)
    #: before what is not known to be durable yet, and whether a consumer had it then; the transaction that changed it
    before: tuple[Stored, bool] | None = None
    changed_by: Txn | None = None


@dataclass(eq=False)
class Delivery:
    number: int
    receiver: Receiver
    message: Message
    txn: Txn | None = None
    outcome: Outcome = Outcome.NONE
    #: the last transaction that let it go, undecided
    last_txn: Txn | None = None
    #: the client says no more of it: it has settled it, or given a plain outcome
    closed: bool = False
    #: the client has said something of it
    spoken_of: bool = False
    #: by the client
    settled: bool = False
    #: the service has settled it
    done: bool = False


@dataclass(eq=False)
class Txn:
    number: int
    connection: int
    control: Control
    state: str = "active"
    posts: list[tuple[int, int]] = field(default_factory=list)
    retired: list[Delivery] = field(default_factory=list)
    unsettled: list[tuple[Sender, int]] = field(default_factory=list)
    timed_out: bool = False
    #: the condition of what made it rollback-only
    refused: str | None = None
    #: somebody else has rolled it back
    decided: bool = False
    #: what the store remembers
    op: str | None = None
    #: whether the store may not have it yet
    pending: bool = False

    @property
    def open(self) -> bool:
        return self.state in ("active", "rollback-only")

    @property
    def empty(self) -> bool:
        return not self.posts and not self.retired


@dataclass(frozen=True)
class Due:
    """An answer: one of ``allowed``; None among them: it may not come."""

    allowed: frozenset[str | None]
    link: int


class Model:
    def __init__(self) -> None:
        self.connections: set[int] = set()
        self.sessions: set[tuple[int, int]] = set()
        self.links: dict[int, Link] = {}
        self.txns: dict[int, Txn] = {}
        #: in order of commit, all that were ever committed
        self.queues: list[list[Message]] = [[] for _ in range(QUEUES)]
        self.messages: dict[int, Message] = {}
        self.due: dict[Label, Due] = {}
        #: what the last Take must give
        self.taken: list[Delivery] = []
        #: number of a message that was posted
        self.highest = 0
        self.deliveries = 0
        self._unsure: list[Message] = []
        self.step = 0
        #: steps since the instance began
        self.age = 0

    # -- which steps there can be

    def open_links(self, kind: type[Link]) -> list[Link]:
        return [link for link in self.links.values() if link.open and isinstance(link, kind)]

    def is_open(self, link: int, kind: type[Link]) -> bool:
        return link in self.links and isinstance(self.links[link], kind) and self.links[link].open

    def named(self, step: Retire) -> list[Delivery]:
        """The deliveries that the client may speak of in this step."""
        receiver = self.links[step.receiver]
        assert isinstance(receiver, Receiver)
        txn = None if step.txn is None else self.txns.get(step.txn)
        return [
            each
            for each in receiver.deliveries[step.first : step.last + 1]
            if not each.closed
            and (not each.done or (txn is not None and each.txn is txn))
            and not (each.spoken_of and step.txn is None and step.outcome is Outcome.NONE)
        ]

    def allows(self, step: Step) -> bool:
        """A shorter history may have lost what a step needs; then it is passed over."""
        match step:
            case Open():
                return step.connection not in self.connections
            case Close():
                return step.connection in self.connections
            case End():
                return (step.connection, step.session) in self.sessions
            case AttachControl() | AttachSender() | AttachReceiver():
                return step.link not in self.links and step.connection in self.connections
            case Detach():
                return self.is_open(step.link, Link)
            case Declare():
                return self.is_open(step.control, Control) and step.txn not in self.txns
            case Post():
                return (
                    self.is_open(step.sender, Sender)
                    and step.message not in self.messages
                    and self._knows(step.txn)
                    and not any(step.message == number for txn in self.txns.values() for _, number in txn.posts)
                )
            case Take():
                return self.is_open(step.receiver, Receiver)
            case Retire():
                return self.is_open(step.receiver, Receiver) and self._knows(step.txn) and self._may_retire(step)
            case Discharge():
                return self.is_open(step.control, Control) and self._knows(step.txn)
            case Overdue():
                return step.txn in self.txns and self.txns[step.txn].open
            case Decide():
                txn = self.txns.get(step.txn)
                return txn is not None and txn.open and not txn.empty and not txn.decided
            case Settle() | Crash() | Restart():
                return True

    def _may_retire(self, step: Retire) -> bool:
        named = self.named(step)
        if step.outcome in (Outcome.ELSEWHERE, Outcome.FAILED_ELSEWHERE):
            receiver = self.links[step.receiver]
            assert isinstance(receiver, Receiver)
            refused = [message for message in self.queues[receiver.queue] if message.refused_by]
            return 0 < len(named) <= MOST_REFUSED - len(refused)
        return bool(named)

    def _knows(self, txn: int | None) -> bool:
        return txn is None or txn == NEVER_DECLARED or txn in self.txns

    def waits(self, step: Step) -> bool:
        """Whether the clients wait for every answer before they do this."""
        if isinstance(step, Retire):
            return any(
                each.txn.pending for each in self.named(step) if each.txn is not None and each.txn.number != step.txn
            ) or any(each.last_txn.pending for each in self.named(step) if each.last_txn is not None)
        return isinstance(step, Take | Decide | Overdue | Settle | Restart)

    # -- steps

    def apply(self, step: Step) -> int:
        """The number of the step, by which its answer is known."""
        self.step += 1
        self.age = 0 if isinstance(step, Crash | Restart) else self.age + 1
        match step:
            case Open():
                self.connections.add(step.connection)
            case Close():
                self._close(step.connection)
            case End():
                self.sessions.discard((step.connection, step.session))
                self._lose([each for each in self._links_of(step.connection) if each.session == step.session])
            case AttachControl():
                self._attach(Control(step.link, step.connection, step.session, hasty=step.hasty))
            case AttachSender():
                self._attach(Sender(step.link, step.connection, step.session, queue=step.queue, second=step.second))
            case AttachReceiver():
                self._attach(Receiver(step.link, step.connection, step.session, queue=step.queue))
            case Detach():
                self._lose([self.links[step.link]])
            case Declare():
                self._declare(step)
            case Post():
                self.highest = max(self.highest, step.message)
                self._post(step)
            case Take():
                self._take(step)
            case Retire():
                self._retire(step)
            case Discharge():
                self._answer(step.control, self._discharge(step))
            case Overdue():
                self._overdue(self.txns[step.txn])
            case Decide():
                self.txns[step.txn].decided = True
            case Restart():
                for connection in sorted(self.connections):
                    self._close(connection)
                self._forget_times()
            case Settle() | Crash():
                pass  # settled() and crashed() follow
        return self.step

    def _attach(self, link: Link) -> None:
        self.sessions.add((link.connection, link.session))
        self.links[link.number] = link

    def _links_of(self, connection: int) -> list[Link]:
        return [link for link in self.links.values() if link.open and link.connection == connection]

    def _close(self, connection: int) -> None:
        self.connections.discard(connection)
        self.sessions = {each for each in self.sessions if each[0] != connection}
        self._lose(self._links_of(connection))

    def _answer(self, link: int, *allowed: str, label: str = "answer", number: int | None = None) -> None:
        self.due[label, number or self.step] = Due(frozenset(allowed), link)

    def _detach(self, link: Link, condition: str) -> None:
        if link.open:
            link.condition = condition
            self._lose([link])

    def _lose(self, links: list[Link]) -> None:
        for link in links:
            link.open = False
            for label, due in self.due.items():
                if due.link == link.number:
                    self.due[label] = Due(due.allowed | {None}, due.link)
        for link in links:
            if isinstance(link, Receiver):  # D5
                for each in link.deliveries:
                    if not each.done and each.txn is None:
                        self._apply(each, Outcome.FAILED)
        for link in links:
            if isinstance(link, Control):  # T13
                for txn in self.txns.values():
                    if txn.control is link and txn.open:
                        self._roll_back(txn)

    # -- transactions

    def _declare(self, step: Declare) -> None:
        control = self.links[step.control]
        assert isinstance(control, Control)
        txn = self.txns[step.txn] = Txn(step.txn, control.connection, control)
        self._answer(control.number, "declared")
        if control.hasty:
            self._overdue(txn)

    def _overdue(self, txn: Txn) -> None:
        """T14."""
        txn.timed_out = True
        self._roll_back(txn)

    def _forget_times(self) -> None:
        for txn in self.txns.values():
            txn.timed_out = False

    def _find(self, number: int | None, connection: int) -> Txn | None:
        """T12."""
        txn = None if number is None else self.txns.get(number)
        return txn if txn is not None and txn.open and txn.connection == connection else None

    def _unknown(self, number: int | None) -> str:
        """T10, T14."""
        txn = None if number is None else self.txns.get(number)
        return TIMEOUT if txn is not None and txn.timed_out else UNKNOWN_ID

    def _discharge(self, step: Discharge) -> str:
        control = self.links[step.control]
        assert isinstance(control, Control)
        txn = self._find(step.txn, control.connection)
        if txn is not None:
            txn.control = control
            if step.fail:  # T9
                self._roll_back(txn)
                return ACCEPTED
            if txn.state == "rollback-only" or txn.decided:  # T22, T23, H5
                self._roll_back(txn)
                return rejected(ROLLBACK)
            self._commit(txn)  # T8
            return ACCEPTED
        txn = self.txns.get(step.txn)
        if txn is None:
            return rejected(UNKNOWN_ID)
        if txn.timed_out and not step.fail:
            return rejected(TIMEOUT)
        if txn.open:  # T12: of another connection; the question rolls it back
            self._roll_back(txn)
        if txn.op is None:  # T11
            txn.op, txn.pending = "rollback", True
        if (txn.op == "rollback") is step.fail:  # T11
            return ACCEPTED
        return rejected(ILLEGAL_STATE if step.fail else ROLLBACK)

    def _commit(self, txn: Txn) -> None:
        txn.state = "committed"
        if not txn.empty:  # T35
            txn.op, txn.pending = "commit", True
        for queue, number in txn.posts:
            self._store(number, queue, txn)
        for each in txn.retired:
            self._apply(each, each.outcome, txn)
        self._decided(txn, ACCEPTED)

    def _roll_back(self, txn: Txn) -> None:
        txn.state = "rolled-back"
        if not txn.empty:
            txn.op, txn.pending = "rollback", True
        for each in txn.retired:
            each.txn, each.last_txn = None, txn
            if each.settled or not each.receiver.open:  # T28, D5
                self._apply(each, Outcome.FAILED, txn)
        self._decided(txn, RELEASED)

    def _decided(self, txn: Txn, answer: str) -> None:
        """T25."""
        for sender, number in txn.unsettled:
            if sender.open:
                self._answer(sender.number, answer, label="decided", number=number)
        txn.unsettled = []

    # -- messages

    def _store(self, number: int, queue: int, txn: Txn | None) -> None:
        message = Message(number, queue, Stored("nowhere"))
        self._changing(message, txn)
        message.stored = Stored("queue")
        self.messages[number] = message
        self.queues[queue].append(message)

    def _changing(self, message: Message, txn: Txn | None) -> None:
        if message.before is None:
            message.before = (message.stored, message.delivery is not None)
            message.changed_by = txn
            self._unsure.append(message)

    def _post(self, step: Post) -> None:
        sender = self.links[step.sender]
        assert isinstance(sender, Sender)
        txn = self._find(step.txn, sender.connection)
        if step.txn is not None and txn is None:  # T24
            if step.settled:
                self._detach(sender, self._unknown(step.txn))
            else:
                self._answer(sender.number, rejected(self._unknown(step.txn)))
            return
        refused = DECODE_ERROR if step.malformed else None
        if refused is None and txn is not None and len(txn.posts) == MOST_POSTS:
            refused = RESOURCE_LIMIT_EXCEEDED
        if txn is None:
            if refused is None:
                self._store(step.message, sender.queue, None)
                if not step.settled:
                    self._answer(sender.number, ACCEPTED)
            elif step.settled:
                self._detach(sender, refused)
            else:
                self._answer(sender.number, rejected(refused))
            return
        if refused is None:
            txn.posts.append((sender.queue, step.message))
            refused = txn.refused
        else:  # T22, T23
            txn.state = "rollback-only"
            txn.refused = txn.refused or refused
            self._decided(txn, RELEASED)
        if not step.settled:  # T21
            self._answer(sender.number, in_txn(ACCEPTED if refused is None else rejected(refused)))
            if sender.second and refused is None:
                txn.unsettled.append((sender, self.step))

    def _take(self, step: Take) -> None:
        receiver = self.links[step.receiver]
        assert isinstance(receiver, Receiver)
        self.taken = []
        for message in self.queues[receiver.queue]:
            free = message.stored.place == "queue" and message.delivery is None
            if free and receiver.number not in message.refused_by and len(self.taken) < step.most:
                self.deliveries += 1
                message.delivery = Delivery(self.deliveries, receiver, message)
                self.taken.append(message.delivery)
        receiver.deliveries += self.taken

    def _retire(self, step: Retire) -> None:
        for each in self.named(step):
            if not each.receiver.open:
                return
            each.spoken_of = True
            if step.txn is None:
                self._retire_plainly(each, step)
            else:
                self._retire_in(each, step)

    def _retire_plainly(self, each: Delivery, step: Retire) -> None:
        each.settled = each.settled or step.settled
        if each.txn is not None:  # it changes nothing but the settlement
            each.closed = each.settled
            return
        if step.outcome is Outcome.NONE and not step.settled:
            return
        each.closed = True
        self._apply(each, Outcome.RELEASED if step.outcome is Outcome.NONE else step.outcome)

    def _retire_in(self, each: Delivery, step: Retire) -> None:
        each.settled = each.closed = each.settled or step.settled
        txn = self._find(step.txn, each.receiver.connection)
        if each.done:  # T34
            due = self.due.get(("settled", each.number))
            if due is not None and step.settled:  # then the service need not
                self.due["settled", each.number] = Due(due.allowed | {None}, due.link)
            return
        if txn is None:
            part_of = each.txn or each.last_txn
            known = part_of is not None and part_of.number == step.txn
            if each.txn is None and step.settled:
                self._apply(each, Outcome.FAILED)
            if not known:  # T30
                self._detach(each.receiver, self._unknown(step.txn))
            return
        if each.txn is not None and each.txn is not txn:  # T29
            self._detach(txn.control, ROLLBACK)
            return
        if each.txn is None:
            each.txn = txn
            txn.retired.append(each)
        each.outcome = Outcome.FAILED if step.outcome is Outcome.NONE else step.outcome

    def _apply(self, each: Delivery, outcome: Outcome, txn: Txn | None = None) -> None:
        """P11."""
        message = each.message
        self._changing(message, txn)
        each.done = True
        message.delivery = None
        if each.receiver.open and not each.settled:
            self._answer(each.receiver.number, KIND[outcome], label="settled", number=each.number)
        if outcome is Outcome.ACCEPTED:
            message.stored = Stored("nowhere")
        elif outcome is Outcome.REJECTED:
            message.stored = Stored("dead")
        elif outcome in (Outcome.FAILED, Outcome.FAILED_ELSEWHERE):
            # exact by now: a delivery has shown it
            failures = message.stored.most + 1
            survives = failures < MAX_ATTEMPTS
            message.stored = replace(message.stored, least=failures, most=failures) if survives else Stored("dead")
        elif outcome is Outcome.MARKED:
            message.stored = replace(message.stored, marked=True)
        if outcome in (Outcome.ELSEWHERE, Outcome.FAILED_ELSEWHERE):
            message.refused_by.add(each.receiver.number)

    # -- what is known of the store

    def seen(self, delivery: Delivery, count: int) -> None:
        """A delivery came with this delivery-count."""
        delivery.message.stored = replace(delivery.message.stored, least=count, most=count)

    def settled(self) -> None:
        """Every answer has come: all that was decided is in the store."""
        self.due.clear()
        for message in self._unsure:
            message.before = message.changed_by = None
        self._unsure.clear()
        for txn in self.txns.values():
            txn.pending = False

    def crashed(self, ops: dict[int, str], found: dict[int, tuple[str, int, bool]]) -> list[str]:
        """What the store holds after it, by transaction and by message (place, attempts, mark); what of it cannot be.

        What was under way may have been done or not; a transaction in full or not at all (H13).
        """
        wrong = []
        for txn in self.txns.values():
            op = ops.get(txn.number)
            allowed = {txn.op, None} if txn.pending else {"rollback" if txn.decided else txn.op}
            if op not in allowed:
                wrong.append(f"transaction {txn.number}: decided {op}, not one of {allowed}")
            if txn.open or (txn.pending and op is None):
                txn.state = "rolled-back"
            txn.op = op
        for message in list(self.messages.values()):
            states = []
            changed_by = message.changed_by
            if message.before is None or changed_by is None or changed_by.op is not None:
                states.append(message.stored.survived(sent=message.delivery is not None))
            if message.before is not None and (changed_by is None or changed_by.op is None):
                states.append(message.before[0].survived(sent=message.before[1]))
            place, attempts, marked = found.get(message.number, ("nowhere", 0, False))
            if not any(state.holds(place, attempts, marked) for state in states):
                wrong.append(f"message {message.number}: {(place, attempts, marked)}, not one of {states}")
            message.stored = Stored(place, attempts, attempts, marked)
            message.delivery = None
        wrong += [f"message {number}: it was never committed" for number in found.keys() - self.messages.keys()]
        for link in self.links.values():
            if isinstance(link, Receiver):
                for each in link.deliveries:
                    each.done = each.closed = True
        for connection in sorted(self.connections):
            self._close(connection)
        self._forget_times()
        self.settled()
        return wrong

    def differences(self, ops: dict[int, str], queues: list[list[tuple[int, int, bool]]], dead: set[int]) -> list[str]:
        """What the settled store must hold, and does not: ops, (message, attempts, mark) in order, dead letters."""
        wrong = []
        for txn in self.txns.values():
            op = "rollback" if txn.decided else txn.op
            if ops.get(txn.number) != op:
                wrong.append(f"transaction {txn.number}: the store says {ops.get(txn.number)}, not {op}")
        for number, queue in enumerate(self.queues):
            wanted = [message for message in queue if message.stored.place == "queue"]
            found = queues[number]
            if [each.number for each in wanted] != [each for each, _, _ in found] or not all(
                message.stored.holds("queue", attempts, marked)
                for message, (_, attempts, marked) in zip(wanted, found, strict=True)
            ):
                wrong.append(f"queue {number}: {found}, not {[(each.number, each.stored) for each in wanted]}")
        wanted_dead = {each.number for each in self.messages.values() if each.stored.place == "dead"}
        if dead != wanted_dead:
            wrong.append(f"dead letters: {sorted(dead)}, not {sorted(wanted_dead)}")
        return wrong
