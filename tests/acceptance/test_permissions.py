"""What users may do: each permission at each place that it guards, and what is not said without it (rule S3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import pytest

from store.permissions import Verb
from tests.fix_permissions import Enter, enter_as
from tests.fix_service import Service, running_service
from tests.fix_users import EVERYTHING, grant, revoke
from tests.fix_wire import Ask, Dial, decided
from tests.wire import checkable
from tests.wire.frames import Accepted, Coordinator, Rejected, Source, Target, TransactionalState
from tests.wire.links import Receiver, Sender
from tests.wire.messages import Properties, data
from tests.wire.peer import Session
from tests.wire.queues import condition
from tests.wire.types import Symbol

UNAUTHORIZED = "amqp:unauthorized-access"
UNKNOWN = "amqp:transaction:unknown-id"

_names = count()


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"login.plain": "always"}) as service:
        yield service


@pytest.fixture
def owner(enter: Enter) -> Session:
    """Another user, which may do everything."""
    return enter(EVERYTHING)


def _of(link: Sender | Receiver) -> str:
    """The condition with which the attach is refused, or nothing."""
    answered = link.answer.target if isinstance(link, Sender) else link.answer.source
    return "" if answered is not None else link.error


# The places. Each tries with an address, or a producer group, of this name, and says the condition of the refusal.


def _sender(session: Session, owner: Session, name: str) -> str:
    owner.sender(name)
    return _of(session.sender(name))


def _receiver(session: Session, owner: Session, name: str) -> str:
    owner.sender(name)
    return _of(session.receiver(name))


def _group(session: Session, owner: Session, name: str) -> str:
    owner.sender(name)
    return _of(session.receiver(f"{name}::billing"))


def _broadcast(session: Session, owner: Session, name: str) -> str:
    owner.sender(name)
    return _of(session.receiver(f"{name}::*"))


def _topic(owner: Session, name: str) -> None:
    owner.receiver(Source(address=name, capabilities=(Symbol("topic"),)))


def _subscription(session: Session, owner: Session, name: str) -> str:
    _topic(owner, name)
    return _of(session.receiver(Source(address=name, expiry_policy=Symbol("never"))))


def _browsed_topic(session: Session, owner: Session, name: str) -> str:
    """It takes what it is sent: who may browse all the same may not have it."""
    _topic(owner, name)
    return _of(session.receiver(Source(address=name, distribution_mode=Symbol("copy"))))


def _browser(session: Session, owner: Session, name: str) -> str:
    owner.sender(name)
    return _of(session.receiver(Source(address=name, distribution_mode=Symbol("copy"))))


def _dead_letters(session: Session, owner: Session, name: str) -> str:
    owner.receiver(name)
    owner.receiver(f"%DLQ%{name}")
    return _of(session.receiver(f"%DLQ%{name}"))


def _new_target(session: Session, owner: Session, name: str) -> str:
    return _of(session.sender(name))


def _new_source(session: Session, owner: Session, name: str) -> str:
    return _of(session.receiver(name))


def _new_dead_letters(session: Session, owner: Session, name: str) -> str:
    """Of a group that is there: its letters' address is made before there are any."""
    owner.receiver(name)
    return _of(session.receiver(f"%DLQ%{name}"))


def _dynamic_target(session: Session, owner: Session, name: str) -> str:
    return _of(session.sender(Target(dynamic=True)))


def _dynamic_source(session: Session, owner: Session, name: str) -> str:
    return _of(session.receiver(Source(dynamic=True)))


def _to(name: str) -> bytes:
    return Properties(to=name).encoded() + data(b"x")


def _state(state: object) -> str:
    return "" if state == Accepted() else condition(state)


def _relay(session: Session, owner: Session, name: str) -> str:
    owner.sender(name)
    relay = session.sender(Target())
    first = _state(relay.outcome(_to(name)))
    assert _state(relay.outcome(_to(name))) == first  # the link goes on
    return first


def _new_on_relay(session: Session, owner: Session, name: str) -> str:
    return _state(session.sender(Target()).outcome(_to(name)))


def _settled_on_relay(session: Session, owner: Session, name: str) -> str:
    """Only the end of the link tells."""
    receiver = owner.receiver(name)
    relay = session.sender(Target())
    relay.post(_to(name), settled=True)
    while not (found := receiver.bodies()) and relay.detached is None:
        session.sync()
    assert len(found) == (relay.detached is None)
    return "" if found else relay.error


def _relay_in_transaction(session: Session, owner: Session, name: str) -> str:
    """T23: the transaction can only roll back."""
    receiver = owner.receiver(name)
    control, relay = session.control(), session.sender(Target())
    txn = control.declare()
    state = relay.outcome(_to(name), txn=txn)
    assert isinstance(state, TransactionalState)
    said = _state(state.outcome)
    end = control.discharge(txn)
    assert (condition(end) if said else end) == ("amqp:transaction:rollback" if said else Accepted())
    assert len(receiver.bodies()) == (not said)
    return said


def _checker(session: Session, owner: Session, name: str) -> str:
    return _of(session.receiver(f"$check/{name}"))


def _left_undecided(owner: Session, name: str) -> bytes:
    control = checkable.in_group(owner, name)
    txn = control.declare()
    checkable.accept(owner.sender(name), b"x", txn)
    control.detach()
    return txn


def _of_its_group(session: Session, owner: Session, name: str) -> str:
    """H20: one that says that it is of the group discharges what a connection of another user has left."""
    txn = _left_undecided(owner, name)
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
    Place(Verb.RECEIVE, _receiver),
    Place(Verb.RECEIVE, _group),
    Place(Verb.RECEIVE, _group, of="{}::billing"),
    Place(Verb.RECEIVE, _broadcast),
    Place(Verb.RECEIVE, _subscription),
    Place(Verb.RECEIVE, _browsed_topic, besides=(Verb.BROWSE,)),
    Place(Verb.RECEIVE, _dead_letters, of="%DLQ%{}"),
    Place(Verb.BROWSE, _browser),
    Place(Verb.CREATE, _new_target, besides=(Verb.SEND,)),
    Place(Verb.CREATE, _new_source, besides=(Verb.RECEIVE,)),
    Place(Verb.CREATE, _new_dead_letters, of="%DLQ%{}", besides=(Verb.RECEIVE,)),
    Place(Verb.CREATE, _new_on_relay, besides=(Verb.SEND,)),
    Place(Verb.CREATE, _dynamic_target, of="$dynamic/*"),
    Place(Verb.CREATE, _dynamic_source, of="$dynamic/*"),
    Place(Verb.CHECK, _checker),
    Place(Verb.CHECK, _of_its_group, refused=UNKNOWN),
    Place(Verb.MANAGE, _outcome, of="$transactions", refused=UNKNOWN),
]


@pytest.mark.rule("S3")
@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.verb}{place.attempt.__name__}-{place.of}")
def test_each_permission_at_each_place(enter: Enter, owner: Session, place: Place) -> None:
    """With it alone what it guards is allowed; with all others it is not."""
    name = f"a{next(_names)}"
    wanted = place.of.format(name)
    others = [(verb, "*") for verb in Verb if verb is not place.verb]
    assert place.attempt(enter(others), owner, name) == place.refused
    elsewhere = [*others, (place.verb, f"{wanted.removesuffix('*')}-"), (place.verb, f"x{name}*")]
    assert place.attempt(enter(elsewhere), owner, f"b{name}") == place.refused
    alone = [(place.verb, wanted), *((verb, wanted) for verb in place.besides)]
    assert place.attempt(enter(alone), owner, name) == ""


@pytest.mark.rule("S3")
@pytest.mark.parametrize("verb", [Verb.SEND, Verb.RECEIVE, Verb.BROWSE])
def test_nothing_says_whether_an_address_is_there(enter: Enter, owner: Session, address: str, verb: Verb) -> None:
    owner.sender(f"{address}-1")
    other = enter([(each, "*") for each in Verb if each is not verb])
    said = []
    for name in (f"{address}-1", f"{address}-2"):
        mode = Symbol("copy") if verb is Verb.BROWSE else None
        source = Source(address=name, distribution_mode=mode)
        link = other.sender(name) if verb is Verb.SEND else other.receiver(source)
        error = link.wait_detached().error
        assert error is not None
        said.append((error.condition, str(error.description).replace(name, "X")))
    assert said == [(UNAUTHORIZED, f"no permission to {verb}: 'X'")] * 2


@pytest.mark.rule("S3", "D1")
def test_a_refused_attach_makes_no_address(enter: Enter, address: str, ask: Ask) -> None:
    nothing = enter([])
    assert nothing.sender(address).error == UNAUTHORIZED
    assert nothing.receiver(address).error == UNAUTHORIZED
    assert nothing.receiver(f"{address}::x").error == UNAUTHORIZED
    assert nothing.receiver(Source(dynamic=True)).error == UNAUTHORIZED
    assert condition(nothing.sender(Target()).outcome(_to(address))) == UNAUTHORIZED
    no_create = enter([(verb, "*") for verb in Verb if verb is not Verb.CREATE])
    assert no_create.sender(address).error == UNAUTHORIZED
    assert ask("select name from coordinator.address where name = %s or origin = 'dynamic'", address) == []


@pytest.mark.rule("S3")
def test_a_connection_may_use_its_own_dynamic_address_and_no_other(enter: Enter, dial: Dial) -> None:
    session = enter([(Verb.CREATE, "$dynamic/*")], user="maker")
    made = session.receiver(Source(dynamic=True)).answer.source
    assert made is not None
    own = str(made.address)
    assert session.sender(own).outcome(data(b"1")) == Accepted()
    assert session.sender(Target()).outcome(_to(own)) == Accepted()
    assert _of(session.receiver(own)) == ""
    other = enter_as(dial, "maker")
    assert other.sender(own).error == UNAUTHORIZED
    assert other.receiver(own).error == UNAUTHORIZED
    assert condition(other.sender(Target()).outcome(_to(own))) == UNAUTHORIZED


@pytest.mark.rule("S3")
def test_a_subscription_that_a_user_may_not_end_is_not_there(
    enter: Enter, dial: Dial, service: Service, address: str
) -> None:
    """A null source names it by its link alone (the JMS mapping of subscriptions)."""
    user, receive = f"maker {address}", [(Verb.RECEIVE, address)]
    enter([*receive, (Verb.CREATE, address)], user=user)
    maker = enter_as(dial, user, container_id=address)
    source = Source(address=address, capabilities=(Symbol("topic"),), expiry_policy=Symbol("never"))
    maker.receiver(source, name="mine").detach(closed=False)
    revoke(service, receive, user=user)
    session = enter_as(dial, user, container_id=address)
    assert _of(session.receiver(Source(), name="mine")) == "amqp:not-found"
    grant(service, receive, user=user)
    session = enter_as(dial, user, container_id=address)
    assert _of(session.receiver(Source(), name="mine")) == ""
    assert _of(session.receiver(Source(), name="another")) == "amqp:not-found"


# -- transactions


@pytest.mark.rule("S3", "T11")
def test_the_question_of_another_user_decides_nothing(enter: Enter, owner: Session, address: str, ask: Ask) -> None:
    """Nor does that of one that may ask."""
    control, sender = owner.control(), owner.sender(address)
    txn = control.declare()
    checkable.accept(sender, b"x", txn)
    without = [each for each in EVERYTHING if each[0] is not Verb.MANAGE]
    for grants in (without, EVERYTHING):
        for fail in (False, True):
            assert condition(enter(grants).control().discharge(txn, fail=fail)) == UNKNOWN
    assert ask("select from coordinator.op where id = encode(%s, 'hex')::uuid", txn) == []
    control.commit(txn)
    assert decided(ask, txn)[0] == "commit"


@pytest.mark.rule("S3", "T11")
def test_a_user_asks_on_another_connection_what_became_of_its_own(enter: Enter, dial: Dial, address: str) -> None:
    session = enter([(Verb.SEND, address), (Verb.CREATE, address)], user=address)
    control, sender = session.control(), session.sender(address)
    committed, open_ = control.declare(), control.declare()
    checkable.accept(sender, b"x", committed)
    checkable.accept(sender, b"y", open_)
    control.commit(committed)
    again = enter_as(dial, address).control()
    assert again.discharge(committed) == Accepted()
    assert condition(again.discharge(open_)) == "amqp:transaction:rollback"


@pytest.mark.rule("S3", "H20")
def test_a_user_may_discharge_its_own_from_its_group_without_being_a_checker(
    enter: Enter, dial: Dial, address: str
) -> None:
    session = enter([(Verb.SEND, address), (Verb.CREATE, address)], user=address)
    txn = _left_undecided(session, address)
    assert checkable.in_group(enter_as(dial, address), address).discharge(txn) == Accepted()


@pytest.mark.rule("S3", "T23")
def test_a_transaction_goes_on_without_what_was_refused_where_it_was_told_so(
    enter: Enter, owner: Session, address: str
) -> None:
    owner.sender(address)
    session = enter([(Verb.SEND, address)])
    properties = {Symbol("coordinator:on-refused-post"): "continue"}
    control, relay = session.control(), session.sender(Target(), properties=properties)
    txn = control.declare()
    assert isinstance(relay.outcome(_to("another"), txn=txn).outcome, Rejected)
    assert relay.outcome(_to(address), txn=txn).outcome == Accepted()
    control.commit(txn)
    assert len(owner.receiver(address).bodies()) == 1


@pytest.mark.rule("S3")
def test_a_control_link_needs_no_permission(enter: Enter) -> None:
    """What is done in its transactions does."""
    control = enter([]).control()
    assert isinstance(control.answer.target, Coordinator)
    control.commit(control.declare())
