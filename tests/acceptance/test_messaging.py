"""Messaging frame by frame (part 3; rules P8 to P12)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.codec.message import examine, sections
from tests.fix_compiled import BOTH_RULES
from tests.fix_service import Service
from tests.fix_wire import Begin
from tests.wire.frames import (
    RECEIVER,
    SENDER,
    Accepted,
    Modified,
    Rejected,
    Source,
    Target,
    TransactionalState,
)
from tests.wire.messages import SEQUENCE, VALUE, Header, Properties, data, section
from tests.wire.peer import Peer
from tests.wire.queues import browse, condition, post
from tests.wire.types import Described, Float, Long, Symbol, Timestamp, UInt, ULong

pytestmark = BOTH_RULES

# -- sources


@pytest.mark.rule("P8")
def test_a_browser_takes_nothing(begin: Begin, address: str) -> None:
    """Part 3, section 3.3.1: distribution-mode copy; the messages stay, whatever the browser says of them."""
    session = begin()
    post(session, address, b"1", b"2", b"3")
    browser = session.receiver(Source(address=address, distribution_mode="copy"))
    assert isinstance(browser.answer.source, Source)
    assert browser.answer.source.distribution_mode == "copy"
    for delivery in browser.drain():
        delivery.disposition(Rejected())
    browser.detach()
    assert browse(session, address) == [b"1", b"2", b"3"]
    assert [(each.body, each.count) for each in session.receiver(address).drain()] == [
        (b"1", 0),
        (b"2", 0),
        (b"3", 0),
    ]


@pytest.mark.rule("P8", "P17")
def test_a_browser_is_drained_while_it_looks(begin: Begin, address: str) -> None:
    """It looks behind the last message still, and is to look at everything again."""
    session = begin()
    sender = session.sender(address)
    assert sender.outcome(Header(priority=9).encoded() + data(b"x")) == Accepted()
    for _ in range(20):
        browser = session.receiver(Source(address=address, distribution_mode="copy"), credit=5)
        assert browser.take().body == b"x"
        assert browser.drain() == []
        browser.detach()


@pytest.mark.rule("D6")
@pytest.mark.parametrize("large", [False, True])
def test_a_delivery_has_the_count_of_this_queue_and_not_of_its_poster(begin: Begin, address: str, large: bool) -> None:
    session = begin()
    sender = session.sender(address)
    body = data(bytes(2 << 20) if large else b"x")
    assert sender.outcome(Header(durable=True, delivery_count=7).encoded() + body) == Accepted()
    consumer = session.receiver(address, credit=2)
    first = consumer.take()
    assert first.message.header.delivery_count == 0
    assert first.message.header.durable
    assert first.message.bare == body
    first.disposition(Modified(delivery_failed=True))
    again = consumer.take()
    assert (again.message.header.delivery_count, again.message.bare) == (1, body)
    again.disposition(Accepted())
    consumer.detach()


@pytest.mark.rule("P8")
def test_a_consumer_takes(begin: Begin, address: str) -> None:
    """Part 3, section 3.3.1: distribution-mode move; each message goes to one of the consumers."""
    session = begin()
    consumers = [session.receiver(Source(address=address, distribution_mode="move"), credit=10) for _ in range(2)]
    post(session, address, *(b"%d" % number for number in range(8)))
    while sum(len(consumer.arrived) for consumer in consumers) < 8:
        session.peer.step()
    bodies = [delivery.body for consumer in consumers for delivery in consumer.arrived]
    assert sorted(bodies) == [b"%d" % number for number in range(8)]


@pytest.mark.rule("P8", "P9")
@pytest.mark.parametrize("role", [SENDER, RECEIVER])
def test_a_dynamic_node(begin: Begin, role: bool) -> None:
    """Part 3, sections 3.5.3 and 3.5.4: the answer names it; it goes with its link."""
    session = begin()
    if role is SENDER:
        owner: Any = session.sender(Target(dynamic=True))
        terminus = owner.answer.target
    else:
        owner = session.receiver(Source(dynamic=True))
        terminus = owner.answer.source
    name = terminus.address
    assert name
    assert terminus.dynamic is True
    sender = session.sender(name) if role is RECEIVER else owner
    consumer = session.receiver(name) if role is SENDER else owner
    assert sender.outcome(data(b"x")) == Accepted()
    assert consumer.bodies() == [b"x"]
    owner.detach()
    refused = session.attach(SENDER, source=Source(), target=Target(address=name), initial_delivery_count=0)
    assert refused.target is None
    assert session.peer.wait(type(owner.detached), handle=refused.handle).error.condition == "amqp:not-found"


@pytest.mark.rule("P8", "P9")
@pytest.mark.parametrize("role", [SENDER, RECEIVER])
def test_a_dynamic_node_with_an_address(begin: Begin, address: str, role: bool) -> None:
    """Part 3, section 3.5.3: its client must not say one. The answer has that of the node that was made."""
    session = begin()
    if role is SENDER:
        answer: Any = session.sender(Target(dynamic=True, address=address)).answer.target
        consumer = session.receiver(answer.address)
    else:
        consumer = session.receiver(Source(dynamic=True, address=address))
        answer = consumer.answer.source
    assert answer.address != address
    post(session, answer.address, b"x")
    assert consumer.bodies() == [b"x"]


@pytest.mark.rule("P8")
def test_the_answer_has_a_distribution_mode(begin: Begin, address: str) -> None:
    """Part 3, section 3.5.3: the sending end has one in its source."""
    session = begin()

    def mode(**asked: Any) -> Any:
        source = session.receiver(Source(**asked)).answer.source
        assert source is not None
        return source.distribution_mode

    assert mode(address=address) == mode(address=address, distribution_mode="move") == "move"
    assert mode(address=address, distribution_mode="copy") == "copy"
    assert mode(dynamic=True) == mode(address="$check/group") == mode(address=f"{address}::*") == "move"
    assert mode(address=f"{address}-topic", capabilities=(Symbol("topic"),)) == "move"


@pytest.mark.rule("P8")
@pytest.mark.parametrize("capabilities", [("temporary-queue",), ("temporary-topic",), ()])
@pytest.mark.parametrize("named", [True, False])
def test_a_dynamic_node_is_consumed_by_its_own_connection_alone(
    begin: Begin, capabilities: tuple[str, ...], named: bool
) -> None:
    """The JMS mapping, of temporary queues and topics; others may post to it. ``named``: by the other's source, too."""
    asked = tuple(map(Symbol, capabilities)) or None
    session, other = begin(), begin()
    owner = session.sender(Target(dynamic=True, capabilities=asked))
    assert isinstance(owner.answer.target, Target)
    name = owner.answer.target.address
    assert name
    assert other.receiver(Source(address=name, capabilities=asked if named else None)).error == "amqp:resource-locked"
    own = session.receiver(Source(address=name, capabilities=asked))
    assert other.sender(name).outcome(data(b"reply")) == Accepted()
    assert own.bodies() == [b"reply"]


@pytest.mark.rule("P8")
def test_a_dynamic_node_goes_with_its_connection(begin: Begin) -> None:
    """Part 3, section 3.5.10: delete-on-close, which is the lifetime policy where none is asked for."""
    session, other = begin(), begin()
    consumer = session.receiver(Source(dynamic=True))
    assert isinstance(consumer.answer.source, Source)
    name = consumer.answer.source.address
    assert name
    assert other.sender(name).outcome(data(b"x")) == Accepted()
    session.peer.close()
    answer = other.attach(SENDER, source=Source(), target=Target(address=name), initial_delivery_count=0)
    assert answer.target is None


@pytest.mark.rule("P8")
def test_the_answer_says_what_is_granted(begin: Begin, address: str) -> None:
    """Part 3, section 3.5.3: outcomes are ours; filters that are not known are left out."""
    session = begin()
    consumer = session.receiver(
        Source(
            address=address,
            expiry_policy="link-detach",
            outcomes=("amqp:accepted:list", "no-such:list"),
            filter={Symbol("no-such"): Described(Symbol("no-such:filter"), "x")},
        )
    )
    source = consumer.answer.source
    assert isinstance(source, Source)
    assert source.address == address
    assert set(source.outcomes or ()) == {
        "amqp:accepted:list",
        "amqp:rejected:list",
        "amqp:released:list",
        "amqp:modified:list",
    }
    assert not source.filter
    post(session, address, b"x")
    assert consumer.bodies() == [b"x"]


@pytest.mark.rule("P9", "P8")
def test_a_topic_by_its_capability(begin: Begin, address: str) -> None:
    """Part 3, section 3.5.4: the capability topic: each consumer has all that is posted while it is there."""
    session = begin()
    sender = session.sender(Target(address=address, capabilities=("topic",)))
    consumers = [session.receiver(Source(address=address, capabilities=("topic",))) for _ in range(2)]
    assert sender.outcome(data(b"x")) == Accepted()
    assert [consumer.bodies() for consumer in consumers] == [[b"x"], [b"x"]]
    late = session.receiver(Source(address=address, capabilities=("topic",)))
    assert late.bodies() == []


# -- the relay


@pytest.mark.rule("P9")
def test_the_anonymous_relay(begin: Begin, address: str) -> None:
    """Anonymous terminus extension: a null address; each message says ``to``, in transactions and without."""
    session = begin()
    control, relay = session.control(), session.sender(Target())
    names = [f"{address}-{number}" for number in range(3)]
    for name in names:
        assert relay.outcome(Properties(to=name).encoded() + data(b"plain")) == Accepted()
    txn = control.declare()
    numbers = [relay.post(Properties(to=name).encoded() + data(b"in txn"), txn=txn) for name in names]
    for number in numbers:
        assert relay.answer_to(number).state == TransactionalState(txn_id=txn, outcome=Accepted())
    control.commit(txn)
    for name in names:
        assert session.receiver(name).bodies() == [b"plain", b"in txn"]


@pytest.mark.rule("P9", "T23")
def test_the_relay_to_nowhere(begin: Begin, address: str) -> None:
    """Anonymous terminus extension: unroutable is rejected(amqp:not-found), and the link lives on."""
    session = begin()
    control, relay = session.control(), session.sender(Target())
    nowhere = Properties(to="$no-such-node").encoded() + data(b"x")
    assert condition(relay.outcome(nowhere)) == "amqp:not-found"
    assert condition(relay.outcome(data(b"no to"))) == "amqp:precondition-failed"
    assert condition(relay.outcome(Properties(to="").encoded() + data(b"x"))) in (
        "amqp:not-found",
        "amqp:invalid-field",
    )
    txn = control.declare()
    assert isinstance(relay.outcome(Properties(to=address).encoded() + data(b"good"), txn=txn), TransactionalState)
    assert condition(relay.outcome(nowhere, txn=txn).outcome) == "amqp:not-found"
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    assert relay.outcome(Properties(to=address).encoded() + data(b"after")) == Accepted()
    assert session.receiver(address).bodies() == [b"after"]


@pytest.mark.rule("P9")
def test_a_discharge_waits_for_posts_whose_address_is_looked_up(begin: Begin, address: str) -> None:
    """Written in one go: settled posts to new addresses, and the discharge right behind them."""
    session = begin()
    control, relay = session.control(), session.sender(Target())
    txn = control.declare()
    names = [f"{address}-{number}" for number in range(5)]
    for name in names:
        relay.post(Properties(to=name).encoded() + data(b"x"), txn=txn, settled=True)
    control.commit(txn)
    for name in names:
        assert session.receiver(name).bodies() == [b"x"]


# -- the message

_ANY_VALUE = {
    "null": None,
    "string": "Zürich",
    "symbol": Symbol("s"),
    "list": [UInt(0), Long(-1), [], b""],
    "map": {"a": Float(0.5), Symbol("b"): None},
    "uuid": uuid.UUID(int=7),
    "described": Described(Symbol("x"), [ULong(1)]),
}


@pytest.mark.rule("P10")
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("transactional", [False, True])
def test_the_bare_message_goes_through_byte_for_byte(
    begin: Begin, address: str, large: bool, symbolic: bool, transactional: bool
) -> None:
    """Part 3, section 3.2: properties, application properties, body and footer; small and large encodings."""
    session = begin()
    bare = b"".join(
        (
            Properties(
                message_id=ULong(7), user_id=b"u", to="t", correlation_id=uuid.UUID(int=1), creation_time=Timestamp(1)
            ).encoded(large=large, symbolic=symbolic),
            section(0x74, {"k": "v", "n": Long(-3)}, large=large),
            section(VALUE, list(_ANY_VALUE.values()), large=large),
            section(0x78, {Symbol("f"): b"x"}, large=large),
        )
    )
    traced = {"x-opt-a": "kept", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    annotations = section(0x72, {Symbol(key): value for key, value in traced.items()}, large=large)
    octets = Header(durable=True, priority=7).encoded(large=large) + section(0x71, {Symbol("hop"): True}) + annotations
    control = session.control()
    txn = control.declare() if transactional else None
    session.sender(address).outcome(octets + bare, txn=txn)
    if txn:
        control.commit(txn)
    consumer = session.receiver(address)
    first = consumer.take()
    assert first.octets.endswith(bare)
    assert first.message.annotations == traced
    first.disposition(Modified(delivery_failed=True))
    again = consumer.take()
    assert again.octets.endswith(bare)
    header = again.message.header
    assert (header.durable, header.priority, header.delivery_count) == (True, 7, 1)
    assert not header.first_acquirer
    assert again.message.annotations == traced


@pytest.mark.rule("P10")
@pytest.mark.parametrize(
    "octets",
    [
        pytest.param(section(SEQUENCE, [UInt(1)]) + section(SEQUENCE, [UInt(2)]), id="sequences"),
        pytest.param(data(b"1") + data(b"2"), id="data twice"),
        pytest.param(b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x01x", id="a wide descriptor"),
        pytest.param(b"\x00\xa3\x10amqp:data:binary\xa0\x01x", id="a symbol for descriptor"),
        pytest.param(section(VALUE, None), id="a null body"),
        pytest.param(data(b""), id="an empty body"),
        pytest.param(Properties(message_id="only").encoded(), id="no body"),
        pytest.param(b"", id="nothing at all"),
    ],
)
def test_messages_of_every_shape(begin: Begin, address: str, octets: bytes) -> None:
    """Part 3, section 3.2: what is well formed goes through."""
    session = begin()
    assert session.sender(address).outcome(octets) == Accepted()
    assert session.receiver(address).take().octets.endswith(octets)


@pytest.mark.rule("P10")
@pytest.mark.parametrize(
    "octets",
    [
        pytest.param(b"\xff", id="no section"),
        pytest.param(b"\x00", id="cut in the descriptor"),
        pytest.param(b"\x00\x53\x75", id="no value"),
        pytest.param(b"\x00\x53\x75\xa0\x05x", id="cut in the body"),
        pytest.param(b"\x00\x53\x99\xa0\x01x", id="unknown section"),
        pytest.param(b"\x00\x53\x75\xa1\x01x", id="data as a string"),
        pytest.param(section(VALUE, True) + section(VALUE, True), id="two values"),
        pytest.param(data(b"x") + section(VALUE, "x"), id="two kinds of body"),
        pytest.param(data(b"x") + Header().encoded(), id="the header last"),
        pytest.param(section(0x70, {}) + data(b"x"), id="header as a map"),
        pytest.param(section(0x74, ["x"]) + data(b"x"), id="application properties as a list"),
        pytest.param(section(0x73, [None, None, None, None, None, None, None, None, "soon"]), id="expiry a string"),
        pytest.param(section(0x70, [True, None, "long"]) + data(b"x"), id="ttl a string"),
        pytest.param(data(b"x") + b"rubbish", id="octets behind"),
        pytest.param(b"\x00\x53\x77" + b"\x00\x40" * 5000 + b"\x40", id="nested without end"),
        pytest.param(b"\x00\x53\x73\xd0\xff\xff\xff\xff\x00\x00\x00\x01", id="a list of 4 GB"),
    ],
)
def test_malformed_sections_are_refused(begin: Begin, address: str, octets: bytes) -> None:
    """Part 3, section 3.2: rejected(amqp:decode-error), and nothing of it is stored; the link lives on."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    assert condition(sender.outcome(octets)) == "amqp:decode-error"
    txn = control.declare()
    assert condition(sender.outcome(octets, txn=txn).outcome) == "amqp:decode-error"
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    assert sender.outcome(data(b"good")) == Accepted()
    assert session.receiver(address).bodies() == [b"good"]


_WELL_FORMED = (
    Header(durable=True, ttl=100_000).encoded()
    + section(0x72, {Symbol("x-opt"): [UInt(1), "two"]})
    + Properties(message_id="m", absolute_expiry_time=4_000_000_000_000).encoded()
    + section(0x74, {"key": "value", "number": Long(7)}, large=True)
    + section(VALUE, {"body": [b"1", Float(0.5)]})
)


def _bare(octets: bytes) -> bytes:
    return b"".join(octets[start:end] for code, start, _, end in sections(octets) if code >= Properties.CODE)


def _expires_sooner(octets: bytes) -> bool:
    """Than :data:`_WELL_FORMED` does: it may be gone before it is delivered."""
    facts, before = examine(octets), examine(_WELL_FORMED)
    assert before.ttl_ms is not None
    assert before.absolute_expiry_ms is not None
    return (facts.ttl_ms is not None and facts.ttl_ms < before.ttl_ms) or (
        facts.absolute_expiry_ms is not None and facts.absolute_expiry_ms < before.absolute_expiry_ms
    )


@pytest.mark.rule("P10", "P14")
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(edits=st.lists(st.tuples(st.integers(0, len(_WELL_FORMED) - 1), st.integers(0, 255)), max_size=4), cut=st.data())
def test_mutated_messages_are_taken_whole_or_refused(service: Service, edits: Any, cut: Any) -> None:
    """Part 3, section 3.2: each is accepted and comes out as it went in, or is a decode error; the link lives."""
    octets = bytearray(_WELL_FORMED)
    for at, value in edits:
        octets[at] = value
    message = bytes(octets[: cut.draw(st.integers(0, len(octets)))]) if cut.draw(st.booleans()) else bytes(octets)
    peer = Peer(service.port)
    try:
        peer.open()
        session = peer.begin()
        state = session.sender("mutated").outcome(message)
        if state == Accepted():
            found = session.receiver("mutated").drain()
            assert [_bare(delivery.octets) for delivery in found] == [_bare(message)] or _expires_sooner(message)
            for delivery in found:
                delivery.disposition(Accepted())
        else:
            assert condition(state) == "amqp:decode-error"
        peer.close()
    finally:
        peer.close_socket()
