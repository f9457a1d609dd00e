"""Dead letters at the command line: listed, shown, exported, and replayed to the group that failed them (rule D4)."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.fix_service import Service
from tests.fix_wire import Ask, Begin
from tests.wire.frames import Accepted, Error, Rejected
from tests.wire.messages import Header, Properties, data, section
from tests.wire.peer import PATIENCE, Session
from tests.wire.queues import dead_letters, post
from tests.wire.types import Raw, Symbol

pytestmark = pytest.mark.rule("D4")

_SHOWN = {"id", "since", "size", "original_address", "original_id", "delivery_count", "last_error", "txn_id"} | {
    "producer_group",
    "check_count",
}


def _bury(session: Session, source: str, count: int, *, description: str = "bad") -> None:
    """A consumer rejects so many messages, and waits until they are dead letters."""
    consumer = session.receiver(source)
    for delivery in consumer.take_many(count):
        delivery.disposition(Rejected(error=Error(condition="app:bad", description=description)), settled=False)
        delivery.settlement()
    consumer.detach()


def _letters(service: Service, session: Session, name: str, count: int) -> list[dict[str, Any]]:
    dead_letters(session, name).detach()
    for _ in range(int(PATIENCE)):
        shown: list[dict[str, Any]] = json.loads(service.cli("dead-letters", "show", name, "--limit", "1000", "--json"))
        if len(shown) == count:
            return shown
    raise AssertionError(f"{len(shown)} letters, {count} were expected")


def test_one_goes_back_to_its_group_alone(begin: Begin, service: Service, address: str) -> None:
    """As it came, with no failed attempts; the other group of the topic does not get it again."""
    service.cli("address", "add", address, "--topic")
    session = begin()
    other = session.receiver(f"{address}::other", credit=10)
    group = f"{address}-failing"
    session.receiver(f"{address}::{group}").detach()
    bare = Properties(message_id="m").encoded() + data(b"1")
    session.sender(address).outcome(section(Header.CODE, Header(priority=7).described().value) + bare)
    post(session, address, b"2")
    assert other.bodies() == [b"1", b"2"]
    _bury(session, f"{address}::{group}", 2)
    first, second = _letters(service, session, group, 2)
    assert set(first) == _SHOWN
    assert (first["original_address"], first["last_error"], first["txn_id"]) == (address, "app:bad: bad", None)
    consumer = session.receiver(f"{address}::{group}", credit=5)  # its instance holds the group
    assert service.cli("dead-letters", "replay", group, str(first["id"])) == "replayed 1, left 0\n"
    again = consumer.take()
    assert again.octets.endswith(bare)
    assert (again.count, again.message.header.priority) == (0, 7)
    again.disposition(Accepted())
    assert consumer.bodies() == []
    assert other.bodies() == []
    (left,) = _letters(service, session, group, 1)
    assert left["id"] == second["id"]
    assert json.loads(service.cli("dead-letters", "show", f"{address}::{group}", "--json")) == [left]


def test_all_that_are_there(begin: Begin, service: Service, address: str) -> None:
    """In the order of the letters, more than one SQL transaction takes; then there is none."""
    session = begin()
    bodies = [b"%d" % number for number in range(120)]
    post(session, address, *bodies)
    _bury(session, address, 120)
    originals = [letter["original_id"] for letter in _letters(service, session, address, 120)]
    of = dict(zip(sorted(originals), bodies, strict=True))
    assert service.cli("dead-letters", "replay", address, "--all") == "replayed 120, left 0\n"
    assert json.loads(service.cli("dead-letters", "show", address, "--json")) == []
    found = session.receiver(address).take_many(120)
    assert [each.body for each in found] == [of[each] for each in originals]
    assert service.cli("dead-letters", "replay", address, "--all") == "replayed 0, left 0\n"


def test_a_letter_that_a_consumer_has_stays(begin: Begin, service: Service, address: str) -> None:
    session = begin()
    post(session, address, b"1")
    _bury(session, address, 1)
    (letter,) = _letters(service, session, address, 1)
    delivery = dead_letters(session, address).take()
    number = str(letter["id"])
    assert service.cli("dead-letters", "replay", address, number, status=1) == (
        f"replayed 0, left 1\nleft: {number}: a consumer has it\n"
    )
    delivery.disposition(Accepted())
    session.sync()
    said = json.loads(service.cli("dead-letters", "replay", address, number, "--json", status=1))
    assert said == {"ids": [], "left": [[int(number), "there is no such letter"]]}


def test_where_it_came_from_is_gone(begin: Begin, service: Service, address: str) -> None:
    """It stays, and says what to do; with an address to go to it is posted to all groups of that."""
    session = begin()
    post(session, address, b"x")
    _bury(session, address, 1)
    _letters(service, session, address, 1)
    service.cli("address", "remove", address, "--force")
    said = service.cli("dead-letters", "replay", address, "--all", status=1)
    assert f"there is no address '{address}'; give --to ADDRESS" in said
    service.cli("address", "add", f"{address}-topic", "--topic")
    said = service.cli("dead-letters", "replay", address, "--all", "--to", f"{address}-topic", status=1)
    assert "with a consumer group" in said
    consumers = [session.receiver(f"{address}-topic::{name}", credit=1) for name in ("a", "b")]
    service.cli("dead-letters", "replay", address, "--all", "--to", f"{address}-topic")
    assert [consumer.take().body for consumer in consumers] == [b"x", b"x"]


@pytest.mark.rule("D1")
def test_two_groups_that_share_their_dead_letters(begin: Begin, service: Service, address: str) -> None:
    """A letter does not say which of them failed it; the other one has had the message."""
    session = begin()
    session.receiver(f"{address}::{address}").detach()
    post(session, address, b"x")
    _bury(session, f"{address}::{address}", 1)
    _letters(service, session, address, 1)
    said = service.cli("dead-letters", "replay", address, "--all", status=1)
    assert f"two groups of the address '{address}' have these dead letters; give --to ADDRESS" in said


@pytest.mark.rule("P18")
def test_a_message_group_stays_together(begin: Begin, service: Service, address: str) -> None:
    service.cli("address", "add", address, "--kind", "fifo")
    session = begin()
    sender = session.sender(address)
    for number in range(3):
        sender.outcome(Properties(group_id="g").encoded() + data(b"%d" % number))
    _bury(session, address, 3)
    _letters(service, session, address, 3)
    service.cli("dead-letters", "replay", address, "--all")
    first = session.receiver(address, credit=5)
    deliveries = first.take_many(3)
    assert [each.body for each in deliveries] == [b"0", b"1", b"2"]
    assert session.receiver(address, name="second").drain() == []  # the group is with one consumer


def test_a_large_one(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    body = bytes(3 << 20)
    session = begin()
    assert session.sender(address).outcome(data(body)) == Accepted()
    _bury(session, address, 1)
    (letter,) = _letters(service, session, address, 1)
    assert letter["size"] > len(body)
    service.cli("dead-letters", "replay", address, "--all")
    assert session.receiver(address).take().body == body


def test_ones_whose_sections_before_the_body_are_long(begin: Begin, service: Service, address: str) -> None:
    """Longer than what is read of a letter at first."""
    text = "x" * 100_000
    annotated, told = section(0x72, {Symbol("x-opt-a"): text}) + data(b"1"), section(0x74, {"a": text}) + data(b"2")
    session = begin()
    sender = session.sender(address)
    assert [sender.outcome(message) for message in (annotated, told)] == [Accepted()] * 2
    _bury(session, address, 2)
    assert {letter["original_address"] for letter in _letters(service, session, address, 2)} == {address}
    assert service.cli("dead-letters", "replay", address, "--all") == "replayed 2, left 0\n"
    assert {each.body for each in session.receiver(address).take_many(2)} == {b"1", b"2"}


@pytest.mark.rule("S7")
@pytest.mark.parametrize("origin", ["a\0b", "x" * 2000, "", "a::b", ["a"], Raw(b"\xa1\x01\xff")])
def test_ones_that_a_client_has_posted(begin: Begin, service: Service, ask: Ask, address: str, origin: Any) -> None:
    """At an earlier version, which took them. What they say is no address; the others go all the same."""
    session = begin()
    post(session, address, b"x")
    _bury(session, address, 1)
    _letters(service, session, address, 1)
    forged = section(0x72, {Symbol("x-opt-last-error"): "e" * 5000, Symbol("x-opt-original-address"): origin})
    ask(
        """with posted as (insert into coordinator.half (id, address_id, message)
                           select h.id + 1, h.address_id, %s from coordinator.half h
                             join coordinator.address a on a.id = h.address_id where a.name = %s
                           returning id, address_id)
           insert into coordinator.entry (group_id, id, half_id)
           select g.id, p.id, p.id from posted p join coordinator.consumer_group g on g.address_id = p.address_id
           returning id""",
        forged + data(b"y"),
        f"%DLQ%{address}",
    )
    shown = _letters(service, session, address, 2)[1]
    assert (shown["original_address"], len(shown["last_error"])) == (None, 2000)
    said = service.cli("dead-letters", "replay", address, "--all", status=1)
    assert said == f"replayed 1, left 1\nleft: {shown['id']}: it does not say where it came from; give --to ADDRESS\n"
    assert session.receiver(address).take().body == b"x"


@pytest.mark.rule("S7")
def test_list_and_export(begin: Begin, service: Service, address: str) -> None:
    """What clients say is data: no control character reaches a terminal."""
    session = begin()
    post(session, address, b"x", b"y")
    _bury(session, address, 2, description="\x1b[31mred\nerror: forged \x9b31m\u202e")
    _letters(service, session, address, 2)
    boxes = json.loads(service.cli("dead-letters", "list", "--json"))
    (box,) = [box for box in boxes if box["name"] == f"%DLQ%{address}"]
    assert box["letters"] == 2
    shown = service.cli("dead-letters", "show", f"%DLQ%{address}", "--limit", "1")
    assert len(shown.splitlines()) == 2
    assert "\\x1b[31mred\\nerror: forged \\x9b31m\\u202e" in shown
    assert "\\u009b31m\\u202e" in service.cli("dead-letters", "show", address, "--json")
    exported = [json.loads(line) for line in service.cli("dead-letters", "export", address).splitlines()]
    assert [base64.b64decode(line["message"])[-len(data(b"x")) :] for line in exported] == [data(b"x"), data(b"y")]


@pytest.mark.rule("H1")
def test_an_address_of_dead_letters_that_an_operator_has_made(begin: Begin, service: Service, address: str) -> None:
    """With a kind of its own: they are listed, shown and replayed as ever. A topic would keep none."""
    box = f"%DLQ%{address}"
    done = service.command("address", "add", box, "--topic")
    assert (done.returncode, done.stdout) == (2, "")
    assert "keeps dead letters; expected a queue" in done.stderr
    service.cli("address", "add", box, "--kind", "fifo")
    session = begin()
    post(session, address, b"x")
    _bury(session, address, 1)
    (letter,) = _letters(service, session, address, 1)
    assert letter["original_address"] == address
    assert box in [each["name"] for each in json.loads(service.cli("dead-letters", "list", "--json"))]
    assert service.cli("dead-letters", "replay", address, "--all") == "replayed 1, left 0\n"
    assert session.receiver(address, credit=1).take().body == b"x"


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("show", "never"), 1, "there are no dead letters of 'never'"),
        (("replay", "never", "--all"), 1, "there are no dead letters of 'never'"),
        (("replay", "never"), 2, "give letters by ID, or --all"),
        (("replay", "never", "1", "--all"), 2, "give letters by ID, or --all"),
        (("replay", "never", "one"), 2, "[ID]"),
        (("replay", "never", "--all", "--to", "a::b"), 2, "--to: the address 'a::b' has '::'"),
        (("replay", "never", "--all", "--to", "\udcff"), 2, "--to: the address '\\udcff' has U+DCFF"),
    ],
)
def test_what_cannot_be_replayed(service: Service, arguments: tuple[str, ...], status: int, says: str) -> None:
    done = service.command("dead-letters", *arguments)
    assert done.returncode == status
    assert says in done.stderr
