"""Producers: links for posts whose client names itself, so that a post which comes again is stored once (rule P22)."""

from __future__ import annotations

from typing import Any

import pytest

from store.spool import LARGE
from tests.fix_night import by_night
from tests.fix_service import running_service
from tests.fix_wire import Ask, Begin, BeginAt
from tests.wire.frames import Accepted, Source, Target
from tests.wire.links import Sender
from tests.wire.messages import Properties, data
from tests.wire.peer import Session
from tests.wire.queues import post
from tests.wire.types import Symbol

pytestmark = pytest.mark.rule("P22")


def producing(session: Session, address: Any, name: object = "shop", **fields: Any) -> Sender:
    return session.sender(address, properties={Symbol("coordinator:producer"): name}, **fields)


def bodies(session: Session, address: str) -> list[bytes]:
    return sorted(session.receiver(address).bodies())


@pytest.mark.parametrize("consumed", [0, 1])
def test_a_post_whose_answer_was_lost_comes_again(begin: Begin, address: str, consumed: int) -> None:
    """On another connection, with others that are new; also once the first is consumed and gone."""
    lost, session = begin(), begin()
    sender = producing(lost, address)
    assert sender.outcome(data(b"1"), delivery_tag=b"1") == Accepted()
    lost.peer.close_socket()
    for _ in range(consumed):
        session.receiver(address, credit=1).take().disposition(Accepted())
    again = producing(session, address)
    for number in (1, 2, 1):
        assert again.outcome(data(b"%d" % number), delivery_tag=b"%d" % number) == Accepted()
    assert bodies(session, address) == [b"1", b"2"][consumed:]


def test_all_that_were_under_way_come_again(begin: Begin, address: str) -> None:
    """Some are stored, some are not, and some are stored while they come again."""
    lost, session = begin(), begin()
    sender, again = producing(lost, address), producing(session, address)
    for number in range(200):
        sender.post(data(b"%03d" % number), delivery_tag=b"%d" % number)
    lost.peer.close_socket()
    numbers = [again.post(data(b"%03d" % number), delivery_tag=b"%d" % number) for number in range(300)]
    assert {again.answer_to(number).state for number in numbers} == {Accepted()}
    assert bodies(session, address) == [b"%03d" % number for number in range(300)]


def test_posts_of_others_in_its_batch_are_stored(begin: Begin, address: str) -> None:
    session, other = begin(), begin()
    sender, plain = producing(session, address), other.sender(address)
    assert sender.outcome(data(b"a"), delivery_tag=b"a") == Accepted()
    numbers, others = [], []
    for number in range(50):
        numbers.append(sender.post(data(b"a"), delivery_tag=b"a"))
        others.append(plain.post(data(b"%02d" % number)))
    assert {sender.answer_to(number).state for number in numbers} == {Accepted()}
    assert {plain.answer_to(number).state for number in others} == {Accepted()}
    assert bodies(session, address) == [*(b"%02d" % number for number in range(50)), b"a"]


def test_a_tag_is_one_producers_at_one_address(begin: Begin, address: str, ask: Ask) -> None:
    session = begin()
    senders = producing(session, address), producing(session, address, "shop-2"), session.sender(address)
    for sender in (*senders, producing(session, f"{address}-2")):
        assert sender.outcome(data(b"x"), delivery_tag=b"1") == Accepted()
    assert bodies(session, address) == [b"x"] * 3
    assert bodies(session, f"{address}-2") == [b"x"]
    query = "select p.producer, p.tag from coordinator.posted p join coordinator.address a on a.id = p.address_id"
    assert sorted(ask(f"{query} where a.name = %s", address)) == [("shop", b"1"), ("shop-2", b"1")]


WAYS = [
    pytest.param({}, b"x", id="plain"),
    pytest.param({"settled": True}, b"x", id="settled"),
    pytest.param({"frame_size": 3}, b"x" * 20, id="in frames"),
    pytest.param({}, b"x" * (LARGE + 1), id="large"),
]


@pytest.mark.parametrize("relay", [False, True])
@pytest.mark.parametrize("waiting", [False, by_night(True)])
@pytest.mark.parametrize(("fields", "body"), WAYS)
def test_however_it_comes(
    begin: Begin, address: str, fields: dict[str, Any], body: bytes, relay: bool, waiting: bool
) -> None:
    """With a consumer that waits, the entry is its service's from the beginning."""
    session = begin()
    receiver = session.receiver(address, credit=10) if waiting else None
    sender = producing(session, None if relay else address)
    message = Properties(to=address).encoded() + data(body)
    for _ in range(3):
        sender.post(message, delivery_tag=b"1", **fields)
    assert sender.outcome(Properties(to=address).encoded() + data(b"last"), delivery_tag=b"2") == Accepted()
    receiver = session.receiver(address, credit=10) if receiver is None else receiver
    assert {delivery.body for delivery in receiver.take_many(2)} == {body, b"last"}
    assert receiver.drain() == []


def test_to_subscriptions_and_message_groups(begin: Begin, address: str) -> None:
    session = begin()
    receivers = [session.receiver(Source(address=address, capabilities=("topic",)), name=name) for name in ("a", "b")]
    sender = producing(session, Target(address=address, capabilities=("topic",)))
    for _ in range(2):
        assert sender.outcome(data(b"x"), delivery_tag=b"1") == Accepted()
    assert [receiver.bodies() for receiver in receivers] == [[b"x"], [b"x"]]


def test_in_a_transaction_tags_are_any(begin: Begin, address: str) -> None:
    """Its decision can be asked for; what is rolled back may be posted again under its tag."""
    session = begin()
    control, sender = session.control(), producing(session, address)
    for decide in (control.roll_back, control.commit, control.commit):
        txn = control.declare()
        sender.post(data(b"x"), txn=txn, delivery_tag=b"1")
        decide(txn)
    assert sender.outcome(data(b"y"), delivery_tag=b"1") == Accepted()
    assert bodies(session, address) == [b"x", b"x", b"y"]


@pytest.mark.parametrize("tag", [b"", b"x" * 33])
def test_a_tag_that_names_nothing(begin: Begin, address: str, tag: bytes) -> None:
    """A settled post has no answer: its link ends. One of 32 octets is the longest (part 2, section 2.8.7)."""
    session = begin()
    sender = producing(session, address)
    rejected = sender.outcome(data(b"x"), delivery_tag=tag)
    assert rejected.error.condition == "amqp:invalid-field"
    assert f"a delivery-tag of {len(tag)} octets" in rejected.error.description
    assert sender.outcome(data(b"32"), delivery_tag=b"x" * 32) == Accepted()
    sender.post(data(b"x"), delivery_tag=tag, settled=True)
    assert sender.error == "amqp:invalid-field"
    assert bodies(session, address) == [b"32"]


@pytest.mark.parametrize("name", ["", "x" * 201, "\0", b"shop", True])
def test_a_name_that_is_none(begin: Begin, address: str, name: object) -> None:
    session = begin()
    sender = producing(session, address, name)
    assert sender.error == "amqp:invalid-field"
    assert "coordinator:producer is a string of 1 to 200 octets" in str(sender.detached)
    post(session, address, b"others")
    assert bodies(session, address) == [b"others"]


def test_over_a_kill_of_the_service(begin_at: BeginAt) -> None:
    """The service ends while some are on their way to the store: each is stored, once."""
    with running_service() as service:
        sender = producing(begin_at(service), "q")
        numbers = [sender.post(data(b"%03d" % number), delivery_tag=b"%d" % number) for number in range(500)]
        sender.answer_to(numbers[0])
        service.kill()
        service.restart()
        session = begin_at(service)
        again = producing(session, "q")
        numbers = [again.post(data(b"%03d" % number), delivery_tag=b"%d" % number) for number in range(500)]
        assert {again.answer_to(number).state for number in numbers} == {Accepted()}
        assert bodies(session, "q") == [b"%03d" % number for number in range(500)]
