"""Which step may follow: for each kind of step, a strategy over those that a model's state allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from tests.model.model import Model
from tests.model.possible import allows, waits
from tests.model.state import ADDRESSES, FIFO, GROUPS, POLICIES, QUEUE_KINDS, QUEUES, UNSAID, Control, Receiver, Sender
from tests.model.steps import (
    NEVER_DECLARED,
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
from tests.model.verdicts import crashed

CONNECTIONS = (0, 1)
SESSIONS = (0, 1)
_MOST_LINKS = 8
_MOST_LISTENERS = 2
#: Steps before an instance ends: another takes a while to come.
_YOUNGEST = 15

#: None: there is no such step now.
Steps = st.SearchStrategy[Step] | None

#: mostly usual
_rarely = st.sampled_from((False,) * 9 + (True,))
_at_times = st.sampled_from((False, False, False, True))
_often = st.sampled_from((True, True, False))
_group = st.integers(0, GROUPS - 1)
maybe_a_group = st.one_of(st.none(), _group)
#: mostly of kind normal
_address = st.sampled_from((0, 0, 1, *range(ADDRESSES)))
_queue = st.sampled_from((0, 0, 1, *range(QUEUES)))
_key = st.sampled_from((0, 0, 1, None))
#: beside the first
maybe_another = st.one_of(st.none(), st.sampled_from(range(1, QUEUES)))
_seldom_a_group = st.sampled_from((None,) * 9 + tuple(range(GROUPS)))


def opening(model: Model) -> Steps:
    missing = [each for each in CONNECTIONS if each not in model.connections]
    return st.sampled_from([Open(each) for each in missing]) if missing else None


def closing(model: Model) -> Steps:
    there = sorted(model.connections)
    return st.builds(Close, st.sampled_from(there), st.booleans()) if there else None


def ending(model: Model) -> Steps:
    there = sorted(model.sessions)
    return st.sampled_from([End(*each) for each in there]) if there else None


def attaching(model: Model) -> Steps:
    there = sorted(model.connections)
    if not there or sum(link.open for link in model.links.values()) >= _MOST_LINKS:
        return None
    link, connection, session = len(model.links), st.sampled_from(there), st.sampled_from(SESSIONS)
    return st.one_of(
        st.builds(AttachControl, st.just(link), connection, session, _rarely),
        st.builds(AttachControl, st.just(link), connection, session, st.just(False), _group),
        st.builds(AttachSender, st.just(link), connection, st.one_of(st.none(), _address), session, st.booleans()),
        st.builds(AttachReceiver, st.just(link), connection, _queue, session),
    )


def listening(model: Model) -> Steps:
    there = sorted(model.connections)
    if not there or len(model.listeners()) >= _MOST_LISTENERS:
        return None
    link, address = st.just(len(model.links)), _address.filter(lambda each: each != FIFO)
    return st.builds(AttachListener, link, st.sampled_from(there), address, st.sampled_from(SESSIONS))


def hearing(model: Model) -> Steps:
    """Mostly where there is something."""
    there = [each.number for each in model.listeners() if each.waiting]
    said = [each for each in Outcome if each not in (*UNSAID, Outcome.NONE)]
    return st.builds(Hear, st.sampled_from(there), st.sampled_from(said)) if there else None


def detaching(model: Model) -> Steps:
    there = [link.number for link in model.links.values() if link.open]
    return st.sampled_from([Detach(each) for each in there]) if there else None


def declaring(model: Model) -> Steps:
    controls = model.open_links(Control)
    return st.sampled_from([Declare(each.number, len(model.txns)) for each in controls]) if controls else None


def _txns(model: Model, connection: int) -> st.SearchStrategy[int]:
    """Mostly those that are open on the connection; any other now and then."""
    usual = [txn.number for txn in model.txns.values() if txn.open and txn.connection == connection]
    others = [NEVER_DECLARED, *model.txns]
    return st.sampled_from(usual * (1 + 8 * len(others) // len(usual)) + others) if usual else st.sampled_from(others)


def posting(model: Model) -> Steps:
    senders = model.open_links(Sender)
    if not senders:
        return None
    number = st.just(model.highest + 1)
    return st.one_of(
        [
            st.builds(
                Post,
                st.just(each.number),
                number,
                st.one_of(st.none(), _txns(model, each.connection), _txns(model, each.connection)),
                st.booleans(),
                _rarely,
                _address if isinstance(each, Sender) and each.queue is None else st.none(),
                _seldom_a_group,
                _often if isinstance(each, Sender) and each.queue == QUEUE_KINDS.index("delay") else _at_times,
                _key,
            )
            for each in senders
        ]
    )


def coming_due(model: Model) -> Steps:
    return st.just(ComeDue()) if any(model.waiting(each) for each in range(QUEUES)) else None


def taking(model: Model) -> Steps:
    receivers = [each.number for each in model.open_links(Receiver)]
    return st.builds(Take, st.sampled_from(receivers), st.integers(1, 4)) if receivers else None


def retiring(model: Model) -> Steps:
    found = []
    for each in model.open_links(Receiver):
        assert isinstance(each, Receiver)
        places = [place for place, delivery in enumerate(each.deliveries) if not delivery.closed and not delivery.done]
        late = [place for place, delivery in enumerate(each.deliveries) if delivery.done and not delivery.closed]
        txns = st.one_of(st.none(), _txns(model, each.connection), _txns(model, each.connection))
        said = [each for each in Outcome if each not in UNSAID]
        outcomes = st.sampled_from((Outcome.ACCEPTED, Outcome.ACCEPTED, Outcome.ACCEPTED, Outcome.FAILED, *said))
        if places:
            ranges = st.tuples(st.sampled_from(places), st.integers(0, 2))
            found.append(
                st.builds(
                    lambda number, places, outcome, txn, settled: Retire(
                        number, places[0], places[0] + places[1], outcome, txn, settled
                    ),
                    st.just(each.number),
                    ranges,
                    outcomes,
                    txns,
                    st.booleans(),
                )
            )
        for place in late:  # T34
            txn = each.deliveries[place].txn
            if txn is not None:
                step = Retire(each.number, place, place, Outcome.ACCEPTED, txn.number, True)
                found.append(st.just(step))
    return st.one_of(found) if found else None


def robbing(model: Model) -> Steps:
    there = [
        Rob(each.number, place)
        for each in model.open_links(Receiver)
        if isinstance(each, Receiver)
        for place in range(len(each.deliveries))
        if model.plain(each.number, place)
    ]
    return st.sampled_from(there) if there else None


def discharging(model: Model) -> Steps:
    controls = model.open_links(Control)
    if not controls:
        return None
    return st.one_of(
        [
            st.builds(
                lambda number, txn, commit: Discharge(number, txn, not commit),
                st.just(each.number),
                _txns(model, each.connection),
                _often,
            )
            for each in controls
        ]
    )


def overdue(model: Model) -> Steps:
    there = [step for step in map(Overdue, model.txns) if allows(model, step)]
    return st.sampled_from(there) if there else None


def deciding(model: Model) -> Steps:
    every = [Decide(txn, commit) for txn in model.txns for commit in (False, True)]
    there = [step for step in every if allows(model, step)]
    return st.sampled_from(there) if there else None


def leaving(model: Model) -> Steps:
    """The client leaves a checkable transaction undecided."""
    controls = {txn.control.number for txn in model.txns.values() if txn.open and txn.entered}
    there = sorted(number for number in controls if model.links[number].open)
    return st.sampled_from([Detach(each) for each in there]) if there else None


def checking(model: Model) -> Steps:
    """Of a group that has something due, if there is one."""
    checkable = {txn.number: txn.group for txn in model.txns.values() if txn.group is not None}
    groups = sorted({group for number, group in checkable.items() if model.txns[number].due} or set(checkable.values()))
    return st.builds(Check, st.sampled_from(groups), st.sampled_from((True, True, False, None))) if groups else None


def exhausting(model: Model) -> Steps:
    return st.just(Exhaust()) if any(txn.exhausted for txn in model.txns.values()) else None


def replaying(model: Model) -> Steps:
    there = sorted({queue for (queue, _), each in model.messages.items() if each.stored.place == "dead"})
    return st.builds(Replay, st.sampled_from(there)) if there else None


def seeking(model: Model) -> Steps:
    """Mostly back to where something comes again from."""
    kept = {name: each for name, each in model.messages.items() if not each.dropped}
    gone = sorted(name for name, each in kept.items() if each.stored.place == "nowhere")
    there = gone or sorted(kept)
    return st.builds(lambda name, back: Seek(name[0], name[1], back), st.sampled_from(there), _often) if there else None


def dropping(model: Model) -> Steps:
    return st.builds(Drop, _at_times) if model.messages else None


def settling(model: Model) -> Steps:
    return st.just(Settle()) if model.due else None


def crashing(model: Model) -> Steps:
    return st.just(Crash()) if model.age >= _YOUNGEST else None


def restarting(model: Model) -> Steps:
    return st.just(Restart()) if model.age >= _YOUNGEST else None


#: By kind, with how often it comes: what the wire can show.
KINDS: dict[Callable[[Model], Steps], int] = {
    opening: 3,
    closing: 1,
    ending: 1,
    attaching: 4,
    detaching: 1,
    declaring: 5,
    posting: 10,
    coming_due: 3,
    listening: 1,
    taking: 7,
    hearing: 3,
    retiring: 16,
    robbing: 1,
    discharging: 7,
    deciding: 1,
    leaving: 4,
    checking: 4,
    replaying: 2,
    settling: 2,
}


#: In one process an instance is gone in no time, and the clock can be moved. (Through the wire, what no checker answers
#: is in the histories of two services.)
ALL_KINDS: dict[Callable[[Model], Steps], int] = {
    **KINDS,
    exhausting: 3,
    seeking: 2,
    dropping: 2,
    crashing: 1,
    overdue: 1,
    restarting: 1,
}


def beginning(second: bool, group: int | None, later: bool, another: int | None) -> list[Step]:
    """Without these most histories would do nothing. ``group``: the first transaction is checkable, with a message.
    ``later``: a message waits for its time. ``another``: this queue has a sender, a receiver and messages, too.
    """
    first: list[Step] = [] if group is None else [Post(1, 3, 0)]
    if later:
        first.append(Post(1, 4, later=True))
    if another is not None:
        address = POLICIES[another].address
        delay = QUEUE_KINDS[address] == "delay"
        first += [AttachSender(3, 0, address), AttachReceiver(4, 0, another, session=1)]
        if QUEUE_KINDS[address] != "transaction":
            first += [Post(3, number, later=delay, key=0) for number in (5, 6)]
            first += [ComeDue()] * delay
        first.append(Take(4, 1))
    return [
        Open(0),
        AttachControl(0, 0, group=group),
        AttachSender(1, 0, 0, second=second),
        AttachReceiver(2, 0, 0, session=1),
        Declare(0, 0),
        Post(1, 1),
        Post(1, 2),
        Take(2, 1),
        *first,
    ]


@st.composite
def histories(
    draw: st.DrawFn, *, most: int = 40, kinds: dict[Callable[[Model], Steps], int] = KINDS, crash: bool = False
) -> list[Step]:
    """``most``: steps; ``crash``: one comes somewhere among them."""
    model = Model()
    steps: list[Step] = []
    for step in beginning(draw(st.booleans()), draw(maybe_a_group), draw(st.booleans()), draw(maybe_another)):
        steps.append(step)
        imagine(model, step)
    bag = [kind for kind, weight in kinds.items() for _ in range(weight)]
    count = draw(st.integers(5, most))
    crash_at = draw(st.integers(5, count)) if crash else None
    for number in range(1, count + 1):
        there = st.just(Crash()) if number == crash_at else draw(st.sampled_from(bag))(model)
        if there is None:
            continue
        step = draw(there)
        steps.append(step)
        imagine(model, step)
    return steps


def imagine(model: Model, step: Step) -> None:
    """Bring the model to where it would be if the step went the usual way."""
    if not allows(model, step):
        return
    if waits(model, step):
        model.settled()
    model.apply(step)
    if isinstance(step, Take):
        for delivery in model.taken:
            model.seen(delivery, delivery.message.stored.least)
    elif isinstance(step, Crash):
        ops = {txn.number: txn.op for txn in model.txns.values() if txn.op is not None}
        found = {name: each.stored.survived(sent=each.delivery is not None) for name, each in model.messages.items()}
        found = {name: replace(each, most=each.least) for name, each in found.items()}
        halves = {
            txn.number: {number for _, number in txn.posts}
            for txn in model.txns.values()
            if txn.entered and txn.op is None
        }
        decided = {txn.number: "rollback" for txn in model.txns.values() if txn.decided}
        held = {
            txn.number: {each.message.name for each in txn.retired}
            for txn in model.txns.values()
            if txn.entered and txn.op is None
        }
        crashed(model, {**ops, **decided}, found, halves, held, set())
