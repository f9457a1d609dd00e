"""What no checker answers is rolled back after the last check, and its messages are kept aside (rule H10)."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator

import psycopg
import pytest

from coordinator.address.addresses import UNANSWERED as ADDRESS
from store.embedded.running import running_url
from tests.fix_check_back import Plant, plant
from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_wire import Ask, Begin, BeginAt, decided
from tests.wire.frames import Accepted, Released, Source
from tests.wire.links import Delivery
from tests.wire.messages import MESSAGE_ANNOTATIONS, data, section
from tests.wire.peer import Session
from tests.wire.types import Symbol

EXHAUSTED = ("rollback", "check-exhausted")
SOON_MS = 50


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service() as service:
        yield service


def aside(session: Session, group: str, count: int) -> list[Delivery]:
    """So many of the messages kept aside for the group; those of others are left."""
    link = session.receiver(ADDRESS)
    found: list[Delivery] = []
    while len(found) < count:
        delivery = link.take()
        if delivery.message.annotations["x-opt-producer-group"] == group:
            delivery.disposition(Accepted())
            found.append(delivery)
        else:
            delivery.disposition(Released())
    link.detach()
    return found


@pytest.mark.rule("H7", "H10")
def test_after_the_last_check_it_is_rolled_back_and_its_messages_are_kept(
    begin: Begin, address: str, planted: Plant, ask: Ask
) -> None:
    session = begin()
    consumer = session.receiver(address, credit=10)
    first = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-mine"): "1"}) + data(b"1")
    txn = planted(address, address, first, data(b"2"), interval_ms=SOON_MS, most=3)
    checker = session.receiver(f"$check/{address}", credit=10)
    for _ in range(3):
        checker.take().disposition(Released())
    assert decided(ask, txn) == EXHAUSTED
    kept = aside(session, address, 2)
    assert [each.message.bare for each in kept] == [data(b"1"), data(b"2")]
    told = {
        "x-opt-original-address": address,
        "x-opt-producer-group": address,
        "x-opt-txn-id": txn,
        "x-opt-check-count": 3,
    }
    halves = ask("select id from coordinator.half where txn_id = encode(%s, 'hex')::uuid order by id", txn)
    ids = [{"x-opt-original-id": number} for (number,) in halves]
    assert [each.message.annotations for each in kept] == [{"x-opt-mine": "1", **told, **ids[0]}, {**told, **ids[1]}]
    assert checker.drain() == []
    assert consumer.drain() == []
    assert ask("select from coordinator.pending_half where txn_id = encode(%s, 'hex')::uuid", txn) == []


@pytest.mark.rule("H10")
def test_no_checker_is_needed_for_that(begin: Begin, address: str, planted: Plant, ask: Ask) -> None:
    """One that still has a check left waits."""
    waiting = planted(address, address, data(b"w"), checks=14)
    txn = planted(address, address, data(b"1"), checks=15)
    assert decided(ask, txn) == EXHAUSTED
    (kept,) = aside(begin(), address, 1)
    assert kept.body == b"1"
    assert ask("select checks from coordinator.txn where id = encode(%s, 'hex')::uuid", waiting) == [(14,)]


@pytest.mark.rule("H10")
def test_an_answer_after_the_last_check_is_in_time(begin: Begin, address: str, planted: Plant, ask: Ask) -> None:
    """For an interval."""
    session = begin()
    consumer = session.receiver(address, credit=1)
    txn = planted(address, address, data(b"1"), checks=14, interval_ms=3_600_000)
    session.receiver(f"$check/{address}", credit=1).take().disposition(Accepted())
    assert decided(ask, txn) == ("commit", "checked")
    assert consumer.take().body == b"1"


@pytest.mark.rule("H8", "H10")
def test_a_checker_that_never_answers(begin: Begin, address: str, planted: Plant, ask: Ask) -> None:
    """Every check is counted, and none is lost with it; what it says after the last one's interval does not stand."""
    session = begin()
    consumer = session.receiver(address, credit=1)
    txn = planted(address, address, data(b"1"), data(b"2"), interval_ms=SOON_MS, most=2)
    link = session.receiver(f"$check/{address}", credit=10)
    first, second = link.take(), link.take()
    assert decided(ask, txn) == EXHAUSTED
    assert [each.body for each in aside(session, address, 2)] == [b"1", b"2"]
    for late in (first, second):
        late.disposition(Accepted(), settled=False)
        assert late.settlement().state == Released()
    assert link.drain() == []
    assert consumer.drain() == []


@pytest.mark.rule("H11")
def test_one_that_is_never_answered_takes_the_room_of_one(begin: Begin, address: str, planted: Plant, ask: Ask) -> None:
    """It is asked about more often than a checker may leave checks unanswered; the earlier ones are let go."""

    def txn_of(check: Delivery) -> object:
        return check.message.delivery_annotations["x-opt-txn-id"]

    stuck = planted(address, address, data(b"1"), interval_ms=1, most=1000)
    link = begin().receiver(f"$check/{address}", credit=1000)
    checks = [link.take() for _ in range(100)]
    other = planted(address, address, data(b"2"))
    later = [link.take()]
    while txn_of(later[-1]) == stuck:
        later.append(link.take())
    assert txn_of(later[-1]) == other
    later[-1].disposition(Accepted())
    assert decided(ask, other) == ("commit", "checked")
    assert [each.settlement().state for each in checks[:99]] == [Released()] * 99


@pytest.mark.rule("H10", "P2")
def test_large_messages_are_kept_whole(begin: Begin, address: str, planted: Plant, ask: Ask) -> None:
    messages = [data(b"%d" % number * (1 << 21)) for number in range(2)]
    txn = planted(address, address, *messages, checks=15)
    assert decided(ask, txn) == EXHAUSTED
    assert [each.message.bare for each in aside(begin(), address, 2)] == messages


@pytest.mark.rule("H10", "H11")
def test_those_that_cannot_be_set_aside_stop_no_other(
    begin: Begin, address: str, planted: Plant, ask: Ask, service: Service
) -> None:
    """More than are looked at in one go have lost their halves; one that is being decided waits."""
    with psycopg.connect(running_url(service.data_dir)) as other:
        held = planted(address, address, data(b"held"), checks=15, due=-30)
        other.execute("select from coordinator.txn where id = encode(%s, 'hex')::uuid for update", [held])
        lost = [planted(address, address, checks=15, due=-20) for _ in range(25)]
        sound = planted(address, address, data(b"1"), checks=15)
        assert decided(ask, sound) == EXHAUSTED
        assert [decided(ask, each) for each in lost] == [EXHAUSTED] * 25
        assert ask("select from coordinator.op where id = encode(%s, 'hex')::uuid", held) == []
    assert decided(ask, held) == EXHAUSTED
    assert sorted(each.body for each in aside(begin(), address, 2)) == [b"1", b"held"]


@pytest.mark.rule("H10", "H11")
def test_those_whose_copies_the_store_refuses_stop_no_other(
    begin: Begin, address: str, planted: Plant, ask: Ask, service: Service
) -> None:
    """More than are looked at in one go; nothing of them is lost, and they are set aside when it takes them."""
    poison = data(b"poison")
    with psycopg.connect(running_url(service.data_dir)) as store:
        store.execute(
            "alter table coordinator.half add constraint no_poison "
            f"check (txn_id is not null or position('\\x{poison.hex()}'::bytea in message) = 0) not valid".encode()
        )
    refused = [planted(address, address, poison, checks=15, due=-20) for _ in range(25)]
    sound = planted(address, address, data(b"1"), checks=15)
    assert decided(ask, sound) == EXHAUSTED
    ((kept,),) = ask(
        "select count(*) from coordinator.pending_half p where p.txn_id = any(%s)", [each.hex() for each in refused]
    )
    assert kept == len(refused)
    with psycopg.connect(running_url(service.data_dir)) as store:
        store.execute("alter table coordinator.half drop constraint no_poison")
        store.execute("update coordinator.txn set next_check_at = now() where producer_group = %s", [address])
    assert {decided(ask, each) for each in refused} == {EXHAUSTED}
    assert len(aside(begin(), address, 26)) == len(refused) + 1


@pytest.mark.rule("H10")
def test_the_address_may_be_removed(begin: Begin, address: str, planted: Plant, ask: Ask, service: Service) -> None:
    """By command, or by SQL that tells no instance: it is made again, and nothing is lost."""
    assert decided(ask, planted(address, address, data(b"0"), checks=15)) == EXHAUSTED
    for link in range(3):
        if link < 2:
            service.cli("address", "remove", "--force", ADDRESS)
        else:
            ask("delete from coordinator.address where name = %s returning id", ADDRESS)
        txn = planted(address, address, data(b"%d" % link), checks=15)
        assert decided(ask, txn) == EXHAUSTED
        (kept,) = aside(begin(), address, 1)
        assert kept.body == b"%d" % link


@pytest.mark.rule("H10")
def test_a_client_cannot_make_a_topic_of_the_address(
    begin: Begin, address: str, planted: Plant, ask: Ask, service: Service
) -> None:
    """On which no copy would stay for lack of a subscription."""
    assert decided(ask, planted(address, address, data(b"0"), checks=15)) == EXHAUSTED
    service.cli("address", "remove", "--force", ADDRESS)
    begin().receiver(Source(address=ADDRESS, capabilities=(Symbol("topic"),))).detach()
    assert decided(ask, planted(address, address, data(b"1"), checks=15)) == EXHAUSTED
    (kept,) = aside(begin(), address, 1)
    assert kept.body == b"1"
    assert "expected a queue" in service.command("address", "add", ADDRESS, "--topic").stderr


@pytest.mark.rule("D4", "H10")
def test_an_operator_sees_them_and_posts_them_elsewhere(
    begin: Begin, address: str, planted: Plant, ask: Ask, service: Service
) -> None:
    """As dead letters, by the id that history knows, too; not to where they came from, as their transaction is rolled
    back.
    """
    txn = planted(address, f"{address}-orders", data(b"1"), checks=15)
    assert decided(ask, txn) == EXHAUSTED
    deadline = time.monotonic() + PATIENCE
    while ask("select from coordinator.entry where available_at is not null"):  # it gets its place, by another id
        assert time.monotonic() < deadline
        time.sleep(0.05)
    shown = json.loads(service.cli("dead-letters", "show", ADDRESS, "--limit", "1000", "--json"))
    (letter,) = [each for each in shown if each["txn_id"] == str(uuid.UUID(bytes=txn))]
    assert letter["original_address"] == f"{address}-orders"
    assert (letter["producer_group"], letter["check_count"]) == (address, 15)
    assert " producer-group " in service.cli("dead-letters", "show", ADDRESS).splitlines()[0]
    lived = json.loads(service.cli("message", "show", str(letter["id"]), "--json"))
    assert letter["id"] in [each["message"] for each in lived["events"]]
    one = ("dead-letters", "replay", ADDRESS, str(letter["id"]))
    why = "its transaction was rolled back, as no checker has answered; give --to ADDRESS"
    assert service.cli(*one, status=1) == f"replayed 0, left 1\nleft: {letter['id']}: {why}\n"
    consumer = begin().receiver(f"{address}-anew", credit=1)
    assert service.cli(*one, "--to", f"{address}-anew") == "replayed 1, left 0\n"
    assert consumer.take().body == b"1"


def copies(ask: Ask) -> list[int]:
    """The messages kept aside, those that were consumed, too."""
    return [
        number
        for (number,) in ask(
            "select h.id from coordinator.half h join coordinator.address a on a.id = h.address_id "
            "where a.name = %s order by h.id",
            ADDRESS,
        )
    ]


@pytest.mark.rule("H10", "H17")
def test_they_tell_where_they_came_from_after_a_seek_too(
    begin: Begin, address: str, planted: Plant, ask: Ask, service: Service
) -> None:
    txn = planted(address, f"{address}-orders", data(b"1"), data(b"2"), checks=15)
    assert decided(ask, txn) == EXHAUSTED
    session = begin()
    before = [each.message.annotations for each in aside(session, address, 2)]
    first, second = copies(ask)[-2:]
    service.cli("group", "seek", ADDRESS, "--back-to", str(first))
    shown = json.loads(service.cli("dead-letters", "show", ADDRESS, "--limit", "1000", "--json"))
    told = {each["id"]: each["original_address"] for each in shown if each["txn_id"] == str(uuid.UUID(bytes=txn))}
    assert told == dict.fromkeys((first, second), f"{address}-orders")
    assert [each.message.annotations for each in aside(session, address, 2)] == before
    lived = json.loads(service.cli("transaction", "show", txn.hex(), "--json"))["events"]
    assert [each["message"] for each in lived if each["what"] == "kept aside"] == [first, second]
    assert [each["message"] for each in lived if each["what"] == "moved back"] == [first, second]


def undecided(service: Service) -> int:
    with psycopg.connect(running_url(service.data_dir)) as connection:
        return len(connection.execute("select from coordinator.txn").fetchall())


@pytest.mark.rule("H10", "H13")
def test_none_is_lost_or_doubled_by_kills(begin_at: BeginAt) -> None:
    """Kill -9 while many are set aside: each is either undecided, or rolled back with its copies."""
    count = 1000
    with running_service() as service:
        with psycopg.connect(running_url(service.data_dir)) as connection:
            txns = [plant(connection, "g", "orders", [data(b"%d" % n)] * 2, checks=15) for n in range(count)]
        left = []
        for seconds in (0.1, 0.2, 0.4):
            service.kill()
            service.restart()
            time.sleep(seconds)
            left.append(undecided(service))
        assert any(0 < each < count for each in left), f"no kill came between: {left}"
        deadline = time.monotonic() + PATIENCE
        while undecided(service):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with psycopg.connect(running_url(service.data_dir)) as connection:
            ops = connection.execute("select id, decision, reason, posted from coordinator.op").fetchall()
        assert sorted(each for each in ops if each[3]) == sorted((uuid.UUID(bytes=txn), *EXHAUSTED, 2) for txn in txns)
        link = begin_at(service).receiver(ADDRESS)
        bodies = sorted(each.body for each in link.take_many(2 * count))
        assert bodies == sorted(b"%d" % n for n in range(count) for _ in range(2))
        assert link.drain() == []


@pytest.mark.rule("H10")
def test_an_operator_resumes_the_checks(begin: Begin, address: str, planted: Plant, ask: Ask, service: Service) -> None:
    session = begin()
    txn = planted(address, address, data(b"1"), checks=14)
    checker = session.receiver(f"$check/{address}", credit=10)
    checker.take().disposition(Released())
    service.cli("transaction", "resume", txn.hex())
    check = checker.take()
    ((_, told, _),) = [each for each in check.message.sections if each.code == 0x71]
    assert told["x-opt-check-count"] == 1
    check.disposition(Accepted())
    assert decided(ask, txn) == ("commit", "checked")
    done = service.command("transaction", "resume", txn.hex())
    assert done.returncode == 1
    assert f"transaction {uuid.UUID(bytes=txn)} is decided already: commit (checked)" in done.stderr


@pytest.mark.rule("H9")
def test_the_list_of_undecided_ones_shows_the_wait(address: str, planted: Plant, service: Service) -> None:
    txn = planted(address, address, data(b"1"), checks=2, due=-100)
    listed = {line["txn_id"]: line for line in json.loads(service.cli("transaction", "list", "--json"))}
    line = listed[str(uuid.UUID(bytes=txn))]
    assert (line["producer_group"], line["checks"], line["most_checks"]) == (address, 2, 15)
    assert line["waits_seconds"] == pytest.approx(100, abs=60)
