"""An operator retires one message of one group by hand (rule D11): by command, over HTTP and in the console."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from store.embedded.running import running_url
from tests.acceptance.api import asked, done, got, refused
from tests.acceptance.fifo import numbers
from tests.acceptance.fifo import post as post_groups
from tests.fix_console import BRIEF, Operator, of_query
from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_wire import Ask, Begin
from tests.reconciling import run
from tests.tables import all_cases
from tests.wire.checkable import in_group
from tests.wire.frames import Accepted, Modified
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import browse, dead_letters, later, post
from tests.wire.retirements import retire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.rule("D11", "S10", "S11")

REASON = "done by phone"


@pytest.fixture(scope="module")
def service(token_settings: dict[str, str]) -> Iterator[Service]:
    patterns = '[{"match": "fifo-*", "kind": "fifo", "retry": "ladder 1h"}, {"match": "*", "kind": "mixed"}]'
    with running_service({**token_settings, "addresses.patterns": patterns}, BRIEF) as service:
        yield service


def _posted(ask: Ask, session: Session, address: str, *bodies: bytes) -> list[int]:
    post(session, address, *bodies)
    return _halves(ask, address)


def _halves(ask: Ask, address: str) -> list[int]:
    return [
        half_id
        for (half_id,) in ask(
            "select h.id from coordinator.half h join coordinator.address a on a.id = h.address_id where a.name = %s "
            "order by h.id",
            address,
        )
    ]


def _life(service: Service, half_id: int) -> list[tuple[str, str]]:
    return [(each["what"], each["detail"]) for each in got(service, f"/messages/{half_id}")["events"]]


def test_one_is_accepted_by_hand(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    """It leaves this group alone, and the audit and its life say so."""
    session = begin()
    session.receiver(f"{address}::billing").detach()
    first, second, third = _posted(ask, session, address, b"1", b"2", b"3")
    args = ("message", "retire", str(second), address, "--accepted")
    said = service.cli(*args, "--dry-run")
    assert said == f"message {second} of '{address}', which was ready, can be retired: accepted\n"
    assert len(browse(session, address)) == 3
    told = json.loads(service.cli(*args, "--reason", REASON, "--json"))
    assert told == {"half_id": second, "group": address, "outcome": "accepted", "was": "ready", "done": True}
    assert browse(session, address) == [b"1", b"3"]
    assert len(browse(session, f"{address}::billing")) == 3
    assert ("accepted", "by a command") in _life(service, second)
    (line,) = [each for each in got(service, "/audit?what=retire") if each["subject"] == str(second)]
    assert (line["reason"], line["detail"]) == (REASON, {"group": address, "outcome": "accepted"})
    assert [each.body for each in session.receiver(address, credit=5).take_many(2)] == [b"1", b"3"]
    assert {first, third} == {*_halves(ask, address)} - {second}


def test_one_goes_to_the_dead_letters(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    session = begin()
    first, _ = _posted(ask, session, address, b"1", b"2")
    told = done(service, f"/messages/{first}/retire", group=address, outcome="dead-letter", reason=REASON)
    assert (told["was"], told["done"]) == ("ready", True)
    consumer = dead_letters(session, address)
    consumer.credit(1)
    assert consumer.take().body == b"1"
    (letter,) = got(service, f"/dead-letters/{address}")
    assert (letter["original_id"], letter["last_error"]) == (first, f"retired by hand: {REASON}")
    assert "dead-lettered" in dict(_life(service, first))
    assert browse(session, address) == [b"2"]
    box = f"%DLQ%{address}"
    consumer.detach()
    again = refused(service, f"/messages/{letter['id']}/retire", group=box, outcome="dead-letter", reason=REASON)
    assert again == (409, f"what is in '{box}' is a dead letter already")


def test_the_page_of_a_message_retires_it(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    session = begin()
    (half_id,) = _posted(ask, session, address, b"1")
    anna = Operator(service)
    anna.log_in()
    pages = [f"/console/browse?{urlencode({'name': address})}", f"/console/message?id={half_id}"]
    paths = {each for page in pages for each in anna.ask(page).links if "do=message-retire" in each}
    assert len(paths) == 1
    page = anna.ask(paths.pop())
    assert f"Message {half_id} waits in the group '{address}', and has failed 0 times." in page.text("p")
    assert anna.answer(page, outcome="accepted").status == 400
    assert browse(session, address) == [b"1"]
    assert "Done" in anna.answer(page, outcome="accepted", reason=REASON).text("p")
    assert browse(session, address) == []
    late = anna.answer(page, outcome="dead-letter", reason=REASON)
    assert (
        late.status,
        f"message {half_id} does not wait in '{address}' any more: accepted at 20" in late.text("p"),
    ) == (
        409,
        True,
    )


@pytest.mark.rule("D7")
def test_one_that_is_scheduled_is_cancelled(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    session = begin()
    sender = session.sender(address)
    for delay in (600_000, 3_600_000):
        assert sender.outcome(later(b"%d" % delay, delay=delay)) == Accepted()
    soon, distant = _halves(ask, address)
    (group,) = [each for each in got(service, "/schedules") if each["address"] == address]
    assert (group["group"], group["messages"], group["retries"], group["octets"] > 0) == ("", 2, 0, True)
    told = got(service, f"/schedules/{address}")
    assert [each["id"] for each in told] == [soon, distant]
    assert (told[0]["due"], told[1]["due"]) == (group["first_due"], group["last_due"])
    assert json.loads(service.cli("schedule", "show", address, "--json")) == told
    assert address in service.cli("schedule", "list")
    first = asked(service, "GET", f"/schedules/{address}?limit=1")
    following = first.headers["link"].partition(">")[0].removeprefix("<")
    assert first.value + asked(service, "GET", following).value == told
    anna = Operator(service)
    anna.log_in()
    (page,) = [
        each for each in anna.ask("/console/schedules").links if each.startswith(f"/console/schedule?name={address}")
    ]
    cancels = [each for each in anna.ask(page).links if "do=message-retire" in each]
    assert [of_query(each, "half_id") for each in cancels] == [str(soon), str(distant)]
    for half_id in (soon, distant):
        told = done(service, f"/messages/{half_id}/retire", group=address, outcome="accepted", reason=REASON)
        assert told["was"] == "scheduled"
    assert got(service, f"/schedules/{address}") == []
    assert {_life(service, half_id)[-1] for half_id in (soon, distant)} == {("accepted", "by a command")}


@pytest.mark.rule("D3", "P18")
@pytest.mark.parametrize("outcome", ["accepted", "dead-letter"])
def test_what_waited_behind_it_in_its_message_group_goes_on(
    begin: Begin, service: Service, ask: Ask, address: str, outcome: str
) -> None:
    session = begin()
    name = f"fifo-{address}"
    post_groups(session.sender(name), "AA")
    consumer = session.receiver(name, credit=1)
    first = consumer.take()
    first.disposition(Modified(delivery_failed=True), settled=False)
    first.settlement()
    consumer.credit(1)
    assert consumer.drain() == []
    half_id, _ = _halves(ask, name)
    told = done(service, f"/messages/{half_id}/retire", group=name, outcome=outcome, reason=REASON)
    assert told["was"] == "scheduled"
    consumer.credit(1)
    assert numbers([consumer.take()]) == [1]


def test_what_others_have_stays_theirs(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    """A consumer, and a transaction that is undecided; and what has come to its end stays so."""
    session = begin()
    taken, held = _posted(ask, session, address, b"1", b"2")
    consumer, control = session.receiver(address, credit=2), in_group(session)
    first, second = consumer.take_many(2)
    txn = control.declare()
    retire(second, txn)
    status, said = refused(service, f"/messages/{taken}/retire", group=address, outcome="accepted", reason=REASON)
    assert status == 409
    assert said.startswith(f"message {taken} of '{address}' is in the hands of a consumer, or read for one: ")
    status, said = refused(service, f"/messages/{held}/retire", group=address, outcome="accepted", reason=REASON)
    assert status == 409
    assert said.startswith(f"message {held} of '{address}' is retired in the undecided transaction ")
    first.disposition(Accepted(), settled=False)
    first.settlement()
    control.commit(txn)
    for half_id in (taken, held):
        status, said = refused(service, f"/messages/{half_id}/retire", group=address, outcome="accepted", reason="r")
        assert status == 409
        assert f"message {half_id} does not wait in '{address}' any more: accepted at 20" in said


def test_a_message_of_an_undecided_transaction_is_no_one_s_yet(
    begin: Begin, service: Service, ask: Ask, address: str
) -> None:
    session = begin()
    control, sender = in_group(session), session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"x"), txn=txn)
    (half_id,) = _halves(ask, address)
    status, said = refused(service, f"/messages/{half_id}/retire", group=address, outcome="accepted", reason=REASON)
    assert status == 409
    assert said.endswith(", which is undecided; decide that")
    control.commit(txn)
    status, said = refused(service, f"/messages/{half_id}/retire", group="elsewhere", outcome="accepted", reason="r")
    assert (status, said) == (404, "there is no address 'elsewhere'")
    _posted(ask, session, f"{address}-2", b"1")
    status, said = refused(service, f"/messages/{half_id}/retire", group=f"{address}-2", outcome="accepted", reason="r")
    assert (status, said) == (404, f"message {half_id} is none of '{address}-2'")


def test_of_an_operator_and_a_consumer_one_has_it(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    """Each message comes to one end, by the faster of the two, and the operator is told."""
    session = begin()
    halves = _posted(ask, session, address, *(b"%d" % number for number in range(20)))

    consumer = session.receiver(address)
    with ThreadPoolExecutor(1) as pool:
        by_hand = pool.submit(_retire_all, service, address, list(reversed(halves)))
        consumer.credit(20)
        deadline, ended = time.monotonic() + PATIENCE, 0
        while not by_hand.done() or ended + sum(by_hand.result()) < len(halves):
            assert time.monotonic() < deadline
            for delivery in consumer.drain():
                delivery.disposition(Accepted(), settled=False)
                answer = delivery.settlement()
                ended += isinstance(answer.state, Accepted)
            consumer.credit(20)
    ends = ask(
        "select count(*), count(distinct h) from coordinator.op o, unnest(o.half_ids) h "
        "where o.decision = 'accept' and h = any(%s)",
        halves,
    )
    assert ends == [(20, 20)]


def _retire_all(service: Service, address: str, halves: list[int]) -> list[bool]:
    body = json.dumps({"group": address, "outcome": "accepted", "reason": REASON})
    return [asked(service, "POST", f"/messages/{each}/retire", body).status == 200 for each in halves]


@all_cases(
    ("half_id", "given", "status", "said"),
    [
        ("x", {}, 400, "MESSAGE: expected the number of a message"),
        ("1", {}, 404, "the store has no message 1"),
        ("1", {"group": "none"}, 404, "there is no address 'none'"),
        ("1", {"outcome": "lost"}, 400, "outcome: Input should be 'accepted' or 'dead-letter'"),
        ("1", {"reason": None}, 400, "reason: expected why, which is kept in the audit"),
        ("1", {"reason": None, "dry_run": True}, 404, "the store has no message 1"),
    ],
)
def test_what_is_wrong_is_said(
    begin: Begin, service: Service, half_id: str, given: dict[str, Any], status: int, said: str
) -> None:
    post(begin(), "there", b"x")
    whole = {"group": "there", "outcome": "accepted", "reason": REASON, **given}
    found, detail = refused(service, f"/messages/{half_id}/retire", **whole)
    assert (found, detail[: len(said)]) == (status, said)


@pytest.mark.rule("R13", "R15", "R17")
def test_a_reconciliation_finds_nothing(
    begin: Begin, service: Service, ask: Ask, address: str, spark: SparkSession, tmp_path: Path
) -> None:
    session = begin()
    first, second, third = _posted(ask, session, address, b"1", b"2", b"3")
    done(service, f"/messages/{first}/retire", group=address, outcome="accepted", reason=REASON)
    done(service, f"/messages/{second}/retire", group=address, outcome="dead-letter", reason=REASON)
    dead_letters(session, address).detach()
    done(service, f"/groups/{address}/seek", back_to="2026-01-01T00:00:00Z")
    done(service, f"/messages/{third}/retire", group=address, outcome="accepted", reason=REASON)
    assert browse(session, address) == [b"1"]
    assert run(spark, running_url(service.data_dir), tmp_path / "found").findings.by_kind == {}
