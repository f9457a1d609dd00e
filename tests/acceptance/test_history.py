"""What became of a transaction, or of a message, at the command line (rule H15): lives of every kind, as a service
leaves them.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from coordinator import message_ids, timeline
from coordinator.__main__ import app
from coordinator.address.addresses import UNANSWERED as ADDRESS
from coordinator.answers import TakesTooLong
from store.database import connected
from store.embedded.running import running_url
from tests.fix_check_back import Plant
from tests.fix_night import by_night
from tests.fix_service import PATIENCE, Service
from tests.fix_wire import Ask, Begin, decided
from tests.wire.checkable import in_group
from tests.wire.frames import Accepted, Error, Modified, Rejected, Released
from tests.wire.links import Receiver
from tests.wire.messages import Header, Properties, data, section
from tests.wire.peer import Session
from tests.wire.queues import dead_letters, post
from tests.wire.retirements import retire
from tests.wire.types import Symbol, Timestamp, ULong

pytestmark = pytest.mark.rule("H15")

#: What happened, and in which group.
Told = list[tuple[str, str | None]]


def _history(service: Service, what: bytes | int) -> dict[str, Any]:
    """Without a process of its own each time."""
    with connected(running_url(service.data_dir)) as connection:
        if isinstance(what, bytes):
            found = timeline.of_transaction(connection, uuid.UUID(bytes=what), 100)
        else:
            found = timeline.of_message(connection, what)
    assert found is not None
    return found.plain()


def _told(found: dict[str, Any]) -> Told:
    return [(event["what"], event["group"]) for event in found["events"]]


def _soon(service: Service, what: bytes | int, fits: Callable[[Told], bool]) -> dict[str, Any]:
    """What the consumers said last may be on its way to the store."""
    deadline = time.monotonic() + PATIENCE
    found = _history(service, what)
    while not fits(_told(found)):
        assert time.monotonic() < deadline, found
        found = _history(service, what)
    return found


def _halves(ask: Ask, address: str) -> list[int]:
    rows = ask(
        "select h.id from coordinator.half h join coordinator.address a on a.id = h.address_id where a.name = %s "
        "order by h.id",
        address,
    )
    return [int(number) for (number,) in rows]


def _commit(session: Session, address: str, *bodies: bytes) -> bytes:
    control = session.control()
    txn = control.declare()
    sender = session.sender(address)
    for body in bodies:
        sender.outcome(data(body), txn=txn)
    control.commit(txn)
    return txn


def _take(consumer: Receiver, *outcomes: Any) -> None:
    """Each is durable before the next delivery."""
    for outcome in outcomes:
        delivery = consumer.take()
        delivery.disposition(outcome, settled=False)
        delivery.settlement()


def test_a_commit_that_is_consumed_once(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    session = begin()
    txn = _commit(session, address, b"1", b"22")
    _take(session.receiver(address), Accepted())
    (first, second) = _halves(ask, address)
    found = _history(service, txn)
    assert (found["txn_id"], found["outcome"], found["notes"]) == (uuid.UUID(bytes=txn), "commit", [])
    events = [(event["what"], event["message"], event["group"]) for event in found["events"]]
    assert sorted(events[1:4], key=str) == sorted(
        [("posted", first, None), ("posted", second, None), ("committed", None, None)], key=str
    )
    assert (events[0][0], events[4:]) == (
        "declared",
        [("accepted", first, address), (events[-1][0], second, address)],
    )
    assert events[-1][0] in ("now ready", "now inflight")
    committed = next(event for event in found["events"] if event["what"] == "committed")
    assert committed["detail"].startswith("2 posted, 0 accepted: discharged by a client (instance ")
    times = [event["at"] for event in found["events"]]
    assert times == sorted(times)
    one = json.loads(service.cli("message", "show", str(first), "--json"))
    assert (one["txn_id"], _told(one)[-1]) == (str(found["txn_id"]), ("accepted", address))
    assert all(event["at"].endswith("+00:00") for event in one["events"])
    shown = service.cli("transaction", "show", str(uuid.UUID(bytes=txn)))
    assert shown.splitlines()[:2] == [f"txn-id:       {uuid.UUID(bytes=txn)}", "outcome:      commit"]
    assert f"to {address}, " in shown


@pytest.mark.parametrize("fail", [True, False])
def test_a_rollback_says_why(begin: Begin, service: Service, address: str, fail: bool) -> None:
    """By its client; or as another connection asked for the outcome."""
    session = begin()
    control = session.control()
    txn = control.declare()
    session.sender(address).outcome(data(b"1"), txn=txn)
    if fail:
        control.roll_back(txn)
    else:
        begin().control().discharge(txn)
    found = _history(service, txn)
    assert (found["outcome"], _told(found)) == ("rollback", [("declared", None), ("rolled back", None)])
    (*_, rolled_back) = found["events"]
    assert rolled_back["reason"] == ("discharged" if fail else "asked")
    why = "discharged by a client" if fail else "another connection asked for its outcome before it was discharged"
    assert f": {why} (instance " in rolled_back["detail"]
    assert found["notes"] == ["of its messages none is in the store: those of a plain transaction come with its commit"]


def test_what_a_plain_transaction_has_in_memory(begin: Begin, service: Service, address: str, ask: Ask) -> None:
    """While it is undecided; then an operator rolls it back."""
    session = begin()
    txn = session.control().declare()
    session.sender(address).outcome(data(b"1"), txn=txn)
    deadline = time.monotonic() + PATIENCE
    while not ask("select from coordinator.txn where id = encode(%s, 'hex')::uuid", txn):
        assert time.monotonic() < deadline
    found = _history(service, txn)
    assert (found["outcome"], _told(found)) == ("undecided", [("declared", None), ("now undecided", None)])
    assert "1 posted, 0 retired, in the memory of instance " in found["events"][-1]["detail"]
    assert "by " in found["events"][0]["detail"]
    service.cli("transaction", "resolve", txn.hex(), "--rollback", "--reason", "the shop is shut")
    (*_, last) = _history(service, txn)["events"]
    assert "1 posted, 0 accepted: the shop is shut, by an operator or a statement in SQL" in last["detail"]


def test_a_checkable_one_that_its_checker_decides(
    begin: Begin, service: Service, address: str, planted: Plant, ask: Ask
) -> None:
    """Half undecided, with a check that none answers; then committed, consumed by two groups."""
    session = begin()
    other = session.receiver(f"{address}::other")
    txn = planted(address, address, data(b"1"), data(b"2"))
    found = _history(service, txn)
    told = [("declared", None), ("posted", None), ("posted", None), ("now undecided", None)]
    assert sorted(_told(found)) == sorted(told)
    assert f"producer group {address}: 0 of 15 checks sent; the next waits since " in found["events"][-1]["detail"]
    checker = session.receiver(f"$check/{address}", credit=1)
    check = checker.take()
    found = _soon(service, txn, lambda told: ("checked", None) in told)
    assert "1 of 15 checks sent; the next at " in found["events"][-1]["detail"]
    check.disposition(Accepted())
    assert decided(ask, txn) == ("commit", "checked")
    _take(other, Accepted(), Accepted())
    _take(session.receiver(address), Accepted(), Accepted())
    found = _history(service, txn)
    assert _told(found).count(("accepted", f"{address}::other")) == 2
    assert _told(found).count(("accepted", address)) == 2
    assert not [what for what, _ in _told(found) if what.startswith("now ")]
    committed = next(event for event in found["events"] if event["what"] == "committed")
    assert "a checker of its producer group said so (instance " in committed["detail"]
    assert found["notes"] == ["how often it was checked, and when, is not kept once it is decided"]


def test_one_that_no_checker_answered(begin: Begin, service: Service, address: str, planted: Plant, ask: Ask) -> None:
    txn = planted(address, address, data(b"1"), checks=15)
    assert decided(ask, txn) == ("rollback", "check-exhausted")
    found = _history(service, txn)
    life = [(what, None) for what in ("declared", "posted", "rolled back", "kept aside")]
    assert _told(found) == [*life, ("now ready", ADDRESS)]
    assert "no checker answered, however often one was asked" in str(found["events"])
    (_, half, _, copy, _) = [event["message"] for event in found["events"]]
    assert copy == _halves(ask, ADDRESS)[-1]
    service.cli("dead-letters", "replay", ADDRESS, "--all", "--to", address)
    replayed = [("replayed", ADDRESS), ("replayed", None), ("now ready", address)]
    assert _told(_history(service, txn)) == _told(_history(service, half)) == [*life, *replayed]
    _take(begin().receiver(address), Accepted())
    _soon(service, txn, lambda told: told[-1] == ("accepted", address))


def test_one_after_its_last_check_and_one_that_its_client_holds(
    begin: Begin, service: Service, address: str, planted: Plant
) -> None:
    exhausted = planted(address, address, data(b"1"), checks=3, most=3, due=3600)
    assert "no answer to 3 of 3 checks; rolls back at " in _history(service, exhausted)["events"][-1]["detail"]
    session = begin()
    control = in_group(session, address)
    txn = control.declare()
    session.sender(address).outcome(data(b"1"), txn=txn)
    (*_, last) = _history(service, txn)["events"]
    assert f"producer group {address}: its client has it, until " in last["detail"]


def test_what_a_transaction_retires(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    """Accepted, rejected and given back in one; each message's own life names the transaction."""
    session = begin()
    post(session, address, b"1", b"2", b"3")
    consumer, control = session.receiver(address), session.control()
    txn = control.declare()
    for delivery, outcome in zip(
        consumer.take_many(3), (Accepted(), Rejected(), Modified(delivery_failed=True)), strict=True
    ):
        delivery.retire(txn, outcome)
    control.commit(txn)
    first, second, third = _halves(ask, address)
    found = _history(service, txn)
    done = {event["message"]: event["what"] for event in found["events"] if event["message"] is not None}
    assert done == {first: "accepted", second: "rejected", third: "given back"}
    assert "0 posted, 1 accepted: " in str(found["events"])
    for number in done:
        assert uuid.UUID(bytes=txn) in {event["txn_id"] for event in _history(service, number)["events"]}


def test_what_an_undecided_transaction_holds(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    session = begin()
    post(session, address, b"1")
    control = in_group(session, address)
    txn = control.declare()
    retire(session.receiver(address).take(), txn)
    (number,) = _halves(ask, address)
    assert ("now held", address) in _told(_history(service, txn))
    (*_, last) = _history(service, number)["events"]
    assert (last["what"], last["group"]) == ("now inflight", address)
    assert last["detail"] == f"retired in the undecided transaction {uuid.UUID(bytes=txn)}"


def test_attempts_a_dead_letter_its_replay_and_a_seek(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    """The letter is a message of its own, and so is what is replayed: one life tells of all."""
    service.cli("address", "add", address, "--max-attempts", "3")
    session = begin()
    post(session, address, b"1")
    (number,) = _halves(ask, address)
    consumer = session.receiver(address)
    failed = Modified(delivery_failed=True)
    _take(consumer, failed, Released(), failed, failed)
    dead_letters(session, address).detach()
    found = _soon(service, number, lambda told: ("letter", None) in told)
    box = f"%DLQ%{address}"
    assert [what for what, _ in _told(found)] == [
        *("posted", "given back", "given back", "given back", "dead-lettered", "letter"),
        _told(found)[-1][0],
    ]
    assert "attempts used up: 3 of 3" in str(found["events"])
    assert _told(found)[-1] in (("now ready", box), ("now inflight", box))
    service.cli("dead-letters", "replay", address, "--all")
    _take(consumer, Accepted())
    found = _history(service, number)
    tail = [("replayed", box), ("replayed", None), ("accepted", address)]
    assert sorted(_told(found)[6:], key=str) == sorted(tail, key=str)
    (*_, again) = _halves(ask, address)
    assert found["events"][-1]["message"] == again
    place = datetime.fromtimestamp(0, UTC).replace(year=2026).isoformat()
    service.cli("group", "seek", address, "--back-to", place)
    _take(consumer, Accepted())
    assert [what for what, _ in _told(_history(service, again))] == ["posted", "accepted", "moved back", "accepted"]
    consumer.detach()
    service.cli("group", "seek", address, "--back-to", place)
    service.cli("group", "seek", address, "--forth-to", datetime.now(UTC).isoformat())
    assert [what for what, _ in _told(_history(service, again))][-2:] == ["moved back", "skipped"]


def test_what_expires_and_what_is_purged(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    session = begin()
    short = section(Header.CODE, Header(ttl=1).described().value) + data(b"1")
    assert session.sender(address).outcome(short) == Accepted()
    (number,) = _halves(ask, address)
    _soon(service, number, lambda told: ("expired", address) in told)
    post(session, address, b"2")
    service.cli("address", "purge", address)
    (*_, last) = _history(service, _halves(ask, address)[-1])["events"]
    assert (last["what"], last["detail"]) == ("purged", "by a command")


def test_a_retry_waits_under_another_id(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    service.cli("address", "add", address, "--retry", "ladder 1h 2h 3h")
    session = begin()
    post(session, address, b"1")
    (number,) = _halves(ask, address)
    _take(session.receiver(address), Modified(delivery_failed=True))
    found = _soon(service, number, lambda told: told[-1] == ("now scheduled", address))
    assert found["events"][-1]["detail"].startswith("1 failed deliveries, due at ")


def test_a_broadcast_and_a_subscription_that_leaves_out(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    service.cli("address", "add", address, "--topic")
    session = begin()
    first, second = (begin().receiver(f"{address}::*", credit=10) for _ in range(2))
    post(session, address, b"1")
    (number,) = _halves(ask, address)
    _take(first, Accepted())
    _take(second, Rejected(error=Error(condition="app:bad", description="no")))
    found = _soon(service, number, lambda told: len(told) == 3)
    assert [what for what, _ in _told(found)] == ["posted", "accepted", "accepted"]
    assert len({group for _, group in _told(found)[1:]}) == 2
    first.detach()
    second.detach()
    assert [what for what, _ in _told(_history(service, number))] == ["posted", "accepted", "accepted"]


@pytest.mark.parametrize(
    ("message_id", "written"),
    [
        by_night("order-7", "order-7"),
        ("order-7", "ID:AMQP_NO_PREFIX:order-7"),
        by_night(uuid.UUID(int=7 << 100), str(uuid.UUID(int=7 << 100))),
        (uuid.UUID(int=7 << 100), f"ID:AMQP_UUID:{uuid.UUID(int=7 << 100)}"),
        by_night(ULong(77), "77"),
        (ULong(77_000), "77000"),
        by_night(b"\x01\xfe", "01fe"),
    ],
)
def test_the_message_id_of_its_client(
    begin: Begin, service: Service, ask: Ask, address: str, message_id: Any, written: str
) -> None:
    """Found by reading the messages of a time; not where the text is somewhere else in a message."""
    session = begin()
    since = datetime.now(UTC).isoformat()
    sender = session.sender(address)
    for properties in (Properties(message_id=message_id), Properties(message_id="x", subject="order-7")):
        assert sender.outcome(properties.encoded() + data(b"order-7 77 01fe")) == Accepted()
    found = json.loads(service.cli("message", "show", written, "--since", since, "--json"))
    assert [line["events"][0]["message"] for line in found] == _halves(ask, address)[:1]


@pytest.mark.rule("P12", "D7")
def test_what_is_to_expire_or_to_be_delivered_later_than_any_program_can_say(
    begin: Begin, service: Service, ask: Ask, address: str
) -> None:
    """The service has the years up to 9999; the first of the clients' times is of the year 20000."""
    sender = begin().sender(address)
    later = Timestamp(568_971_820_800_000)
    message = section(0x72, {Symbol("x-opt-delivery-time"): later}) + Properties(absolute_expiry_time=later).encoded()
    assert sender.outcome(message + data(b"1")) == Accepted()
    (half_id,) = _halves(ask, address)
    told = service.cli("message", "show", str(half_id))
    assert "due at 9999-12-30" in told, told
    assert "expires" not in told


def test_two_with_one_message_id(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    session = begin()
    sender = session.sender(address)
    large = section(0x72, {Symbol("x-opt-much"): "x" * 10_000}) + Properties(message_id=address).encoded()
    for message in (Properties(message_id=address).encoded(), large):
        assert sender.outcome(message + data(b"1")) == Accepted()
    shown = service.cli("message", "show", address, "--since", "1h")
    posts = [line.split()[3] for line in shown.splitlines() if line.endswith(" octets")]
    assert posts == [str(number) for number in _halves(ask, address)]
    assert shown.count("transaction: none: posted outside transactions") == 2


def test_of_many_with_one_message_id_the_first_are_told_and_that_there_are_more(
    begin: Begin, service: Service, address: str
) -> None:
    sender = begin().sender(address)
    for _ in range(3):
        assert sender.outcome(Properties(message_id=address).encoded() + data(b"1")) == Accepted()
    now = datetime.now(UTC)
    wanted: dict[str, Any] = {
        "message_id": address,
        "since": now - timedelta(hours=1),
        "until": now + timedelta(minutes=1),
    }
    with connected(running_url(service.data_dir)) as connection, pytest.MonkeyPatch.context() as patched:
        patched.setattr(message_ids, "_MOST_LIVES", 2)
        found = message_ids.messages(connection, **wanted)
        assert len(found) == 2
        assert found[0].notes[-1] == "there are more messages with this message-id than these 2: say a shorter time"
        patched.setattr(message_ids, "_MOST_LIVES", 3)
        assert [each.notes for each in message_ids.messages(connection, **wanted)] == [[], [], []]


def test_a_search_ends_with_its_time(begin: Begin, service: Service, address: str) -> None:
    """Not with the statement that finds some: a text may be in many messages."""
    post(begin(), address, Properties(message_id=address).encoded())
    now = datetime.now(UTC)
    with connected(running_url(service.data_dir)) as connection, pytest.raises(TakesTooLong, match="a shorter one"):
        message_ids.messages(
            connection, message_id=address, since=now - timedelta(hours=1), until=now + timedelta(hours=1), seconds=-1
        )


def _refused(service: Service, noun: str, *arguments: str) -> Result:
    """``coordinator transaction show``, or ``message show``, in this process: its texts are many."""
    return CliRunner().invoke(app, [noun, "show", *arguments], env=service.environment())


def test_what_is_not_known(begin: Begin, service: Service, address: str) -> None:
    control = begin().control()
    empty = control.declare()
    control.commit(empty)
    for noun, what, status, said in (
        (
            "transaction",
            empty.hex(),
            1,
            "nothing else is known of it: it did no work, or is undecided and younger than a moment",
        ),
        ("transaction", uuid.uuid4().hex, 1, "is not known: its id was not made by this store"),
        ("message", "12345", 1, "the store has no message 12345"),
        ("message", "9" * 19, 2, "MESSAGE: expected the number of a message (--since finds a message-id), not '9"),
        ("message", "order-7\x1b[2J", 2, "not 'order-7\\x1b[2J'"),
        ("transaction", "order-7\x1b[2J", 2, "TXN-ID: expected 32 hexadecimal digits, not 'order-7\\x1b[2J'"),
        ("message", "", 2, "MESSAGE: expected the number of a message"),
    ):
        done = _refused(service, noun, what)
        assert (done.exit_code, done.stdout) == (status, "")
        assert said in done.stderr, what
    for more, status, said in (
        (("--until", "1h"), 2, "--until: give --since, too"),
        (("--since", "soon"), 2, "--since: 'soon' is no time"),
        (("--since", "1h", "--until", "2h"), 2, "is not before"),
        (("--since", "1h"), 1, "no message with the message-id 'never' was posted from "),
        (("--since", "0001-01-01T00:00:00+05:00"), 2, "--since: '0001-01-01T00:00:00+05:00' is no time"),
    ):
        done = _refused(service, "message", "never", *more)
        assert (done.exit_code, done.stdout) == (status, "")
        assert said in done.stderr, more
    for nothing in ("", "ID:AMQP_UUID:"):
        done = _refused(service, "message", nothing, "--since", "1h")
        assert (done.exit_code, done.stderr) == (
            2,
            f"error: MESSAGE: expected the message-id that a client gave, not {nothing!r}\n",
        )
