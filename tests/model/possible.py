"""Which steps there can be in a state of the model, and which of them wait for every answer."""

from __future__ import annotations

from tests.model.model import Model
from tests.model.state import (
    FIFO,
    MOST_REFUSED,
    QUEUE_KINDS,
    REFUSALS,
    Control,
    Link,
    Listener,
    Receiver,
    Sender,
)
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


def allows(model: Model, step: Step) -> bool:
    """A shorter history may have lost what a step needs; then it is passed over."""
    match step:
        case Open():
            return step.connection not in model.connections
        case Close():
            return step.connection in model.connections
        case End():
            return (step.connection, step.session) in model.sessions
        case AttachControl() | AttachSender() | AttachReceiver():
            return step.link not in model.links and step.connection in model.connections
        case AttachListener():  # in which order message groups come is open
            return step.address != FIFO and step.link not in model.links and step.connection in model.connections
        case Detach():
            return model.is_open(step.link, Link)
        case Declare():
            return model.is_open(step.control, Control) and step.txn not in model.txns
        case Post():
            return (
                model.is_open(step.sender, Sender)
                and step.message not in model.posts
                and _knows(model, step.txn)
                and (step.txn not in model.txns or not _names_group(model, step) or not model.txns[step.txn].decided)
            )
        case Take():
            return model.is_open(step.receiver, Receiver)
        case Hear():
            return model.is_open(step.listener, Listener)
        case Retire():
            return model.is_open(step.receiver, Receiver) and _knows(model, step.txn) and _may_retire(model, step)
        case Rob():
            return model.is_open(step.receiver, Receiver) and model.plain(step.receiver, step.place)
        case Discharge():
            return model.is_open(step.control, Control) and _knows(model, step.txn)
        case Overdue():
            txn = model.txns.get(step.txn)
            return txn is not None and txn.open and (txn.group is None or (txn.entered and txn.op is None))
        case Decide():
            txn = model.txns.get(step.txn)
            if txn is None or txn.op is not None:
                return False
            if txn.entered:
                return txn.open or txn.state == "left"
            return txn.open and not txn.empty and not txn.decided and not step.commit
        case Check() | ComeDue() | Exhaust() | Replay():
            return True
        case Seek():
            message = model.messages.get((step.queue, step.message))
            return message is not None and not message.dropped
        case Drop() | Settle() | Crash() | Restart():
            return True


def _names_group(model: Model, step: Post) -> bool:
    """Or goes to an address of kind transaction, whose name is the group (H1)."""
    sender = model.links[step.sender]
    assert isinstance(sender, Sender)
    queue = step.queue if sender.queue is None else sender.queue
    return step.group is not None or (queue is not None and QUEUE_KINDS[queue] == "transaction")


def _may_retire(model: Model, step: Retire) -> bool:
    named = model.named(step)
    if step.outcome in REFUSALS:
        receiver = model.links[step.receiver]
        assert isinstance(receiver, Receiver)
        refused = [message for message in model.queues[receiver.queue] if message.refused_by]
        return 0 < len(named) <= MOST_REFUSED - len(refused)
    return bool(named)


def _knows(model: Model, txn: int | None) -> bool:
    return txn is None or txn == NEVER_DECLARED or txn in model.txns


def waits(model: Model, step: Step) -> bool:
    """Whether the clients wait for every answer before they do this."""
    if isinstance(step, Retire):
        txn = model.txns.get(step.txn) if step.txn is not None else None
        if txn is not None and txn.entered and txn.pending:
            return True
        if step.txn is not None and (txn is None or not txn.open):
            return True  # it ends the receiver, and with it what is under way for its other deliveries (T30)
        return any(
            each.txn.pending for each in model.named(step) if each.txn is not None and each.txn.number != step.txn
        ) or any(each.last_txn.pending for each in model.named(step) if each.last_txn is not None)
    if model.in_doubt:
        return True
    if isinstance(step, Discharge) and step.txn in model.txns and model.txns[step.txn].state == "left":
        return True  # what is on its way to the store is not there for others (T11)
    if isinstance(step, Close | End | Detach) and any(
        each.settled for txn in model.txns.values() for each in txn.giving_back
    ):
        return True  # what a rollback on its way gives back has failed, or was on a link that went: either may be
    if isinstance(step, Close | End | Detach | Post | Discharge):
        # a discharge that waits for halves goes with its control link: then a checker decides; what is committed
        # meanwhile comes before it
        return any(txn.entered and txn.pending for txn in model.txns.values())
    others = Decide | Check | Exhaust | Replay | Seek | Drop
    return isinstance(step, AttachListener | Take | Hear | Rob | ComeDue | others | Overdue | Settle | Restart)
