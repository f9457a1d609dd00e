"""The places that a permission guards, and an attempt at each: for the table of test_permissions.py (rule S3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from store.permissions import Verb
from tests.wire import checkable
from tests.wire.frames import Accepted, Source, Target, TransactionalState
from tests.wire.links import Receiver, Sender
from tests.wire.messages import Properties, data
from tests.wire.peer import Session
from tests.wire.queues import condition
from tests.wire.types import Symbol

UNAUTHORIZED = "amqp:unauthorized-access"
UNKNOWN = "amqp:transaction:unknown-id"


def refusal(link: Sender | Receiver) -> str:
    """The condition with which the attach is refused, or nothing."""
    answered = link.answer.target if isinstance(link, Sender) else link.answer.source
    return "" if answered is not None else link.error


# The places. Each tries with an address, or a producer group, of this name, and says the condition of the refusal.


def _sender(session: Session, owner: Session, name: str) -> str:
    owner.sender(name)
    return refusal(session.sender(name))


def _receiver(session: Session, owner: Session, name: str) -> str:
    owner.sender(name)
    return refusal(session.receiver(name))


def _group(session: Session, owner: Session, name: str) -> str:
    owner.sender(name)
    return refusal(session.receiver(f"{name}::billing"))


def _broadcast(session: Session, owner: Session, name: str) -> str:
    owner.sender(name)
    return refusal(session.receiver(f"{name}::*"))


def _topic(owner: Session, name: str) -> None:
    owner.receiver(Source(address=name, capabilities=(Symbol("topic"),)))


def _subscription(session: Session, owner: Session, name: str) -> str:
    _topic(owner, name)
    return refusal(session.receiver(Source(address=name, expiry_policy=Symbol("never"))))


def _browsed_topic(session: Session, owner: Session, name: str) -> str:
    """It takes what it is sent: who may browse all the same may not have it."""
    _topic(owner, name)
    return refusal(session.receiver(Source(address=name, distribution_mode=Symbol("copy"))))


def _browser(session: Session, owner: Session, name: str) -> str:
    owner.sender(name)
    return refusal(session.receiver(Source(address=name, distribution_mode=Symbol("copy"))))


def _browsed_group(session: Session, owner: Session, name: str) -> str:
    owner.receiver(f"{name}::billing")
    return refusal(session.receiver(Source(address=f"{name}::billing", distribution_mode=Symbol("copy"))))


def _browsed_letters(session: Session, owner: Session, name: str) -> str:
    owner.receiver(name)
    owner.receiver(f"%DLQ%{name}")
    return refusal(session.receiver(Source(address=f"%DLQ%{name}", distribution_mode=Symbol("copy"))))


def _shared_subscription(session: Session, owner: Session, name: str) -> str:
    _topic(owner, name)
    everyone = (Symbol("shared"), Symbol("global"))
    return refusal(session.receiver(Source(address=name, expiry_policy=Symbol("never"), capabilities=everyone)))


def _dead_letters(session: Session, owner: Session, name: str) -> str:
    owner.receiver(name)
    owner.receiver(f"%DLQ%{name}")
    return refusal(session.receiver(f"%DLQ%{name}"))


def _new_target(session: Session, owner: Session, name: str) -> str:
    return refusal(session.sender(name))


def _new_source(session: Session, owner: Session, name: str) -> str:
    return refusal(session.receiver(name))


def _new_dead_letters(session: Session, owner: Session, name: str) -> str:
    """Of a group that is there: its letters' address is made before there are any."""
    owner.receiver(name)
    return refusal(session.receiver(f"%DLQ%{name}"))


def _new_topic(session: Session, owner: Session, name: str) -> str:
    return refusal(session.receiver(Source(address=name, capabilities=(Symbol("topic"),))))


def _dynamic_target(session: Session, owner: Session, name: str) -> str:
    return refusal(session.sender(Target(dynamic=True)))


def _dynamic_source(session: Session, owner: Session, name: str) -> str:
    return refusal(session.receiver(Source(dynamic=True)))


def addressed(name: str) -> bytes:
    return Properties(to=name).encoded() + data(b"x")


def _state(state: object) -> str:
    return "" if state == Accepted() else condition(state)


def _relay(session: Session, owner: Session, name: str) -> str:
    owner.sender(name)
    relay = session.sender(Target())
    first = _state(relay.outcome(addressed(name)))
    assert _state(relay.outcome(addressed(name))) == first  # the link goes on
    return first


def _new_on_relay(session: Session, owner: Session, name: str) -> str:
    return _state(session.sender(Target()).outcome(addressed(name)))


def _settled_on_relay(session: Session, owner: Session, name: str) -> str:
    """Only the end of the link tells."""
    receiver = owner.receiver(name)
    relay = session.sender(Target())
    relay.post(addressed(name), settled=True)
    while not (found := receiver.bodies()) and relay.detached is None:
        session.sync()
    assert len(found) == (relay.detached is None)
    return "" if found else relay.error


def _relay_in_transaction(session: Session, owner: Session, name: str) -> str:
    """T23: the transaction can only roll back."""
    receiver = owner.receiver(name)
    control, relay = session.control(), session.sender(Target())
    txn = control.declare()
    state = relay.outcome(addressed(name), txn=txn)
    assert isinstance(state, TransactionalState)
    said = _state(state.outcome)
    end = control.discharge(txn)
    assert (condition(end) if said else end) == ("amqp:transaction:rollback" if said else Accepted())
    assert len(receiver.bodies()) == (not said)
    return said


def _relay_in_checkable_transaction(session: Session, owner: Session, name: str) -> str:
    owner.sender(name)
    control, relay = checkable.in_group(session, f"of {name}"), session.sender(Target())
    txn = control.declare()
    state = relay.outcome(addressed(name), txn=txn)
    assert isinstance(state, TransactionalState)
    return _state(state.outcome)


def _new_in_transaction(session: Session, owner: Session, name: str) -> str:
    control, relay = session.control(), session.sender(Target())
    state = relay.outcome(addressed(name), txn=control.declare())
    assert isinstance(state, TransactionalState)
    return _state(state.outcome)


def _checker(session: Session, owner: Session, name: str) -> str:
    return refusal(session.receiver(f"$check/{name}"))


def left_undecided(owner: Session, name: str) -> bytes:
    control = checkable.in_group(owner, name)
    txn = control.declare()
    checkable.accept(owner.sender(name), b"x", txn)
    control.detach()
    return txn


def _of_its_group(session: Session, owner: Session, name: str) -> str:
    """H20: one that says that it is of the group discharges what a connection of another user has left."""
    txn = left_undecided(owner, name)
    return _state(checkable.in_group(session, name).discharge(txn))


def _outcome(session: Session, owner: Session, name: str) -> str:
    """What became of another user's transaction."""
    control, sender = owner.control(), owner.sender(name)
    txn = control.declare()
    checkable.accept(sender, b"x", txn)
    control.commit(txn)
    return _state(session.control().discharge(txn))


@dataclass(frozen=True)
class Place:
    """``verb``: the one that it needs, for a name that ``of`` makes. ``besides``: what else it needs for it."""

    verb: Verb
    attempt: Callable[[Session, Session, str], str]
    of: str = "{}"
    besides: tuple[Verb, ...] = ()
    refused: str = UNAUTHORIZED


PLACES = [
    Place(Verb.SEND, _sender),
    Place(Verb.SEND, _relay),
    Place(Verb.SEND, _settled_on_relay),
    Place(Verb.SEND, _relay_in_transaction),
    Place(Verb.SEND, _relay_in_checkable_transaction),
    Place(Verb.RECEIVE, _receiver),
    Place(Verb.RECEIVE, _group),
    Place(Verb.RECEIVE, _group, of="{}::billing"),
    Place(Verb.RECEIVE, _broadcast),
    Place(Verb.RECEIVE, _subscription),
    Place(Verb.RECEIVE, _shared_subscription),
    Place(Verb.RECEIVE, _browsed_topic, besides=(Verb.BROWSE,)),
    Place(Verb.RECEIVE, _dead_letters, of="%DLQ%{}"),
    Place(Verb.BROWSE, _browser),
    Place(Verb.BROWSE, _browsed_group),
    Place(Verb.BROWSE, _browsed_group, of="{}::billing"),
    Place(Verb.BROWSE, _browsed_letters, of="%DLQ%{}"),
    Place(Verb.CREATE, _new_target, besides=(Verb.SEND,)),
    Place(Verb.CREATE, _new_source, besides=(Verb.RECEIVE,)),
    Place(Verb.CREATE, _new_dead_letters, of="%DLQ%{}", besides=(Verb.RECEIVE,)),
    Place(Verb.CREATE, _new_topic, besides=(Verb.RECEIVE,)),
    Place(Verb.CREATE, _new_on_relay, besides=(Verb.SEND,)),
    Place(Verb.CREATE, _new_in_transaction, besides=(Verb.SEND,)),
    Place(Verb.CREATE, _dynamic_target, of="$dynamic/*"),
    Place(Verb.CREATE, _dynamic_source, of="$dynamic/*"),
    Place(Verb.CHECK, _checker),
    Place(Verb.CHECK, _of_its_group, refused=UNKNOWN),
    Place(Verb.MANAGE, _outcome, of="$transactions", refused=UNKNOWN),
]
