"""What the service must do, in as few words as there are: everything happens at once, in the order of the steps.

It is written from the rules (docs/reference/rules.md) and imports nothing of the service. Both drivers ask it what each
step is to be answered with, what a consumer is to get, and what the store is to hold afterwards.

What it leaves out: topics, groups that come and go but those of broadcasts, selectors,
priorities, expiry, browsers, look-ups of the anonymous relay (its addresses are known), deliveries in several frames,
consumers that get settled deliveries, credit that stays (a consumer takes when it says so), more than one live instance
with consumers, and limits of memory. Retention (H16) drops whole days: all of a history is of one, which becomes old at
once (tests/integration/test_retention.py makes days of its own). In which order message groups of a fifo address come
is open.
A client does not speak of a delivery while a decision on it is under way, except to name the same transaction again
(T34): the standard gives no order for it. Nor does it settle without a state what it has given one before. It does not
leave, or say more of a checkable transaction, while its discharge is under way.

One file because it is one state machine, which is read against the rules from top to bottom.
"""

from __future__ import annotations

from dataclasses import replace

from tests.model.state import (
    ACCEPTED,
    DECODE_ERROR,
    FAILURES,
    FIFO,
    GROUPS,
    ILLEGAL_STATE,
    INTERNAL_ERROR,
    KIND,
    LATER_HOURS,
    MOST_POSTS,
    POLICIES,
    PRECONDITION_FAILED,
    QUEUE_KINDS,
    QUEUES,
    REFUSALS,
    RELEASED,
    RESOURCE_LIMIT_EXCEEDED,
    ROLLBACK,
    TIMEOUT,
    UNKNOWN_ID,
    WHY_REJECTED,
    Control,
    Delivery,
    Departure,
    Due,
    Label,
    Letter,
    Link,
    Listener,
    Message,
    Receiver,
    Sender,
    Stored,
    Txn,
    in_txn,
    rejected,
)
from tests.model.steps import (
    AttachControl,
    AttachListener,
    AttachReceiver,
    AttachSender,
    Check,
    Close,
    ComeDue,
    Crash,
    Decide,
    Declare,
    Detach,
    Discharge,
    Drop,
    End,
    Exhaust,
    Hear,
    Open,
    Outcome,
    Overdue,
    Post,
    Replay,
    Restart,
    Retire,
    Rob,
    Seek,
    Settle,
    Step,
    Take,
)


class Model:
    def __init__(self) -> None:
        self.connections: set[int] = set()
        self.sessions: set[tuple[int, int]] = set()
        self.links: dict[int, Link] = {}
        self.txns: dict[int, Txn] = {}
        #: in order of commit, all that were ever committed
        self.queues: list[list[Message]] = [[] for _ in range(QUEUES)]
        #: by queue and number
        self.messages: dict[tuple[int, int], Message] = {}
        #: posts of messages, by number
        self.posts: dict[int, Post] = {}
        self.due: dict[Label, Due] = {}
        #: posts whose senders the service keeps waiting no more, and has nothing to tell
        self.let_go: dict[int, Sender] = {}
        #: what the last Take must give
        self.taken: list[Delivery] = []
        #: what the last Hear must give
        self.heard: list[int] = []
        #: in any order
        self.any_order = False
        #: all that it could give, were there room
        self.there: list[Message] = []
        #: queues to which messages came back through the store: what is in memory may come before them
        self.came_back: set[int] = set()
        #: what the last Check must give: of each transaction its number, the message shown, and how many there are that
        #: it has posted, and retired
        self.checked: list[tuple[int, int, int, int, int]] = []
        #: copies of what no checker has answered (H10), by transaction: its group, checks, address and number of each
        self.parked: dict[int, tuple[int, int, list[tuple[int, int]]]] = {}
        #: of the queue that a Seek moves, the order of its messages in the store; empty: as they were posted
        self.places: dict[int, int] = {}
        #: the client waits for what comes of the last step: the store refuses work of a transaction that another has
        #: decided; or a later outcome takes the place of one that the store has
        self.in_doubt = False
        #: the last step decided a checkable transaction that is not its connection's
        self.decided_elsewhere = False
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

    def plain(self, receiver: int, place: int) -> bool:
        """Whether the client has said nothing of this delivery, of a queue without message groups."""
        link = self.links[receiver]
        assert isinstance(link, Receiver)
        if link.queue == FIFO or place >= len(link.deliveries):
            return False
        found = link.deliveries[place]
        return not (found.done or found.closed or found.spoken_of) and found.txn is None

    def listeners(self, address: int | None = None) -> list[Listener]:
        """Those that are there; of one address, or of all."""
        found = [link for link in self.open_links(Listener) if isinstance(link, Listener)]
        return [link for link in found if address in (None, link.address)]

    # -- steps

    def apply(self, step: Step) -> int:
        """The number of the step, by which its answer is known."""
        self.step += 1
        self.decided_elsewhere = isinstance(step, Check | Decide | Exhaust)
        self.age = 0 if isinstance(step, Crash | Restart) else self.age + 1
        match step:
            case Open():
                self.connections.add(step.connection)
            case Close():
                self._close(step.connection, Departure.LOST if step.abrupt else Departure.LEFT)
            case End():
                self.sessions.discard((step.connection, step.session))
                self._lose(self._links_of(step.connection, step.session), Departure.LEFT)
            case AttachControl():
                self._attach(Control(step.link, step.connection, step.session, hasty=step.hasty, group=step.group))
            case AttachSender():
                self._attach(Sender(step.link, step.connection, step.session, queue=step.queue, second=step.second))
            case AttachReceiver():
                self._attach(Receiver(step.link, step.connection, step.session, queue=step.queue))
            case AttachListener():
                self._attach(Listener(step.link, step.connection, step.session, address=step.address))
            case Detach():
                self._lose([self.links[step.link]], Departure.LEFT)
            case Declare():
                self._declare(step)
            case Post():
                self.highest = max(self.highest, step.message)
                self._post(step)
            case ComeDue():
                self._come_due()
            case Take():
                self._take(step)
            case Hear():
                listener = self.links[step.listener]
                assert isinstance(listener, Listener)
                self.heard, listener.waiting = listener.waiting, []
            case Retire() | Rob():
                self._retire(step)
            case Discharge():
                self._answer(step.control, self._discharge(step))
            case Overdue():
                self._overdue(self.txns[step.txn])
            case Decide():
                self._decide(self.txns[step.txn], commit=step.commit)
                self.txns[step.txn].others = True
            case Check():
                self._check(step)
            case Exhaust():
                self._exhaust()
            case Replay():
                self._replay(step.queue)
            case Seek():
                self._seek(step)
            case Drop():
                self._drop(kept=step.kept)
            case Restart():
                self.end_all(Departure.ENDED)
            case Settle() | Crash():
                pass  # Model.settled and verdicts.crashed follow
        return self.step

    def _attach(self, link: Link) -> None:
        self.sessions.add((link.connection, link.session))
        self.links[link.number] = link

    def _links_of(self, connection: int, session: int | None = None) -> list[Link]:
        """Those of all its sessions, or of one."""
        found = [link for link in self.links.values() if link.open and link.connection == connection]
        return [link for link in found if session in (None, link.session)]

    def _close(self, connection: int, departure: Departure) -> None:
        self.connections.discard(connection)
        self.sessions = {each for each in self.sessions if each[0] != connection}
        self._lose(self._links_of(connection), departure)

    def _answer(self, link: int, *allowed: str, label: str = "answer", number: int | None = None) -> None:
        self.due[label, number or self.step] = Due(frozenset(allowed), link)

    def _detach(self, link: Link, condition: str) -> None:
        if link.open:
            link.condition = condition
            self._lose([link], Departure.ENDED)

    def _lose(self, links: list[Link], departure: Departure) -> None:
        for link in links:
            link.open = False
            for label, due in self.due.items():
                if due.link == link.number:
                    self.due[label] = Due(due.allowed | {None}, due.link)
        for link in links:
            if isinstance(link, Receiver):  # D5
                undecided = [each for each in link.deliveries if not each.done and each.txn is None]
                first = others = Outcome.LOST if departure is Departure.LOST else Outcome.RETURNED
                if departure is Departure.LEFT and not (link.has_decided or link.transactional):
                    first = Outcome.LOST
                for each in undecided:
                    self._apply(each, first if each is undecided[0] else others)
        for link in links:
            if isinstance(link, Control):  # T13
                for txn in self.txns.values():
                    if txn.control is link and txn.open:
                        self._leave(txn, fails=departure is not Departure.ENDED)

    # -- transactions

    def _declare(self, step: Declare) -> None:
        control = self.links[step.control]
        assert isinstance(control, Control)
        txn = self.txns[step.txn] = Txn(step.txn, control.connection, control, group=control.group)
        self._answer(control.number, "declared")
        if control.hasty:
            self._overdue(txn)

    def _overdue(self, txn: Txn) -> None:
        """T14, H7."""
        if txn.group is not None and txn.state == "active":
            txn.overdue = True
            return
        txn.timed_out = True
        self._roll_back(txn)

    def _leave(self, txn: Txn, *, fails: bool) -> None:
        """Its control link is gone (T13); a checkable transaction stays as it is (H2, H13). ``fails``: what it has
        retired (D5).
        """
        if txn.group is None or txn.state == "rollback-only":
            self._roll_back(txn, fails=fails)
            return
        txn.state = "left"
        for each in txn.retired:
            if each.receiver.open and not each.settled:
                self._answer(each.receiver.number, in_txn(KIND[each.outcome]), label="settled", number=each.number)
            each.done = each.closed = True
        self.let_go |= {number: sender for sender, number in txn.unsettled if sender.open}
        txn.unsettled = []

    def _decide(self, txn: Txn, *, commit: bool) -> None:
        """Not by its owner (H5)."""
        if not txn.entered:
            txn.decided = True
            return
        txn.op = "commit" if commit else "rollback"
        if not commit:
            self._give_back(txn)
            return
        for queue, number in txn.posts:
            self._store(number, queue, txn)
        for each in txn.retired:
            self._apply(each, each.outcome, txn)
        txn.retired = []

    def _check(self, step: Check) -> None:
        """H7 to H9."""
        due = [txn for txn in self.txns.values() if txn.due and txn.group == step.group]
        for txn in due:
            txn.checks += 1
        self.checked = [(txn.number, txn.checks, self._shown(txn), len(txn.posts), len(txn.retired)) for txn in due]
        if step.commit is not None:
            for txn in due:
                self._decide(txn, commit=step.commit)
                txn.others = True

    def _exhaust(self) -> None:
        """H10."""
        for txn in [txn for txn in self.txns.values() if txn.exhausted]:
            assert txn.group is not None
            self.parked[txn.number] = (txn.group, txn.checks, sorted(txn.posts))
            self._decide(txn, commit=False)
            txn.others = True

    def end_all(self, departure: Departure) -> None:
        """The instance ends, and with it every connection."""
        for connection in sorted(self.connections):
            self._close(connection, departure)
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
            if txn.entered and txn.op is not None:
                return self._too_late(txn, step.fail)
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
        if txn.entered and txn.op is None and txn.state in ("active", "left"):  # H20
            if control.group != txn.group:
                return rejected(UNKNOWN_ID)
            self._decide(txn, commit=not step.fail)
            txn.pending = self.decided_elsewhere = True
            return ACCEPTED
        if txn.open and not (txn.entered and txn.state == "active"):  # T12: the question of another connection decides
            self._roll_back(txn)
        if txn.op is None:  # T11
            txn.op, txn.pending = "rollback", True
        if (txn.op == "rollback") is step.fail:  # T11
            return ACCEPTED
        return rejected(ILLEGAL_STATE if step.fail else ROLLBACK)

    @staticmethod
    def _shown(txn: Txn) -> int:
        return txn.posts[0][1] if txn.posts else min(each.message.number for each in txn.retired)

    def _too_late(self, txn: Txn, fail: bool) -> str:
        """A checkable transaction is decided already, and not by its owner; or it can only roll back (T22)."""
        txn.pending = True
        refused = txn.state == "rollback-only"
        txn.state = "committed" if txn.op == "commit" else "rolled-back"
        self._give_back(txn)
        self._decided(txn, ACCEPTED if txn.op == "commit" else RELEASED)
        if txn.op == "commit":
            return rejected(ILLEGAL_STATE) if fail or refused else ACCEPTED
        return ACCEPTED if fail else rejected(ROLLBACK)

    def _commit(self, txn: Txn) -> None:
        txn.state = "committed"
        if not txn.empty:  # T35
            txn.op, txn.pending = "commit", True
        for queue, number in txn.posts:
            self._store(number, queue, txn)
        for each in txn.retired:
            self._apply(each, each.outcome, txn)
        self._decided(txn, ACCEPTED)

    def _roll_back(self, txn: Txn, *, fails: bool = True) -> None:
        txn.state = "rolled-back"
        if not txn.empty and not (txn.entered and txn.op is not None):
            txn.op, txn.pending = "rollback", True
        self._give_back(txn, fails=fails)
        self._decided(txn, RELEASED)

    def _give_back(self, txn: Txn, *, fails: bool = True) -> None:
        for each in txn.retired:
            each.txn, each.last_txn = None, txn
            if each.done or not each.receiver.open:  # D5
                self._apply(each, Outcome.LOST if fails else Outcome.RETURNED, txn)
            elif each.settled:  # T28
                self._apply(each, Outcome.FAILED if fails else Outcome.RETURNED, txn)
        txn.giving_back, txn.retired = txn.retired, []

    def _decided(self, txn: Txn, answer: str) -> None:
        """T25."""
        for sender, number in txn.unsettled:
            if sender.open:
                self._answer(sender.number, answer, label="decided", number=number)
        txn.unsettled = []

    # -- messages

    def _store(self, number: int, address: int, txn: Txn | None) -> None:
        """Each group gets it (D1)."""
        post = self.posts[number]
        stored = Stored("later", wait=LATER_HOURS) if post.later else Stored("queue")
        for listener in self.listeners(address):
            (listener.later if post.later else listener.waiting).append(number)
        for queue, policy in enumerate(POLICIES):
            if policy.address == address:
                message = Message(number, queue, Stored("nowhere"), key=post.key)
                message.txn = None if txn is None else txn.number
                self._changing(message, txn)
                message.stored = stored
                self.messages[queue, number] = message
                self.queues[queue].append(message)

    def waiting(self, queue: int) -> list[Message]:
        """For their time (D2, D7)."""
        return [message for message in self.queues[queue] if message.stored.place == "later"]

    def _come_due(self) -> None:
        """Each comes behind all others; but where its message group has waited with it (D3)."""
        for listener in self.listeners():
            listener.waiting += listener.later
            listener.later = []
        for number, queue in enumerate(self.queues):
            due = self.waiting(number)
            last = [message for message in due if not (number == FIFO and message.retried)]
            for message in due:
                message.stored = replace(message.stored, place="queue", wait=0)
            self.queues[number] = [message for message in queue if message not in last] + last

    def _replay(self, queue: int) -> None:
        """D4: behind all others, with no failed attempts."""
        again = [message for message in self.queues[queue] if message.stored.place == "dead"]
        for message in again:
            message.replays += 1
            message.replay_marked = message.letter_marked
            message.refused_by.clear()
            message.dropped = False
            message.stored = Stored("queue", marked=message.replay_marked)
        self.queues[queue] = [message for message in self.queues[queue] if message not in again] + again

    def _seek(self, step: Seek) -> None:
        """H17. Back: what the group had and was done with comes again, if it is kept; forth: what waits is skipped, but
        for what was posted to come later.
        """
        place = self.places.get(step.message, step.message)
        for message in self.queues[step.queue]:
            stored, behind = message.stored, self.places.get(message.number, message.number) >= place
            if step.back and behind and stored.place == "nowhere" and not message.dropped:
                message.stored = Stored("queue", marked=message.replay_marked)
            waits = stored.place == "queue" or (stored.place == "later" and stored.least > 0)
            if not step.back and not behind and waits and message.delivery is None:
                message.stored = Stored("nowhere")
        self.came_back.add(step.queue)

    def _drop(self, *, kept: bool) -> None:
        """H16. What no group and no listener waits for goes. A letter that was replayed is a message of its own."""
        for message in () if kept else self.messages.values():
            shared = [
                each
                for each in self.messages.values()
                if each.number == message.number and POLICIES[each.queue].address == POLICIES[message.queue].address
            ]
            those = [message] if message.replays else [each for each in shared if not each.replays]
            waits = any(each.stored.place in ("queue", "later") for each in those)
            heard = (POLICIES[message.queue].address, message.number) in self.unheard and not message.replays
            message.dropped |= not (waits or heard)

    @property
    def unheard(self) -> set[tuple[int, int]]:
        """By address, what listeners wait for."""
        return {(each.address, number) for each in self.listeners() for number in (*each.waiting, *each.later)}

    def _changing(self, message: Message, txn: Txn | None) -> None:
        if message.before is None:
            message.before = (message.stored, message.delivery is not None)
            message.changed_by = txn
            self._unsure.append(message)

    def _post(self, step: Post) -> None:
        sender = self.links[step.sender]
        assert isinstance(sender, Sender)
        queue = step.queue if sender.queue is None else sender.queue  # P9
        assert queue is not None
        txn = self._find(step.txn, sender.connection)
        if step.txn is not None and txn is None:  # T24
            if step.settled:
                self._detach(sender, self._unknown(step.txn))
            else:
                self._answer(sender.number, rejected(self._unknown(step.txn)))
            return
        self.posts[step.message] = step
        refused = self._unfit(step, queue, txn)
        if refused is None and txn is not None and txn.state == "active":
            refused = self._take_group(txn, queue, step.group)
        rows = sum(policy.address == queue for policy in POLICIES) + len(self.listeners(queue))
        if refused is None and txn is not None and txn.rows and txn.rows + rows > MOST_POSTS:
            refused = RESOURCE_LIMIT_EXCEEDED
        if refused is None and txn is not None and txn.entered and txn.op is not None and txn.state == "active":  # H5
            refused = ROLLBACK
            txn.rows += rows
            self.in_doubt = True
        if txn is None:
            if refused is None:
                self._store(step.message, queue, None)
                if not step.settled:
                    self._answer(sender.number, ACCEPTED)
            elif step.settled:
                self._detach(sender, refused)
            else:
                self._answer(sender.number, rejected(refused))
            return
        if refused is None:
            txn.posts.append((queue, step.message))
            txn.rows += rows
            if txn.group is None:
                txn.plain.add(step.message)
            refused = txn.refused
            txn.entered = txn.entered or (txn.group is not None and refused is None)
        else:  # T22, T23
            txn.state = "rollback-only"
            txn.refused = txn.refused or refused
            if txn.entered and txn.op is None:
                txn.op, txn.pending = "rollback", True
            self._decided(txn, RELEASED)
        if not step.settled:  # T21
            self._answer(sender.number, in_txn(ACCEPTED if refused is None else rejected(refused)))
            if sender.second and refused is None:
                txn.unsettled.append((sender, self.step))

    @staticmethod
    def _unfit(step: Post, queue: int, txn: Txn | None) -> str | None:
        """Why its address does not take it, whatever its transaction has done."""
        if step.malformed:
            return DECODE_ERROR
        kind = QUEUE_KINDS[queue]
        wrong = kind == "delay" and not step.later  # H1
        wrong = wrong or (kind == "transaction" and (txn is None or step.later))  # H1, H14
        return PRECONDITION_FAILED if wrong else None

    @staticmethod
    def _take_group(txn: Txn, queue: int, group: int | None) -> str | None:
        """``group``: the one that the message names; else an address of kind transaction is it, where there is none."""
        if group is None and QUEUE_KINDS[queue] == "transaction" and txn.group is None:  # H1
            group = GROUPS + queue
        if group is None:
            return None
        txn.group = group if txn.group is None else txn.group  # H2
        txn.entered = not txn.empty
        return None if group == txn.group else PRECONDITION_FAILED

    def _take(self, step: Take) -> None:
        receiver = self.links[step.receiver]
        assert isinstance(receiver, Receiver)
        self.any_order = receiver.queue in self.came_back and receiver.queue != FIFO
        self.came_back.discard(receiver.queue)
        self.there = self._there_for(receiver)
        self._deliver(receiver, self.there if self.any_order else self.there[: step.most])

    def _there_for(self, receiver: Receiver) -> list[Message]:
        queue = self.queues[receiver.queue]
        found = []
        kept: set[int | None] = set()
        if receiver.queue == FIFO:  # a message group is in the hands of one (P18), or of a transaction (H20)
            held = [each.delivery for each in queue if each.key is not None and each.delivery is not None]
            kept = {each.message.key for each in held if each.done or each.receiver is not receiver}
        for message in queue:
            if message.key in kept:
                continue
            refused = receiver.number in message.refused_by
            free = message.stored.place == "queue" and message.delivery is None
            if free and not refused:
                found.append(message)
            elif receiver.queue == FIFO and message.key is not None and (message.retried or (free and refused)):
                kept.add(message.key)  # what comes behind waits, too (D3)
        return found

    def _deliver(self, receiver: Receiver, messages: list[Message]) -> None:
        self.taken = []
        for message in messages:
            self.deliveries += 1
            message.delivery = Delivery(self.deliveries, receiver, message)
            self.taken.append(message.delivery)
        receiver.deliveries += self.taken

    def chosen(self, receiver: Receiver, numbers: list[int]) -> None:
        """Of the message groups that could come to it the last Take took these, each from its first message on."""
        for each in self.taken:
            each.message.delivery = None
        del receiver.deliveries[len(receiver.deliveries) - len(self.taken) :]
        assert len(numbers) == len(self.taken), f"came {numbers}, of {self.there}"
        left = list(self.there)
        for number in numbers:
            (message,) = [each for each in left if each.number == number]
            assert message.key is None or message.key not in [each.key for each in left[: left.index(message)]]
            left.remove(message)
        by_number = {each.number: each for each in self.there}
        self._deliver(receiver, [by_number[number] for number in numbers])

    def _retire(self, step: Retire | Rob) -> None:
        if isinstance(step, Rob):
            self._rob(step)
            return
        for each in self.named(step):
            if not each.receiver.open:
                return
            each.spoken_of = True
            if step.txn is None:
                self._retire_plainly(each, step)
            else:
                self._retire_in(each, step)

    def _rob(self, step: Rob) -> None:
        """D10. That it comes back is no failure of its own."""
        receiver = self.links[step.receiver]
        assert isinstance(receiver, Receiver)
        found = receiver.deliveries[step.place]
        found.done = found.closed = True
        found.message.delivery = None
        found.message.stored = replace(found.message.stored, least=found.message.stored.written)
        self.came_back.add(receiver.queue)
        self._detach(receiver, INTERNAL_ERROR)

    def _retire_plainly(self, each: Delivery, step: Retire) -> None:
        each.settled = each.settled or step.settled
        if each.txn is not None:  # it changes nothing but the settlement
            each.closed = each.settled
            return
        if step.outcome is Outcome.NONE and not step.settled:
            return
        each.closed = True
        outcome = Outcome.RELEASED if step.outcome is Outcome.NONE else step.outcome
        each.receiver.has_decided = each.receiver.has_decided or KIND[outcome] != "released"
        self._apply(each, outcome)

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
            known = part_of is not None and part_of.number == step.txn and (step.settled or each.txn is not None)
            if each.txn is None and step.settled:
                self._apply(each, Outcome.FAILED)
            if not known:  # T30
                self._detach(each.receiver, self._unknown(step.txn))
            return
        if each.txn is not None and each.txn is not txn:  # T29
            txn.state = "rollback-only"
            self._detach(txn.control, ROLLBACK)
            return
        if each.txn is None:
            each.txn = txn
            txn.retired.append(each)
            each.receiver.transactional = True
        if txn.group is not None and txn.state == "active":
            if txn.op is not None:  # H5
                txn.state, txn.refused = "rollback-only", ROLLBACK
                self.in_doubt = True
                self._decided(txn, RELEASED)
            self.in_doubt = self.in_doubt or each.outcome is not Outcome.NONE
            txn.entered = True
        each.outcome = Outcome.FAILED if step.outcome is Outcome.NONE else step.outcome

    def _apply(self, each: Delivery, outcome: Outcome, txn: Txn | None = None) -> None:
        """P11, D2, D4."""
        message, policy = each.message, POLICIES[each.message.queue]
        self._changing(message, txn)
        left, each.done = each.done, True
        message.delivery = None
        if each.receiver.open and not each.settled and not left:
            self._answer(each.receiver.number, KIND[outcome], label="settled", number=each.number)
        if outcome is Outcome.ACCEPTED:
            message.stored = Stored("nowhere")
        elif outcome is Outcome.REJECTED:
            self._die(message, WHY_REJECTED)
        elif outcome is Outcome.RETURNED:
            attempts = message.stored.most + 1
            message.stored = replace(message.stored, least=attempts, most=attempts)
        elif outcome is not Outcome.RELEASED:
            # exact by now: a delivery has shown it
            attempts = message.stored.most + (outcome in FAILURES)
            failures = message.stored.failures + (outcome in FAILURES)
            marked = message.stored.marked or outcome is Outcome.MARKED
            message.stored = Stored("queue", attempts, attempts, marked, failures=failures, written=attempts)
            wait = 0
            if outcome in (Outcome.LATER, Outcome.FAILED_LATER):
                wait = policy.asked
            elif outcome is Outcome.FAILED and policy.waits:
                wait = policy.waits[min(failures, len(policy.waits)) - 1]
            if failures >= policy.most_attempts:
                self._die(message, f"attempts used up: {failures} of {policy.most_attempts}")
            elif outcome is Outcome.GIVEN_UP:
                self._die(message, "its consumer asked for the dead letters (x-opt-delay-level -1)")
            elif wait:
                message.stored = replace(message.stored, place="later", wait=wait)
        if left:
            self.came_back.add(message.queue)
        if outcome in REFUSALS and not left:
            message.refused_by.add(each.receiver.number)

    @staticmethod
    def _die(message: Message, why: str) -> None:
        """At once, whatever the policy (D4)."""
        policy = POLICIES[message.queue]
        message.letter = Letter(policy.address, message.stored.failures, why, message.txn)
        message.letter_marked = message.stored.marked
        message.stored = Stored("dead")

    # -- what is known of the store

    def seen(self, delivery: Delivery, count: int) -> None:
        """A delivery came with this delivery-count."""
        delivery.message.stored = replace(delivery.message.stored, least=count, most=count)

    def settled(self) -> None:
        """Every answer has come: all that was decided is in the store."""
        self.due.clear()
        self.in_doubt = False
        for message in self._unsure:
            message.before = message.changed_by = None
        self._unsure.clear()
        for txn in self.txns.values():
            txn.pending = False
            txn.giving_back = []
            if txn.entered:
                txn.stored = {number for _, number in txn.posts}
                txn.held = {each.message.name for each in txn.retired}
