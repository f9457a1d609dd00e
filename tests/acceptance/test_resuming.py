"""Links that come again with unsettled deliveries (part 2, section 2.6.13), and how long a terminus is said to stay.

The service keeps the state of no link: its answer has no map of unsettled deliveries and a terminus that goes with the
link. A sender then sends again what has no outcome yet, as a new delivery (tag 1 of the standard's example). Of what a
receiver still lists its outcomes are applied, as the tags name the messages; the others come again.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.fix_night import by_night
from tests.fix_wire import Begin
from tests.wire.frames import (
    RECEIVER,
    SENDER,
    Accepted,
    Attach,
    Error,
    Modified,
    Received,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
)
from tests.wire.links import Link, Receiver
from tests.wire.messages import Properties, data
from tests.wire.peer import Session
from tests.wire.queues import SELECTOR, dead_letters, filtered, post
from tests.wire.types import Described, Symbol, UInt, ULong, symbols

ASKED = [
    pytest.param({}, id="nothing"),
    pytest.param({"durable": UInt(2), "timeout": UInt(3600)}, id="unsettled-state"),
    pytest.param({"durable": UInt(1), "expiry_policy": "never"}, id="never"),
    pytest.param({"expiry_policy": "connection-close", "timeout": UInt(10)}, id="connection-close"),
]
MAPS = [
    pytest.param(None, id="no map"),
    pytest.param({}, id="empty"),
    pytest.param({b"0": None}, id="no state"),
    pytest.param({b"0": Received(section_number=0, section_offset=5)}, id="received"),
]


def assert_goes_with_its_link(answer: Attach) -> None:
    terminus: Any = answer.target if answer.role is RECEIVER else answer.source
    assert terminus.expiry_policy == "link-detach"
    assert not terminus.durable
    assert not terminus.timeout
    assert not answer.unsettled
    assert not answer.incomplete_unsettled


def resumed_receiver(session: Session, name: str, source: Source, **fields: Any) -> Receiver:
    link = session.receiver(source, name=name, **fields)
    assert not link.answer.unsettled
    return link


@pytest.mark.rule("P8", "P9")
@pytest.mark.parametrize("asked", ASKED)
def test_a_terminus_of_a_queue_goes_with_its_link(begin: Begin, address: str, asked: dict[str, Any]) -> None:
    """Part 3, sections 3.5.3 and 3.5.4: the answer says what holds, not what was asked for."""
    session = begin()
    assert_goes_with_its_link(session.sender(Target(address=address, **asked)).answer)
    assert_goes_with_its_link(session.receiver(Source(address=address, **asked)).answer)
    assert_goes_with_its_link(session.receiver(Source(address=address, distribution_mode="copy", **asked)).answer)


@pytest.mark.rule("P8", "P9", "T1")
def test_a_terminus_without_an_address_is_in_the_answer(begin: Begin, address: str) -> None:
    """Part 2, section 2.6.3: the answer has what the peer has, and nothing where the peer has nothing."""
    session = begin()
    mine = Source(outcomes=("amqp:accepted:list",), default_outcome=Modified(delivery_failed=True))
    for answer in (session.sender(address, source=mine).answer, session.control(source=mine).answer):
        assert isinstance(answer.source, Source)
        assert answer.source.outcomes == ("amqp:accepted:list",)
        assert answer.source.default_outcome == Modified(delivery_failed=True, undeliverable_here=False)
        assert answer.target is not None
    assert session.sender(address, source=None).answer.source is None
    assert session.control(source=None).answer.source is None
    assert isinstance(session.receiver(address, target=Target()).answer.target, Target)
    assert session.receiver(address, target=None).answer.target is None


@pytest.mark.rule("P8", "P9")
@pytest.mark.parametrize("closed", [True, False])
def test_a_detach_is_answered_in_kind(begin: Begin, address: str, closed: bool) -> None:
    """Part 2, section 2.6.6: a close in answer to a mere detach obliges the peer to attach again, and to close."""
    session = begin()
    for _ in range(2):
        for link in (
            session.sender(address, name="a"),
            session.receiver(address, name="b"),
            session.sender(None, name="c"),
        ):
            assert bool(link.detach(closed=closed).closed) is closed


def answers_to(session: Session, numbers: list[int]) -> list[Any]:
    """The states our deliveries were settled with."""
    while any(not session.answers[number] for number in numbers):
        session.peer.step()
    return [session.answers[number][0].state for number in numbers]


@pytest.mark.rule("P19", "D9")
@pytest.mark.parametrize("relay", [False, True])
def test_what_was_posted_before_a_detach_is_answered_before_it_is_answered(
    begin: Begin, address: str, relay: bool
) -> None:
    """A settled answer without an outcome would say nothing of a message that may not be stored yet."""
    session = begin()
    sender = session.sender(None if relay else address)
    message = Properties(to=address).encoded() + data(b"x") if relay else data(b"x")
    numbers = [sender.post(message) for _ in range(50)]
    assert sender.detach(closed=False).error is None
    assert answers_to(session, numbers) == [Accepted()] * 50
    assert len(session.receiver(address).bodies()) == 50


@pytest.mark.rule("P19", "D9", "T24")
def test_what_was_posted_before_the_link_was_refused_is_answered(begin: Begin, address: str) -> None:
    session = begin()
    sender = session.sender(address)
    numbers = [sender.post(data(b"x")) for _ in range(50)]
    sender.post(data(b"never"), txn=bytes(16), settled=True)
    assert sender.error == "amqp:transaction:unknown-id"
    assert answers_to(session, numbers) == [Accepted()] * 50
    assert len(session.receiver(address).bodies()) == 50


@pytest.mark.rule("P8")
@pytest.mark.parametrize("code", [0x2B, 0x2C, 0x2D, 0x2E])
def test_a_dynamic_node_is_deleted_on_close_whatever_is_asked(begin: Begin, code: int) -> None:
    """Part 3, section 3.5.10: of the lifetime policies, delete-on-close (0x2b) is the one that holds."""
    asked = {Symbol("lifetime-policy"): Described(ULong(code), [])}
    answer = begin().receiver(Source(dynamic=True, dynamic_node_properties=asked)).answer
    assert isinstance(answer.source, Source)
    assert answer.source.dynamic_node_properties == {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}


def _dynamic(session: Session, role: bool, asked: dict[Any, Any]) -> Link:
    if role is SENDER:
        return session.sender(Target(dynamic=True, dynamic_node_properties=asked))
    return session.receiver(Source(dynamic=True, dynamic_node_properties=asked))


def _node(link: Link) -> str:
    terminus: Any = link.answer.target if link.answer.role is RECEIVER else link.answer.source
    assert terminus.address
    return str(terminus.address)


def _is_there(session: Session, name: str) -> bool:
    return session.sender(name).accepted


@pytest.mark.rule("P8")
@pytest.mark.parametrize("role", [SENDER, RECEIVER], ids=["target", "source"])
def test_a_dynamic_node_outlives_a_detach(begin: Begin, role: bool) -> None:
    """Part 3, section 3.5.10: it goes with a close, also of a later link of the same name."""
    session, other = begin(), begin()
    maker = _dynamic(session, role, {})
    name = _node(maker)
    maker.detach(closed=False)
    assert session.sender(name).outcome(data(b"x")) == Accepted()
    assert session.receiver(name, credit=1).bodies() == [b"x"]
    again = (
        session.sender(name, name=maker.answer.name)
        if role is SENDER
        else session.receiver(name, name=maker.answer.name)
    )
    again.detach()
    assert not _is_there(other, name)


@pytest.mark.rule("P8")
@pytest.mark.parametrize("role", [SENDER, RECEIVER], ids=["target", "source"])
def test_a_dynamic_node_that_a_detach_has_left_goes_with_its_connection(begin: Begin, role: bool) -> None:
    session, other = begin(), begin()
    maker = _dynamic(session, role, {})
    name = _node(maker)
    maker.detach(closed=False)
    assert _is_there(other, name)
    session.peer.close()
    assert not _is_there(other, name)


@pytest.mark.rule("P8")
@pytest.mark.parametrize("role", [SENDER, RECEIVER], ids=["target", "source"])
@pytest.mark.parametrize(
    "asked",
    [
        {Symbol("supported-dist-modes"): Symbol("move")},
        {Symbol("supported-dist-modes"): symbols("move", "copy")},
        {Symbol("supported-dist-modes"): "move"},
        {Symbol("lifetime-policy"): Described(Symbol("amqp:delete-on-no-links:list"), [])},
        {},
    ],
)
def test_a_dynamic_node_with_properties_that_are_understood(begin: Begin, asked: dict[Any, Any], role: bool) -> None:
    """Part 3, section 3.5.9."""
    answer = _dynamic(begin(), role, asked).answer
    assert (answer.target if role is SENDER else answer.source) is not None


@pytest.mark.rule("P8", "P14")
@pytest.mark.parametrize("role", [SENDER, by_night(RECEIVER)], ids=["target", "source"])
@pytest.mark.parametrize(
    ("asked", "condition"),
    [
        ({Symbol("supported-dist-modes"): Symbol("swap")}, "amqp:invalid-field"),
        ({Symbol("supported-dist-modes"): True}, "amqp:invalid-field"),
        ({Symbol("lifetime-policy"): Described(ULong(0x2A), [])}, "amqp:invalid-field"),
        ({Symbol("lifetime-policy"): Described(ULong(0x2B), "close")}, "amqp:invalid-field"),
        ({Symbol("lifetime-policy"): Symbol("delete-on-close")}, "amqp:invalid-field"),
        ({Symbol("x-opt-\x1b[31m"): True}, "amqp:not-implemented"),
        ({Symbol("lifetime-policy"): Described(ULong(0x2B), []), Symbol("auto-delete"): True}, "amqp:not-implemented"),
    ],
)
def test_a_dynamic_node_with_properties_that_are_not_is_refused(
    begin: Begin, asked: dict[Any, Any], condition: str, role: bool
) -> None:
    """The same section; the session goes on."""
    session = begin()
    assert _dynamic(session, role, asked).error == condition
    assert session.receiver(Source(dynamic=True)).answer.source is not None


@pytest.mark.rule("P19")
@pytest.mark.parametrize("unsettled", MAPS)
def test_a_sender_that_comes_again_sends_again(begin: Begin, address: str, unsettled: dict[bytes, Any] | None) -> None:
    """The first was stored and its answer lost on the way, the second was cut: without a map neither is known here."""
    session = begin()
    sender = session.sender(address, name="again")
    assert sender.outcome(data(b"first"), delivery_tag=b"0") == Accepted()
    sender.transfer(
        data(b"cut")[:4],
        delivery_id=session.next_delivery_id(),
        delivery_tag=b"1",
        message_format=0,
        settled=False,
        more=True,
    )
    sender.detach(closed=False)
    listed = None if not unsettled else {**unsettled, b"1": None}
    sender = session.sender(address, name="again", unsettled=listed, incomplete_unsettled=bool(listed) or None)
    assert_goes_with_its_link(sender.answer)
    for tag, body in ((b"0", b"first"), (b"1", b"cut")):
        assert sender.outcome(data(body), delivery_tag=tag) == Accepted()
    assert session.receiver(address).bodies() == [b"first", b"first", b"cut"]


@pytest.mark.rule("P19", "D9")
@pytest.mark.parametrize("frame_size", [by_night(None), 3])
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("listed", [False, True])
def test_a_transfer_that_resumes_is_ignored(
    begin: Begin, address: str, listed: bool, settled: bool, frame_size: int | None
) -> None:
    """A sender may send what it resumes before it has read that our answer has no map. More often than it has credit:
    each has used some, and gives it back.
    """
    session = begin()
    sender = session.sender(address, name="again")
    sender.detach(closed=False)
    sender = session.sender(address, name="again", unsettled={b"0": None} if listed else None)
    resumed = []
    for _ in range(2 * sender.link_credit + 1):
        fields: dict[str, Any] = {"resume": True, "settled": settled, "state": Received(section_number=0)}
        resumed.append(sender.post(data(b"resumed"), frame_size=frame_size, delivery_tag=b"0", **fields))
    assert sender.outcome(data(b"anew"), delivery_tag=b"0") == Accepted()
    assert sender.outcome(data(b"large" * 99), frame_size=100) == Accepted()
    assert not any(session.answers[number] for number in resumed)
    assert sender.detach().error is None
    assert session.receiver(address).bodies() == [b"anew", b"large" * 99]


@pytest.mark.rule("T22")
def test_a_transfer_that_resumes_in_a_transaction(begin: Begin, address: str) -> None:
    """It is ignored, and the transaction does not commit without it."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.post(data(b"resumed"), txn=txn, resume=True)
    assert control.discharge(txn).error.condition == "amqp:transaction:rollback"
    assert sender.outcome(data(b"after")) == Accepted()
    assert session.receiver(address).bodies() == [b"after"]


@pytest.mark.rule("P19")
def test_a_receiver_whose_map_is_not_complete_is_refused(begin: Begin, address: str) -> None:
    """Part 2, section 2.7.3: it must be sent no new delivery."""
    session = begin()
    post(session, address, b"1")
    receiver = session.receiver(address, unsettled={b"x": None}, incomplete_unsettled=True, credit=1)
    assert receiver.answer.source is None
    assert receiver.error == "amqp:not-implemented"
    assert not receiver.arrived
    assert session.receiver(address).bodies() == [b"1"]


@pytest.mark.rule("P19", "D5")
@pytest.mark.parametrize("state", [None, Received(section_number=0, section_offset=1)])
@pytest.mark.parametrize("listed", [True, False])
def test_what_a_receiver_had_comes_to_the_next_counted(begin: Begin, address: str, listed: bool, state: Any) -> None:
    session = begin()
    post(session, address, b"1", b"2")
    receiver = session.receiver(address, name="again")
    first, second = receiver.take_many(2)
    second.disposition(Accepted())
    receiver.detach(closed=False)
    unsettled = {first.tag: state, second.tag: Accepted()} if listed else None
    receiver = session.receiver(address, name="again", unsettled=unsettled)
    assert_goes_with_its_link(receiver.answer)
    again = receiver.take()
    assert (again.body, again.count, again.first.resume) == (b"1", 1, None)
    receiver.detach()
    (last,) = session.receiver(address).drain()
    assert (last.body, last.count) == (b"1", 2)


OUTCOMES = [
    pytest.param(Accepted(), [], id="accepted"),
    pytest.param(Rejected(), [], id="rejected"),
    pytest.param(Released(), [(b"1", 1)], id="released"),
    pytest.param(Modified(delivery_failed=True), [(b"1", 2)], id="failed"),
]


@pytest.mark.rule("P21", "D5")
@pytest.mark.parametrize(("state", "left"), OUTCOMES)
@pytest.mark.parametrize("filters", [{}, by_night({"jms-selector": Described(SELECTOR, "true = true")})])
def test_what_a_receiver_has_decided_and_could_not_tell(
    begin: Begin, address: str, state: Any, left: list[tuple[bytes, int]], filters: dict[Any, Any]
) -> None:
    """Another message comes first and later: nothing else is decided."""
    lost, session = begin(container_id=address), begin(container_id=address)
    post(session, address, b"1", b"2")
    had = lost.receiver(address, name="again").take()
    lost.peer.close_socket()
    source = filtered(address, filters)
    receiver = session.receiver(source, name="again", unsettled={had.tag: state}, credit=10)
    assert_goes_with_its_link(receiver.answer)
    arrived = sorted((each.body, each.count) for each in receiver.take_many(1 + len(left)))
    assert arrived == [*left, (b"2", 0)]
    receiver.detach()
    queued = session.receiver(address).drain()
    assert sorted(each.body for each in queued) == [*(body for body, _ in left), b"2"]


@pytest.mark.rule("P21")
def test_a_rejection_that_could_not_be_told_has_its_error(begin: Begin, address: str) -> None:
    lost, session = begin(container_id=address), begin(container_id=address)
    post(session, address, b"1")
    had = lost.receiver(address, name="again").take()
    lost.peer.close_socket()
    error = Error(condition="shop:sold-out", description="no more of it")
    receiver = session.receiver(address, name="again", unsettled={had.tag: Rejected(error=error)}, credit=1)
    post(session, address, b"2")
    assert receiver.take().body == b"2"
    letter = dead_letters(session, address).take()
    assert letter.message.annotations["x-opt-last-error"] == "shop:sold-out: no more of it"


@pytest.mark.rule("P21", "T26")
def test_an_outcome_in_a_transaction_is_its_own(begin: Begin, address: str) -> None:
    """The transaction went with its connection: the delivery comes again."""
    lost, session = begin(container_id=address), begin(container_id=address)
    post(session, address, b"1")
    had = lost.receiver(address, name="again").take()
    txn = lost.control().declare()
    lost.peer.close_socket()
    state = TransactionalState(txn_id=txn, outcome=Accepted())
    receiver = session.receiver(address, name="again", unsettled={had.tag: state})
    assert receiver.take().body == b"1"


NO_MAPS = [
    pytest.param({"0": Accepted()}, "tags of at most 32 octets", id="a string"),
    pytest.param({b"0" * 33: Accepted()}, "tags of at most 32 octets", id="a long tag"),
]


@pytest.mark.rule("P21")
@pytest.mark.parametrize(("unsettled", "text"), NO_MAPS)
def test_a_map_that_is_none(begin: Begin, address: str, unsettled: dict[Any, Any], text: str) -> None:
    """The link is refused, and the session goes on."""
    session = begin()
    post(session, address, b"1")
    receiver = session.receiver(address, unsettled=unsettled, credit=1)
    assert receiver.error == "amqp:invalid-field"
    assert text in str(receiver.detached)
    assert session.receiver(address).bodies() == [b"1"]


NO_STATES = [
    pytest.param(True, "no delivery-state", id="no state"),
    pytest.param(Described(Symbol("x:done:list"), []), "is not an outcome", id="another state"),
]


@pytest.mark.rule("P21")
@pytest.mark.parametrize(("state", "text"), NO_STATES)
def test_a_map_of_no_states(begin: Begin, address: str, state: object, text: str) -> None:
    session = begin()
    post(session, address, b"1")
    had = session.receiver(address, name="again").take()
    had.receiver.detach()
    receiver = session.receiver(address, unsettled={had.tag: state})
    assert receiver.error == "amqp:invalid-field"
    assert text in str(receiver.detached)
    assert session.receiver(address).bodies() == [b"1"]


@pytest.mark.rule("P21")
def test_maps_of_all_links_are_bounded(begin: Begin, address: str) -> None:
    """They are kept as long as their links; with one less there is room for another."""
    session = begin()
    post(session, address, b"1")
    had = session.receiver(address, name="again").take()
    had.receiver.detach()
    prefix = had.tag.partition(b":")[0]
    large = {b"%s:%d" % (prefix, number): Accepted() for number in range(10**9, 10**9 + 1000)}
    links = [session.receiver(f"{address}-none", unsettled=large) for _ in range(12)]
    refused = [link for link in links if link.answer.source is None]
    assert 0 < len(refused) < 12
    assert {link.error for link in refused} == {"amqp:resource-limit-exceeded"}
    links[0].detach()
    assert session.receiver(f"{address}-none", unsettled=large).answer.source is not None
    assert session.receiver(address).bodies() == [b"1"]


@pytest.mark.rule("P21")
@pytest.mark.parametrize("tag", [b"", b":", b"7", b"another-store:%s", b"0" * 32, b"%s"])
def test_tags_of_others_are_of_no_delivery_here(begin: Begin, address: str, tag: bytes) -> None:
    """With the number of a message that is here, too."""
    session = begin()
    post(session, address, b"1")
    had = session.receiver(address, name="again").take()
    had.receiver.detach()
    number = had.tag.partition(b":")[2]
    receiver = session.receiver(address, unsettled={tag.replace(b"%s", number): Accepted()})
    assert receiver.take().body == b"1"


@pytest.mark.rule("P19", "P13")
def test_a_receiver_comes_again_on_another_connection(begin: Begin, address: str) -> None:
    lost, session = begin(container_id=address), begin(container_id=address)
    post(session, address, b"1")
    had = lost.receiver(address, name="again").take()
    lost.peer.close_socket()
    receiver = session.receiver(address, name="again", unsettled={had.tag: None})
    assert_goes_with_its_link(receiver.answer)
    again = receiver.take()
    assert (again.body, again.count, again.tag) == (b"1", 1, had.tag)


@pytest.mark.rule("P8", "D1")
def test_a_lasting_subscription_stays_but_not_its_deliveries(begin: Begin, address: str) -> None:
    """Its terminus is kept (durable: configuration), the state of its deliveries is not."""
    session = begin(container_id=address)
    source = Source(address=address, capabilities=("topic",), durable=UInt(2), expiry_policy="never")
    receiver = session.receiver(source, name="lasting")

    def assert_lasts(answer: Attach) -> None:
        assert isinstance(answer.source, Source)
        assert (answer.source.expiry_policy, answer.source.durable) == ("never", 1)
        assert not answer.unsettled

    assert_lasts(receiver.answer)
    sender = session.sender(Target(address=address, capabilities=("topic",)))
    assert sender.outcome(data(b"1")) == Accepted()
    had = receiver.take()
    assert receiver.detach(closed=False).closed in (None, False)
    receiver = session.receiver(source, name="lasting", unsettled={had.tag: None})
    assert_lasts(receiver.answer)
    again = receiver.take()
    assert (again.body, again.count) == (b"1", 1)
    again.disposition(Accepted())
    receiver.detach(closed=False)
    # asked for by its name alone, as by a client that wants to end it
    answer = session.attach(RECEIVER, name="lasting", source=None, target=Target())
    assert_lasts(answer)


@pytest.mark.rule("T3")
def test_a_control_link_that_comes_again_has_nothing(begin: Begin) -> None:
    """Part 4, section 4.1: its transactions were rolled back when it was detached."""
    session = begin()
    control = session.control(name="again")
    txn = control.declare()
    control.detach(closed=False)
    control = session.control(name="again", unsettled={b"1": None})
    assert not control.answer.unsettled
    assert control.discharge(txn).error.condition == "amqp:transaction:rollback"
    control.declare()
