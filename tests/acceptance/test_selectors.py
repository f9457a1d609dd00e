"""Selectors and no-local frame by frame (rule P16; part 3, section 3.5.8; Jakarta Messaging 3.1, section 3.8)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest

from tests.fix_compiled import BOTH_RULES
from tests.fix_service import Service, running_service
from tests.fix_wire import Ask, Begin
from tests.wire.frames import RECEIVER, Accepted, Attach, Detach, Modified, Released, Source, Target
from tests.wire.links import Delivery, Sender
from tests.wire.messages import APPLICATION_PROPERTIES, VALUE, Header, Properties, section
from tests.wire.peer import PATIENCE, Peer, Session
from tests.wire.queues import NO_LOCAL, SELECTOR, filtered, select
from tests.wire.types import Described, Double, Int, Long, Symbol, UInt, ULong

pytestmark = [pytest.mark.rule("P16"), *BOTH_RULES]


def numbered(number: int, **properties: Any) -> bytes:
    application = section(APPLICATION_PROPERTIES, {"n": Int(number), **properties})
    return application + section(VALUE, f"m{number}")


def post(sender: Sender, numbers: range) -> None:
    """Post all, then see that all were taken."""
    for delivery in [sender.post(numbered(number)) for number in numbers]:
        assert sender.answer_to(delivery).state == Accepted()


def bodies(deliveries: list[Delivery]) -> list[Any]:
    return [delivery.body for delivery in deliveries]


@pytest.mark.parametrize("descriptor", [SELECTOR, Symbol("apache.org:selector-filter:string")], ids=str)
def test_the_answer_holds_the_filters_that_are_honoured(begin: Begin, address: str, descriptor: Any) -> None:
    """No-local is not honoured on a queue, and the third filter is unknown: both are left out."""
    selector = Described(descriptor, "n > 1")
    asked = {"s": selector, "l": Described(NO_LOCAL, []), "x": Described(Symbol("example:unknown"), "y")}
    link = begin().receiver(filtered(address, asked))
    assert link.answer.source is not None
    assert link.answer.source.filter == {"s": selector}


def test_only_what_matches_is_delivered_and_the_rest_stays(begin: Begin, address: str) -> None:
    session = begin()
    post(session.sender(address), range(10))
    even = select(session, address, "n IN ('x') OR n = 2 OR n BETWEEN 4 AND 6")
    assert even.bodies() == ["m2", "m4", "m5", "m6"]
    session.sync()
    assert session.receiver(address).bodies() == ["m0", "m1", "m3", "m7", "m8", "m9"]


def test_messages_come_as_they_are_posted(begin: Begin, address: str) -> None:
    session = begin()
    link = select(session, address, "n >= 5")
    link.credit(10)
    sender = session.sender(address)
    post(sender, range(10))
    assert bodies(link.take_many(5)) == [f"m{n}" for n in range(5, 10)]


def test_a_bad_one_is_refused_with_its_place(begin: Begin, address: str) -> None:
    link = select(begin(), address, "n = 1 AND\n n ! 2")
    assert link.answer.source is None
    error = link.wait_detached().error
    assert error is not None
    assert error.condition == "amqp:invalid-field"
    assert "line 2, column 4" in (error.description or "")


@pytest.mark.parametrize("value", [Int(5), Symbol("n = 1")], ids=repr)
def test_a_selector_is_a_string(begin: Begin, address: str, value: Any) -> None:
    link = begin().receiver(filtered(address, {"s": Described(SELECTOR, value)}))
    assert link.error == "amqp:invalid-field"


def test_an_empty_one_selects_everything(begin: Begin, address: str) -> None:
    session = begin()
    post(session.sender(address), range(3))
    assert select(session, address, " ").bodies() == ["m0", "m1", "m2"]


def test_a_match_is_found_behind_ten_thousand_others(begin: Begin, address: str, ask: Ask) -> None:
    """Behind five windows of messages that no consumer here selects; none of them is leased, then or later."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    for start in range(0, 10_000, 1000):
        txn = control.declare()
        for number in range(start, start + 1000):
            sender.post(numbered(number), txn=txn, settled=True)
        control.commit(txn)
    post(sender, range(10_000, 10_003))
    link = select(session, address, "n >= 10001")
    assert bodies(link.take_many(2)) == ["m10001", "m10002"]
    assert ask("select count(*) from coordinator.entry where lease <> 0") == [(2,)]
    post(sender, range(20_000, 20_001))
    assert link.take().body == "m20000"


def test_a_consumer_without_credit_hides_nothing(begin: Begin, address: str) -> None:
    """The second gets what its instance has loaded for the first and the first does not take."""
    session = begin()
    post(session.sender(address), range(50))
    plain = session.receiver(address, credit=1)
    assert plain.take().body == "m0"
    chosen = select(session, address, "n = 7 OR n = 30")
    assert chosen.bodies() == ["m7", "m30"]
    post(session.sender(address), range(100, 102))
    assert select(session, address, "n = 101").bodies() == ["m101"]
    assert bodies(plain.take_many(3)) == ["m1", "m2", "m3"]


def test_consumers_that_choose_alike_share(begin: Begin, address: str) -> None:
    sessions = [begin() for _ in range(3)]
    post(sessions[0].sender(address), range(60))
    links = [select(session, address, "n < 30") for session in sessions]
    for link in links:
        link.credit(10)
    seen = [link.take().body for link in links for _ in range(10)]
    assert sorted(seen) == sorted(f"m{n}" for n in range(30))


def test_what_comes_back_is_found_again(begin: Begin, address: str) -> None:
    """Released: back in its place. Modified: with a count that a selector sees. Undeliverable here: to others."""
    session = begin()
    post(session.sender(address), range(6))
    link = select(session, address, "n < 5")
    first = link.take_many(3)
    first[1].disposition(Released())
    assert link.take().body == "m1"
    first[0].disposition(Modified(delivery_failed=True))
    again = link.take()
    assert (again.body, again.count) == ("m0", 1)
    again.disposition(Modified(undeliverable_here=True))
    first[2].disposition(Modified(delivery_failed=True))
    failed = select(session, address, "JMSXDeliveryCount = 2")
    assert sorted(delivery.body for delivery in failed.take_many(2)) == ["m0", "m2"]
    assert bodies(link.drain()) == ["m3", "m4"]


def test_a_transaction_retires_what_was_chosen(begin: Begin, address: str) -> None:
    session = begin()
    post(session.sender(address), range(4))
    link = select(session, address, "n = 1 OR n = 2")
    control = session.control()
    one, two = link.take_many(2)
    txn = control.declare()
    one.retire(txn)
    control.commit(txn)
    txn = control.declare()
    two.retire(txn)
    control.roll_back(txn)
    assert link.take().body == "m2"
    link.detach()
    assert session.receiver(address).bodies() == ["m0", "m2", "m3"]


def test_a_lost_consumer_gives_back(begin: Begin, address: str) -> None:
    session, other = begin(), begin()
    post(session.sender(address), range(4))
    assert bodies(select(other, address, "n > 1").take_many(2)) == ["m2", "m3"]
    other.peer.close_socket()
    again = select(session, address, "n > 1").take_many(2)
    assert [(delivery.body, delivery.count) for delivery in again] == [("m2", 1), ("m3", 1)]


def test_a_browser_sees_what_matches(begin: Begin, address: str) -> None:
    session = begin()
    post(session.sender(address), range(500))
    link = select(session, address, "n >= 100 AND n < 110 OR n = 480", distribution_mode="copy")
    assert link.answer.source is not None
    assert link.answer.source.filter
    assert bodies(link.take_many(3)) == ["m100", "m101", "m102"]
    assert bodies(link.drain()) == [f"m{n}" for n in range(103, 110)] + ["m480"]
    assert len(session.receiver(address).bodies()) == 500


def test_headers_can_be_selected_by(begin: Begin, address: str) -> None:
    session = begin()
    sender = session.sender(address)
    for priority in (1, 5, 9):
        message = section(Header.CODE, Header(priority=priority).described().value) + section(VALUE, Int(priority))
        assert sender.outcome(message) == Accepted()
    assert select(session, address, "JMSPriority > 4").bodies() == [9, 5]


@pytest.fixture(scope="module")
def two_workers(rules: None) -> Iterator[Service]:
    with running_service({"workers": "2"}) as service:
        yield service


def test_choosing_among_instances(two_workers: Service) -> None:
    """Whichever worker a connection is with: what one posts or gives back, consumers of the other find."""
    peers = [Peer(two_workers.port) for _ in range(8)]
    for peer in peers:
        peer.open()
    sessions = [peer.begin() for peer in peers]
    for number, session in enumerate(sessions):
        post(session.sender("q"), range(1000 * number, 1000 * number + 20))
    links = [
        select(
            session,
            "q",
            f"n >= {1000 * number} AND n < {1000 * number + 10}",
        )
        for number, session in enumerate(sessions)
    ]
    for number, link in enumerate(reversed(links)):
        first = 1000 * (len(links) - 1 - number)
        taken = link.take_many(10)
        assert sorted(delivery.body for delivery in taken) == [f"m{n}" for n in range(first, first + 10)]
        for delivery in taken:
            delivery.disposition(Modified(delivery_failed=True))
    for link in links:
        link.detach()
    again = select(sessions[0], "q", "n BETWEEN 3000 AND 3009 AND JMSXDeliveryCount > 1 OR n = 99999")
    assert len(again.take_many(10)) == 10
    post(sessions[5].sender("q"), range(99_999, 100_000))
    assert again.take().body == "m99999"
    for peer in peers:
        peer.close_socket()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("workers", ["service", "two_workers"])
def test_replies_of_many_clients_at_one_address(request: pytest.FixtureRequest, workers: str, seed: int) -> None:
    """Each asks for one colour, by links of its own, and takes, gives back, or goes away. Nothing is passed over."""
    chance = random.Random(seed)
    peers = [Peer(request.getfixturevalue(workers).port) for _ in range(4)]
    for peer in peers:
        peer.open()
    sessions = [peer.begin() for peer in peers]
    left: dict[str, set[str]] = {colour: set() for colour in ("red", "green", "blue")}
    name = f"replies-{seed}"
    for number in range(120):
        session, colour = chance.choice(sessions), chance.choice(sorted(left))
        if number % 2 == 0:
            sender = session.sender(name)
            assert sender.outcome(numbered(number, colour=colour)) == Accepted()
            sender.detach()
            left[colour].add(f"m{number}")
        elif left[colour]:
            link = select(session, name, f"n >= 0 AND colour = '{colour}'")
            taken = link.take()
            assert taken.body in left[colour]
            how = chance.choice([Accepted(), Accepted(), Released(), Modified(delivery_failed=True), None])
            if how is not None:
                taken.disposition(how)
            if how == Accepted():
                left[colour].remove(taken.body)
            link.detach()
    for colour, bodies_left in left.items():
        link = select(sessions[0], name, f"colour = '{colour}'")
        taken_last = link.take_many(len(bodies_left))
        assert {delivery.body for delivery in taken_last} == bodies_left
        for delivery in taken_last:
            delivery.disposition(Accepted())
        assert link.drain() == []
    for peer in peers:
        peer.close_socket()


TOPIC = (Symbol("topic"),)


def test_a_subscription_gets_what_it_selects_and_keeps_nothing_else(begin: Begin, address: str, ask: Ask) -> None:
    session = begin()
    chosen = select(session, address, "n = 3 OR n = 5000", capabilities=TOPIC)
    every = session.receiver(Source(address=address, capabilities=TOPIC))
    post(session.sender(address), range(100))
    chosen.credit(1)
    assert chosen.take().body == "m3"
    assert len(every.bodies()) == 100
    assert chosen.drain() == []
    post(session.sender(address), range(5000, 5001))
    assert chosen.take().body == "m5000"
    left = (
        "select count(*) from coordinator.entry e join coordinator.consumer_group g on g.id = e.group_id "
        "join coordinator.address a on a.id = g.address_id where a.name = %s"
    )
    assert ask(left, address) == [(3,)]  # the two that the one has not accepted yet, and what the other has not taken


@pytest.mark.rule("P16", "R13")
def test_no_local_leaves_out_what_its_own_connection_posts(begin: Begin, address: str, ask: Ask) -> None:
    """In a transaction and outside; another subscription of the connection has it all."""
    session, other = begin(), begin()
    quiet = session.receiver(filtered(address, {"no-local": Described(NO_LOCAL, [])}, capabilities=TOPIC))
    assert quiet.answer.source is not None
    assert list(quiet.answer.source.filter or ()) == ["no-local"]
    every = session.receiver(Source(address=address, capabilities=TOPIC))
    control = session.control()
    sender = session.sender(address)
    post(sender, range(2))
    txn = control.declare()
    sender.post(numbered(2), txn=txn, settled=True)
    control.commit(txn)
    post(other.sender(address), range(3, 5))
    assert quiet.bodies() == ["m3", "m4"]
    assert every.bodies() == [f"m{n}" for n in range(5)]
    # each has a trace of its own: nothing seems to be lost
    traces = """select count(*), count(distinct h.id) from coordinator.half h
                  join coordinator.address a on a.id = h.address_id
                  join coordinator.op o on h.id = any(o.half_ids) where a.name = %s and o.reason = 'no-local'"""
    assert ask(traces, address) == [(3, 3)]


@pytest.mark.rule("P14")
def test_a_selector_that_costs_much_holds_up_no_other_client(begin: Begin, address: str) -> None:
    """A long pattern over long properties, and what is behind them; another client is served meanwhile."""
    session, neighbour = begin(), begin()
    sender = session.sender(address)
    for number in range(4):
        assert sender.outcome(numbered(number, s="a" * 900_000)) == Accepted()
    post(sender, range(4, 6))
    chosen = select(session, address, "s LIKE '%" + "a" * 7000 + "b%' OR s LIKE '%" + "a_" * 400 + "b%' OR n = 5")
    chosen.credit(10)
    for number in range(20):
        post(neighbour.sender(f"{address}-beside"), range(number, number + 1))
    assert chosen.take().body == "m5"


def test_a_large_message_whose_properties_are_not_at_hand_is_not_lost(begin: Begin, address: str) -> None:
    """The properties of a message over 1 MiB pass what is read with its entry: it is delivered, not accepted away.
    One whose properties are all there, and do not match, is left out.
    """
    session = begin()
    chosen = select(session, address, "n = 1", capabilities=TOPIC)
    chosen.credit(3)
    sender = session.sender(address)
    body = section(VALUE, "x" * ((1 << 20) + 1000))
    for properties in ({"long": "y" * 100_000, "n": Int(1)}, {"n": Int(2)}, {"n": Int(1)}):
        assert sender.outcome(section(APPLICATION_PROPERTIES, properties) + body) == Accepted()
    sizes = [len(chosen.take().octets) for _ in range(2)]
    assert sizes[0] - sizes[1] > 90_000


def attach_many(session: Session, address: str, texts: list[str], *, detach: bool) -> None:
    """All in one piece."""
    with session.peer.at_once():
        for handle, text in enumerate(texts):
            source = filtered(address, {"s": Described(SELECTOR, text)})
            session.send(Attach(name=f"many {handle}", handle=handle, role=RECEIVER, source=source, target=Target()))
            if detach:
                session.send(Detach(handle=handle, closed=True))


def long_selectors(number: int) -> list[str]:
    return [f"b = {each} OR " + " OR ".join(["a=1"] * 125) for each in range(number)]


@pytest.mark.rule("S6")
def test_long_selectors_of_one_client_hold_up_no_other(begin: Begin, address: str) -> None:
    """They come in one read, and take a second. Another client is answered between them."""
    neighbour, client = begin(), begin()
    texts = long_selectors(60)
    attach_many(client, address, texts, detach=False)
    neighbour.receiver(address)
    peer = client.peer
    peer.socket.settimeout(0.001)
    with suppress(AssertionError):
        while True:
            peer.step()
    peer.socket.settimeout(PATIENCE)
    answered = len(peer.heard)
    assert answered < len(texts)
    for handle in range(len(texts)):
        assert peer.wait(Attach, handle=handle).source is not None


@pytest.mark.rule("S6")
def test_an_attach_that_waits_for_its_turn_can_be_detached(begin: Begin, address: str) -> None:
    client = begin()
    texts = long_selectors(20)
    attach_many(client, address, texts, detach=True)
    for _ in texts:  # the handles of our side are free again, and so the same
        client.peer.wait(Detach)
    client.peer.heard.clear()
    assert select(client, address, texts[0]).answer.source is not None


_PROPERTIES, _APPLICATION, _SQL = ULong(0x173), ULong(0x174), ULong(0x120)


def described(number: int) -> bytes:
    """A message with properties of many types."""
    kinds = (f"id-{number}", ULong(number), UUID(int=number), b"%d" % number)
    properties = Properties(
        message_id=kinds[number % 4],
        user_id=b"u%d" % (number % 2),
        subject=("red", "reddish", "blue", "dark blue")[number % 4],
        content_type=Symbol("text/plain") if number % 2 else None,
        group_sequence=UInt(number),
    )
    application = {"n": Int(number), "&odd": number % 2 == 1, "a 'name'": "it's" if number < 6 else "100%"}
    return properties.encoded() + section(APPLICATION_PROPERTIES, application) + section(VALUE, f"m{number}")


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"s": (_PROPERTIES, {Symbol("subject"): "red"})}, [0, 4, 8]),
        ({"s": (_PROPERTIES, {Symbol("subject"): "&p:red"})}, [0, 1, 4, 5, 8, 9]),
        ({"s": (_PROPERTIES, {Symbol("subject"): "&s:blue", Symbol("user-id"): b"u1"})}, [3, 7, 11]),
        ({"s": (_PROPERTIES, {Symbol("message-id"): "id-4"})}, [4]),
        ({"s": (_PROPERTIES, {Symbol("message-id"): ULong(5)})}, [5]),
        ({"s": (_PROPERTIES, {Symbol("message-id"): UUID(int=6)})}, [6]),
        ({"s": (_PROPERTIES, {Symbol("message-id"): b"7"})}, [7]),
        ({"s": (_PROPERTIES, {Symbol("content-type"): Symbol("text/plain"), Symbol("to"): None})}, [1, 3, 5, 7, 9, 11]),
        ({"s": (_PROPERTIES, {Symbol("group-sequence"): UInt(9)})}, [9]),
        ({"s": (Symbol("amqp:properties-filter"), {Symbol("correlation-id"): "x"})}, []),
        ({"s": (_APPLICATION, {"n": Long(3)})}, [3]),
        ({"s": (_APPLICATION, {"n": Double(3.0), "&odd": True})}, [3]),
        ({"s": (_APPLICATION, {"a 'name'": "it's", "&odd": False})}, [0, 2, 4]),
        ({"s": (_APPLICATION, {"a 'name'": "&s:0%", "&odd": True})}, [7, 9, 11]),
        ({"s": (_APPLICATION, {"a 'name'": "&&it's"})}, []),
        ({"s": (_SQL, "p.subject = 'red' OR n >= 10")}, [0, 4, 8, 10, 11]),
        ({"s": (_SQL, "properties.subject LIKE \"dark%\" AND [a 'name'] <> '100%'")}, [3]),
        ({"s": (_SQL, "a.n != 0 AND application-properties.n < 2 AND header.priority = 4")}, [1]),
        ({"s": (Symbol("amqp:sql-filter"), "[&odd] AND n IS NOT NULL AND JMSPriority IS NULL")}, [1, 3, 5, 7, 9, 11]),
        ({"s": (_SQL, "n > 4"), "p": (_APPLICATION, {"n": Int(4)}), "j": (SELECTOR, "n = 0 OR n = 4")}, []),
        ({"s": (_SQL, "n > 3"), "p": (_APPLICATION, {"n": Int(4)}), "j": (SELECTOR, "n = 0 OR n = 4")}, [4]),
        ({"p": (_PROPERTIES, {})}, list(range(12))),
    ],
    ids=str,
)
def test_filters_of_amqp_select(begin: Begin, address: str, filters: dict[str, Any], expected: list[int]) -> None:
    """OASIS AMQP Filter Expressions 1.0, sections 4.1.1, 4.2.4, 4.2.5 and 6: all of a source's are to match."""
    session = begin()
    sender = session.sender(address)
    assert [sender.outcome(described(number)) for number in range(12)] == [Accepted()] * 12
    asked = {name: Described(*each) for name, each in filters.items()}
    link = session.receiver(filtered(address, asked))
    assert link.answer.source is not None
    assert link.answer.source.filter == asked
    assert link.bodies() == [f"m{number}" for number in expected]


@pytest.mark.parametrize(
    ("descriptor", "value", "says"),
    [
        (_PROPERTIES, {Symbol("priority"): Int(4)}, "priority is no field of the properties"),
        (_PROPERTIES, {Symbol("subject"): "&red"}, "&red begins with &: expected &p:, &s: or && before the text"),
        (_PROPERTIES, {Symbol("user-id"): "me"}, "the value of user-id is of a type that selects nothing there"),
        (_PROPERTIES, "subject", "a map was expected"),
        (_APPLICATION, {"b": b"octets"}, "the value of b is of a type that selects nothing there"),
        (_APPLICATION, {"b": Double("nan")}, "the value of b is of a type"),
        (_APPLICATION, {Int(1): "x"}, "a key of type int, the name of a property was expected"),
        (_APPLICATION, {f"k{number}": "x" for number in range(200)}, "at most 512 names, values and signs"),
        (_SQL, "UTC() > 3", "the function UTC is not known"),
        (_SQL, "n = 0xAB", "0xAB is a binary constant"),
        (_SQL, "footer.n = 1", "footer.n cannot be selected by"),
        (_SQL, "p.nothing = 1", "amqp.nothing is no field"),
        (_SQL, "n = 1 AND", "it ends too early"),
        (_SQL, "a-" * 5000, "has 10000 characters, at most 8192 were expected"),
        (_SQL, Int(5), "the SQL of amqp:sql-filter is of type int, a string was expected"),
        (_SQL, "[a = 1", "has no end: expected ]"),
        (_SQL, "a = 'b''", "has no end: expected '"),
        (_SQL, '"a = 1', 'has no end: expected "'),
        (_SQL, "[" * 8191, "has no end: expected ]"),
    ],
    ids=str,
)
def test_a_bad_filter_of_amqp_is_refused(begin: Begin, address: str, descriptor: Any, value: Any, says: str) -> None:
    session = begin()
    link = session.receiver(filtered(address, {"f": Described(descriptor, value)}))
    error = link.wait_detached().error
    assert error is not None
    assert error.condition in ("amqp:invalid-field", "amqp:decode-error")
    assert says in (error.description or "")
    session.sync()


def test_a_filter_stands_once(begin: Begin, address: str) -> None:
    twice = {
        name: Described(descriptor, "n = 1") for name, descriptor in (("a", _SQL), ("b", Symbol("amqp:sql-filter")))
    }
    error = begin().receiver(filtered(address, twice)).wait_detached().error
    assert error is not None
    assert "the source has two filters" in (error.description or "")
