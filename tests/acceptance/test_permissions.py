"""What users may do: each permission at each place that it guards, and what is not said without it (rule S3)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from store.permissions import Verb
from tests.acceptance.permitted import PLACES, UNAUTHORIZED, UNKNOWN, Place, addressed, left_undecided, refusal
from tests.fix_permissions import Enter, enter_as
from tests.fix_service import Service, running_service
from tests.fix_users import EVERYTHING, grant, revoke
from tests.fix_wire import Ask, Dial, decided
from tests.wire import checkable
from tests.wire.frames import Accepted, Coordinator, Rejected, Source, Target
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import condition
from tests.wire.types import Symbol

_names = count()


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"login.plain": "always"}) as service:
        yield service


@pytest.fixture
def owner(enter: Enter) -> Session:
    """Another user, which may do everything."""
    return enter(EVERYTHING)


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
    assert condition(nothing.sender(Target()).outcome(addressed(address))) == UNAUTHORIZED
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
    assert session.sender(Target()).outcome(addressed(own)) == Accepted()
    assert refusal(session.receiver(own)) == ""
    other = enter_as(dial, "maker")
    assert other.sender(own).error == UNAUTHORIZED
    assert other.receiver(own).error == UNAUTHORIZED
    assert condition(other.sender(Target()).outcome(addressed(own))) == UNAUTHORIZED


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
    assert refusal(session.receiver(Source(), name="mine")) == "amqp:not-found"
    grant(service, receive, user=user)
    session = enter_as(dial, user, container_id=address)
    assert refusal(session.receiver(Source(), name="mine")) == ""
    assert refusal(session.receiver(Source(), name="another")) == "amqp:not-found"


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
    txn = left_undecided(session, address)
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
    assert isinstance(relay.outcome(addressed("another"), txn=txn).outcome, Rejected)
    assert relay.outcome(addressed(address), txn=txn).outcome == Accepted()
    control.commit(txn)
    assert len(owner.receiver(address).bodies()) == 1


@pytest.mark.rule("S3")
def test_a_control_link_needs_no_permission(enter: Enter) -> None:
    """What is done in its transactions does."""
    control = enter([]).control()
    assert isinstance(control.answer.target, Coordinator)
    control.commit(control.declare())


@pytest.mark.rule("P22")
def test_a_producer_is_its_users_own(enter: Enter, address: str) -> None:
    """Of two users one may give the name, and the tags, that another has: both messages are stored."""
    needed = [(verb, address) for verb in (Verb.SEND, Verb.CREATE, Verb.RECEIVE)]
    first, second = (enter(needed, user=f"{user} {address}") for user in ("first", "second"))
    for session, body in ((first, b"1"), (second, b"2"), (first, b"3")):
        sender = session.sender(address, properties={Symbol("coordinator:producer"): "shop"})
        assert sender.outcome(data(body), delivery_tag=b"1") == Accepted()
    assert second.receiver(address).bodies() == [b"1", b"2"]
