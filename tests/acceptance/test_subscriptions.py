"""Consumer groups of queues, subscriptions to topics, and links that come again (rules D1 and P13)."""

from __future__ import annotations

import time

import pytest

from tests.fix_wire import Ask, Begin
from tests.wire.frames import Accepted, Attach, Detach, Rejected, Released, Source, Target
from tests.wire.links import Receiver, Sender
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import dead_letters, post
from tests.wire.types import Symbol

TOPIC = (Symbol("topic"),)


def topic_sender(session: Session, address: str) -> Sender:
    return session.sender(Target(address=address, capabilities=TOPIC))


def lasting(session: Session, address: str, name: str, *capabilities: str, credit: int = 10) -> Receiver:
    source = Source(
        address=address,
        durable=2,
        expiry_policy=Symbol("never"),
        capabilities=(*TOPIC, *(Symbol(each) for each in capabilities)),
    )
    return session.receiver(source, credit=credit, name=name)


def by_name(session: Session, name: str) -> Receiver:
    """Attached without a source."""
    handle = session._handles
    return Receiver(session, handle, session.attach(True, name=name, target=Target(address="x")))


def accept(*deliveries: object) -> None:
    for delivery in deliveries:
        delivery.disposition(Accepted())  # type: ignore[attr-defined]


@pytest.mark.rule("D1")
def test_a_group_gets_every_message_once_and_its_members_share(begin: Begin, address: str) -> None:
    """``orders::billing`` beside the default group: each message once for each of the two."""
    session = begin()
    first, second = session.receiver(f"{address}::billing", credit=2), session.receiver(f"{address}::billing", credit=2)
    default = session.receiver(address, credit=10)
    sender = session.sender(address)
    for body in (b"1", b"2", b"3", b"4"):
        assert sender.outcome(data(body)) == Accepted()
    assert [delivery.body for delivery in default.take_many(4)] == [b"1", b"2", b"3", b"4"]
    shared = first.take_many(2) + second.take_many(2)
    assert sorted(delivery.body for delivery in shared) == [b"1", b"2", b"3", b"4"]


@pytest.mark.rule("D1", "T20")
def test_a_group_sees_a_transaction_when_it_commits(begin: Begin, address: str) -> None:
    session = begin()
    consumer = session.receiver(f"{address}::billing", credit=10)
    control, sender = session.control(), session.sender(address)
    undone, done = control.declare(), control.declare()
    sender.outcome(data(b"never"), txn=undone)
    sender.outcome(data(b"seen"), txn=done)
    control.roll_back(undone)
    control.commit(done)
    delivery = consumer.take()
    assert delivery.body == b"seen"
    accept(delivery)
    session.sync()
    assert consumer.drain() == []


@pytest.mark.rule("D1")
@pytest.mark.parametrize("group", ["", "x" * 1025, "a\tb", "a::b"])
def test_a_group_without_a_proper_name_is_refused(begin: Begin, address: str, group: str) -> None:
    session = begin()
    assert session.receiver(f"{address}::{group}").error == "amqp:invalid-field"


@pytest.mark.rule("D1")
def test_a_topic_gives_each_subscriber_what_comes_after_it(begin: Begin, address: str, ask: Ask) -> None:
    session = begin()
    sender = topic_sender(session, address)
    assert sender.outcome(data(b"before")) == Accepted()
    receivers = [session.receiver(Source(address=address, capabilities=TOPIC), credit=10) for _ in range(2)]
    assert sender.outcome(data(b"after")) == Accepted()
    for receiver in receivers:
        delivery = receiver.take()
        assert delivery.body == b"after"
        accept(delivery)
        receiver.detach()
    groups = "select g.name from coordinator.consumer_group g join coordinator.address a on a.id = g.address_id "
    while ask(groups + "where a.name = %s", address):  # they go with their links
        time.sleep(0.05)


@pytest.mark.rule("D1")
def test_a_lasting_subscription_outlives_its_link_until_it_is_closed(begin: Begin, address: str) -> None:
    """``expiry-policy`` never: detached and attached again it has what came meanwhile; closed, it is gone."""
    poster = topic_sender(begin(), address)
    session = begin(container_id=f"shop-{address}")
    receiver = lasting(session, address, "prices")
    receiver.detach(closed=False)
    for body in (b"1", b"2"):
        assert poster.outcome(data(body)) == Accepted()
    again = begin(container_id=f"shop-{address}")
    receiver = lasting(again, address, "prices")
    deliveries = receiver.take_many(2)
    assert [delivery.body for delivery in deliveries] == [b"1", b"2"]
    accept(*deliveries)
    receiver.detach()
    assert poster.outcome(data(b"3")) == Accepted()
    receiver = lasting(again, address, "prices")
    assert receiver.drain() == []


@pytest.mark.rule("D1")
def test_a_null_source_finds_a_lasting_subscription_by_its_name(begin: Begin, address: str) -> None:
    """How a JMS client ends one: attach by name alone, then close; not-found if there is no such subscription."""
    session = begin(container_id=f"shop-{address}")
    lasting(session, address, "prices").detach(closed=False)
    found = by_name(session, "prices")
    assert found.answer.source is not None
    assert found.answer.source.address == address
    found.detach()
    session.sync()
    assert by_name(session, "prices").error == "amqp:not-found"


@pytest.mark.rule("D1")
def test_shared_and_global_subscriptions(begin: Begin, address: str) -> None:
    """The JMS mapping: ``shared`` links of one container are one subscription, ``global`` ones of any."""
    poster = topic_sender(begin(), address)
    mine, other = begin(container_id=f"a-{address}"), begin(container_id=f"b-{address}")
    pair = [lasting(mine, address, f"own|{number}", "shared", credit=1) for number in (1, 2)]
    world = [
        lasting(each, address, f"all-{address}|{at}", "shared", "global", credit=1)
        for at, each in ((1, mine), (2, other))
    ]
    for body in (b"1", b"2"):
        assert poster.outcome(data(body)) == Accepted()
    for members in (pair, world):
        assert sorted(member.take().body for member in members) == [b"1", b"2"]


@pytest.mark.rule("D1")
def test_a_shared_subscription_does_not_end_while_others_use_it(begin: Begin, address: str) -> None:
    """The JMS mapping: the close is answered with an error, and the messages stay; the last one ends it."""
    poster, session = topic_sender(begin(), address), begin(container_id=f"a-{address}")
    members = [lasting(session, address, f"own|{number}", "shared") for number in (1, 2)]
    for member in members:
        refused = by_name(session, "own").detach().error
        assert refused is not None
        assert refused.condition == "amqp:resource-locked"
        assert poster.outcome(data(b"kept")) == Accepted()
        session.sync()
        assert member.detach(closed=False).error is None
    assert by_name(session, "own").detach().error is None
    assert by_name(session, "own").error == "amqp:not-found"


@pytest.mark.rule("D1")
def test_a_null_source_finds_a_subscription_shared_by_all(begin: Begin, address: str) -> None:
    """By ``|global`` behind its name, as a JMS client without an id ends one."""
    name = f"all-{address}"
    lasting(begin(container_id=f"a-{address}"), address, name, "shared", "global").detach(closed=False)
    session = begin(container_id=f"b-{address}")
    assert by_name(session, name).error == "amqp:not-found"
    found = by_name(session, f"{name}|global")
    assert found.answer.source is not None
    assert found.answer.source.address == address
    found.detach()
    session.sync()
    assert by_name(session, f"{name}|global").error == "amqp:not-found"


@pytest.mark.rule("D1", "D5")
def test_a_shared_subscription_that_does_not_last_goes_with_the_last_of_its_links(
    begin: Begin, address: str, ask: Ask
) -> None:
    """What one of them held goes to the others; when all are gone, so is the group."""
    poster, session = topic_sender(begin(), address), begin(container_id=f"c-{address}")
    source = Source(address=address, capabilities=(*TOPIC, Symbol("shared")))
    first, second = (session.receiver(source, credit=1, name=f"prices|volatile{number}") for number in (1, 2))
    for body in (b"1", b"2"):
        assert poster.outcome(data(body)) == Accepted()
    held, other = first.take(), second.take()
    assert {held.body, other.body} == {b"1", b"2"}
    first.detach()
    accept(other)
    second.credit(1)
    again = second.take()
    assert (again.body, again.count) == (held.body, 1)
    second.detach()
    groups = "select g.name from coordinator.consumer_group g join coordinator.address a on a.id = g.address_id "
    while ask(groups + "where a.name = %s", address):
        time.sleep(0.05)
    assert poster.outcome(data(b"lost")) == Accepted()
    assert session.receiver(source, credit=1, name="prices|volatile1").drain() == []


@pytest.mark.rule("D1")
def test_one_that_does_not_last_stays_for_a_link_that_is_about_to_join(begin: Begin, address: str) -> None:
    """The link comes while the store is asked for the group, and the only other is detached behind it."""
    poster, session = topic_sender(begin(), address), begin(container_id=f"c-{address}")
    source = Source(address=address, capabilities=(*TOPIC, Symbol("shared")))
    first = session.receiver(source, name="prices|1")
    with session.peer.at_once():
        session.send(Attach(name="prices|2", handle=99, role=True, source=source, target=Target()))
        session.send(Detach(handle=first.handle, closed=True))
    second = Receiver(session, 99, session.peer.wait(Attach, name="prices|2"))
    session.sync()
    assert first.detached is not None
    assert poster.outcome(data(b"x")) == Accepted()
    assert second.bodies() == [b"x"]


@pytest.mark.rule("P13")
def test_a_link_attached_again_from_a_new_connection_is_stolen(begin: Begin, address: str) -> None:
    """Part 2, section 2.6.1. What the old link held comes back, to the new one; another container's is left alone."""
    old = begin(container_id=f"c-{address}")
    receiver = old.receiver(address, credit=10, name="mine")
    assert old.sender(address).outcome(data(b"1")) == Accepted()
    assert receiver.take().body == b"1"
    stranger = begin(container_id=f"d-{address}").receiver(address, name="mine")
    new = begin(container_id=f"c-{address}")
    taken = new.receiver(address, credit=10, name="mine")
    assert receiver.error == "amqp:link:stolen"
    delivery = taken.take()
    assert (delivery.body, delivery.count) == (b"1", 1)
    stranger.session.sync()
    assert stranger.answer is not None


@pytest.mark.rule("P13")
def test_a_link_attached_again_on_another_session_is_stolen(begin: Begin, address: str) -> None:
    """Part 2, section 2.6.1: a name is that of one link between two containers, whatever session it is on."""
    old = begin(container_id=f"c-{address}")
    receiver = old.receiver(address, credit=10, name="mine")
    assert old.sender(address).outcome(data(b"1")) == Accepted()
    assert receiver.take().body == b"1"
    new = old.peer.begin()
    taken = new.receiver(address, credit=10, name="mine")
    assert receiver.error == "amqp:link:stolen"
    assert (taken.take().body, taken.detached) == (b"1", None)


@pytest.mark.rule("D4")
def test_dead_letters_can_be_waited_for(begin: Begin, address: str) -> None:
    """A monitor attaches before the first letter; of an address that is not there it gets not-found."""
    session = begin()
    assert session.receiver(f"%DLQ%{address}").error == "amqp:not-found"
    consumer, sender = session.receiver(address, credit=1), session.sender(address)
    letters = session.receiver(f"%DLQ%{address}", credit=1)
    assert sender.outcome(data(b"1")) == Accepted()
    consumer.take().disposition(Rejected())
    assert letters.take().body == b"1"


@pytest.mark.rule("D1", "D4")
def test_a_dead_letter_rejected_in_a_group_stays_in_that_group(begin: Begin, address: str) -> None:
    """It comes to another consumer of the group; no second letter is made, neither there nor in other groups."""
    session = begin()
    consumer = session.receiver(address)
    post(session, address, b"1")
    consumer.take().disposition(Rejected())
    letters = dead_letters(session, address)
    letters.take().disposition(Released())  # it is there before the group is
    group = f"%DLQ%{address}::audit"
    audit = session.receiver(group)
    post(session, address, b"2")
    consumer.take().disposition(Rejected())
    audit.take().disposition(Rejected())
    again = session.receiver(group).take()
    assert (again.body, again.count) == (b"2", 1)
    assert letters.bodies() == [b"1", b"2"]


@pytest.mark.rule("D4")
@pytest.mark.parametrize("length", [1020, 1024])
def test_dead_letters_of_a_name_that_leaves_no_room_for_the_prefix(begin: Begin, address: str, length: int) -> None:
    """It is cut, with a digest in place of the rest; the neighbour of the same beginning has another."""
    session = begin()
    names = [(address + "x" * 1024)[: length - 1] + last for last in "ab"]
    for name in names:
        post(session, name, name[-1:].encode())
        session.receiver(name).take().disposition(Rejected())
    for name in names:
        letters = dead_letters(session, name)
        assert letters.take().message.annotations["x-opt-original-address"] == name


@pytest.mark.rule("D4")
@pytest.mark.parametrize("link", ["a::b", "a\nb", "x" * 1000], ids=["separator", "control", "long"])
def test_dead_letters_of_a_subscription_that_no_address_can_be_called_after(
    begin: Begin, address: str, link: str
) -> None:
    session = begin(container_id="dead-letters-of-links")
    consumer = lasting(session, address, link)
    post(session, address, b"x")
    consumer.take().disposition(Rejected())
    letters = dead_letters(session, f"{link}@dead-letters-of-links")
    assert letters.take().message.annotations["x-opt-original-address"] == address
    consumer.detach()
