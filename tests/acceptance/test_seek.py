"""``coordinator group seek``: a consumer group is moved back or forth while its consumers run (rule H17)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.commands.address import remove
from coordinator.commands.seek import seek
from store.embedded.running import running_url
from store.spool import LARGE
from tests.acceptance.fifo import by_group, numbers
from tests.acceptance.fifo import post as post_groups
from tests.fix_service import PATIENCE, REPOSITORY, Service, running_service
from tests.fix_wire import Ask, Begin, BeginAt, DialTo
from tests.reconciling import run
from tests.wire.frames import Accepted, Modified, Open, Rejected, Source
from tests.wire.links import Receiver
from tests.wire.messages import MESSAGE_ANNOTATIONS, Header, data, section
from tests.wire.peer import Session
from tests.wire.queues import SELECTOR, dead_letters, filtered, post
from tests.wire.types import Described, Symbol
from tests.workers import pids_of_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.rule("H17")


@pytest.fixture(scope="module", params=["1", "2"], ids=["alone", "two"])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    with running_service({"workers": request.param}) as service:
        yield service


def _now() -> str:
    """Between what was posted before and what is posted after: ids are of milliseconds."""
    time.sleep(0.01)
    said = datetime.now(UTC).isoformat()
    time.sleep(0.01)
    return said


def _bodies(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def _consume(consumer: Receiver, count: int) -> list[bytes]:
    """Accept so many."""
    found = consumer.take_many(count)
    for delivery in found:
        delivery.disposition(Accepted(), settled=False)
    for delivery in found:
        delivery.settlement()
    return [delivery.body for delivery in found]


def _seek(service: Service, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(service.cli("group", "seek", *arguments, "--json"))
    return found


def _group(service: Service, address: str, name: str = "") -> dict[str, Any]:
    """As ``coordinator group list`` has it."""
    groups: list[dict[str, Any]] = json.loads(service.cli("group", "list", address, "--json"))
    return next(group for group in groups if group["group"] == name)


@pytest.mark.rule("D6")
@pytest.mark.parametrize("name", ["", "billing"])
def test_what_a_group_had_comes_again_in_order(begin: Begin, service: Service, address: str, name: str) -> None:
    """Before what waits, to a consumer that is there, and to no other group."""
    session = begin()
    source = f"{address}::{name}" if name else address
    consumer, other = session.receiver(source), session.receiver(f"{address}::other")
    post(session, address, b"before")
    place = _now()
    post(session, address, *_bodies(30))
    assert _consume(consumer, 31) == [b"before", *_bodies(30)]
    assert len(_consume(other, 31)) == 31
    post(session, address, *_bodies(10, 30))
    assert _seek(service, source, "--back-to", place)["moved"] == 30
    assert _group(service, address, name)["ready"] + _group(service, address, name)["inflight"] == 40
    again = consumer.take_many(40)
    assert [delivery.body for delivery in again] == _bodies(40)
    assert {delivery.count for delivery in again} == {0}
    assert [delivery.message.header.first_acquirer for delivery in again[:30]] == [False] * 30
    for delivery in again:
        delivery.disposition(Accepted())
    assert [delivery.body for delivery in other.drain()] == _bodies(10, 30)
    assert consumer.bodies() == []
    seek = _group(service, address, name)["seek"]
    assert (seek["back"], seek["moved"], seek["ended_at"] is not None) == (True, 30, True)
    assert "back to " in service.cli("group", "list", address)


def test_a_consumer_with_credit_gets_them_at_once(begin: Begin, service: Service, address: str) -> None:
    session = begin()
    consumer = session.receiver(address, credit=1000)
    post(session, address, *_bodies(20))
    assert _consume(consumer, 20) == _bodies(20)
    _seek(service, address, "--back-to", "2026-01-01T00:00:00Z")
    assert [delivery.body for delivery in consumer.take_many(20)] == _bodies(20)


def test_from_a_message_on(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    """It is the first of them; forth, it is the first that is not skipped."""
    session = begin()
    post(session, address, *_bodies(6))
    consumer = session.receiver(address)
    assert len(_consume(consumer, 6)) == 6
    halves = ask(
        "select h.id from coordinator.half h join coordinator.address a on a.id = h.address_id"
        " where a.name = %s order by 1",
        address,
    )
    assert _seek(service, address, "--back-to", str(halves[2][0]))["moved"] == 4
    assert _seek(service, address, "--forth-to", str(halves[4][0]))["moved"] == 2
    assert consumer.bodies() == _bodies(2, 4)


def test_both_at_once(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    """What waits before the place is skipped, what was had from there on comes again; also where it is run again after
    it was interrupted on its way back: what was accepted since then does not come twice.
    """
    session = begin()
    post(session, address, *_bodies(3))
    place = _now()
    post(session, address, *_bodies(6, 3))
    consumer = session.receiver(address)
    taken = consumer.take_many(8)
    for delivery in taken[3:]:
        delivery.disposition(Accepted(), settled=False)
        delivery.settlement()
    consumer.detach()
    said = service.cli("group", "seek", address, "--to", place)
    assert said.splitlines() == ["moved forth: 3 messages are skipped", "moved back: 5 messages are delivered again"]
    consumer = session.receiver(address)
    assert _consume(consumer, 6) == _bodies(6, 3)
    ask(
        "update coordinator.seek s set ended_at = null from coordinator.consumer_group g, coordinator.address a"
        " where g.id = s.group_id and a.id = g.address_id and a.name = %s returning 1",
        address,
    )
    (again,) = json.loads(service.cli("group", "seek", address, "--to", place, "--json"))
    assert (again["back"], again["moved"]) == (True, 5)
    assert consumer.bodies() == []


def test_what_a_consumer_has_stays_with_it(begin: Begin, service: Service, address: str) -> None:
    """It may still accept it, or fail; what has become a dead letter does not come again."""
    session = begin()
    consumer = session.receiver(address)
    post(session, address, *_bodies(4))
    first, second, third = consumer.take_many(3)
    third.disposition(Rejected(), settled=False)
    third.settlement()
    dead_letters(session, address).detach()
    assert _seek(service, address, "--back-to", "2026-01-01T00:00:00Z")["moved"] == 0
    first.disposition(Accepted(), settled=False)
    first.settlement()
    second.disposition(Modified(delivery_failed=True), settled=False)
    second.settlement()
    again = consumer.take_many(2)
    assert [(delivery.body, delivery.count) for delivery in again] == [(b"1", 1), (b"3", 0)]


def test_forth_skips_what_waits(begin: Begin, service: Service, address: str) -> None:
    """Also what a worker has read ahead; what its consumers have stays. A seek back brings it again."""
    session = begin()
    consumer = session.receiver(address)
    post(session, address, *_bodies(60))
    place = _now()
    post(session, address, *_bodies(5, 60))
    held = consumer.take_many(3)
    assert _seek(service, address, "--forth-to", place)["moved"] == 57
    assert [delivery.body for delivery in consumer.take_many(5)] == _bodies(5, 60)
    assert [delivery.body for delivery in held] == _bodies(3)
    assert _seek(service, address, "--back-to", "2026-01-01T00:00:00Z")["moved"] == 57
    assert [delivery.body for delivery in consumer.take_many(57)] == _bodies(57, 3)


@pytest.mark.rule("P18")
def test_a_fifo_address_keeps_the_order_of_its_groups(begin: Begin, service: Service, address: str) -> None:
    service.cli("address", "add", address, "--kind", "fifo")
    session = begin()
    sender = session.sender(address)
    post_groups(sender, "ab-" * 10)
    consumer = session.receiver(address)
    assert len(_consume(consumer, 30)) == 30
    post_groups(sender, "ab-" * 5, first=30)
    assert _seek(service, address, "--back-to", "2026-01-01T00:00:00Z")["moved"] == 30
    found = numbers(consumer.take_many(45))
    assert by_group("ab-", found)[:2] == [list(range(0, 45, 3)), list(range(1, 45, 3))]
    assert sorted(found) == list(range(45))


@pytest.mark.rule("P18")
def test_what_was_read_ahead_of_a_message_group_waits_for_what_comes_again(begin_at: BeginAt) -> None:
    """A service that is alone reads ahead: it has the last three when the first two come again."""
    with running_service({}) as alone:
        alone.cli("address", "add", "orders", "--kind", "fifo")
        session = begin_at(alone)
        post_groups(session.sender("orders"), "a" * 5)
        consumer, last = session.receiver("orders"), session.receiver("removed")
        assert len(_consume(consumer, 2)) == 2
        seek("orders", back_to="2026-01-01T00:00:00Z", database_url=running_url(alone.data_dir))
        remove("removed", database_url=running_url(alone.data_dir))
        last.wait_detached()  # so the service has the notice of the seek, too
        assert numbers(consumer.take_many(5)) == list(range(5))


def test_a_subscription_that_lasts(begin: Begin, service: Service, address: str) -> None:
    """Also while it has no link; its name is in the list of groups."""
    session = begin()
    topic = (Symbol("topic"),)
    source = Source(address=address, durable=2, expiry_policy=Symbol("never"), capabilities=topic)
    consumer = session.receiver(source, name="news")
    service.cli("address", "show", address)
    post(session, address, *_bodies(5))
    assert _consume(consumer, 5) == _bodies(5)
    consumer.detach(closed=False)
    (line,) = json.loads(service.cli("group", "list", address, "--json"))
    assert _seek(service, f"{address}::{line['group']}", "--back-to", "2026-01-01T00:00:00Z")["moved"] == 5
    assert session.receiver(source, name="news").bodies() == _bodies(5)


def test_large_ones_come_again_in_their_place(begin: Begin, service: Service, address: str) -> None:
    """With their terms, which a store may have far behind their beginning."""
    session = begin(max_frame_size=65_536)
    sender = session.sender(address)
    long = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-long"): "a" * 20_000})
    posted = [data(b"0"), data(bytes(LARGE + 1)), long + data(b"2"), long + data(b"3" * (3 * LARGE)), data(b"4")]
    for each in posted:
        assert sender.outcome(each) == Accepted()
    consumer = session.receiver(address)
    found = consumer.take_many(len(posted))
    for delivery in found:
        delivery.disposition(Accepted(), settled=False)
        delivery.settlement()
    assert _seek(service, address, "--back-to", "2026-01-01T00:00:00Z")["moved"] == len(posted)
    again = consumer.take_many(len(posted))
    assert [delivery.message.bare for delivery in again] == [delivery.message.bare for delivery in found]
    assert [delivery.message.annotations for delivery in again] == [delivery.message.annotations for delivery in found]


def test_a_subscription_with_a_selector_gets_again_what_it_had(begin: Begin, service: Service, address: str) -> None:
    """What it did not select was never for it, and does not come by a seek either."""
    session = begin()
    lasting: dict[str, Any] = {"durable": 2, "expiry_policy": Symbol("never"), "capabilities": (Symbol("topic"),)}
    source = filtered(address, {"s": Described(SELECTOR, "JMSPriority > 4")}, **lasting)
    consumer = session.receiver(source, name="urgent")
    sender = session.sender(address)
    for number in range(6):
        header = section(Header.CODE, Header(priority=9 if number % 2 else 1).described().value)
        assert sender.outcome(header + data(b"%d" % number)) == Accepted()
    assert _consume(consumer, 3) == [b"1", b"3", b"5"]
    assert consumer.bodies() == []
    (line,) = json.loads(service.cli("group", "list", address, "--json"))
    assert _seek(service, f"{address}::{line['group']}", "--back-to", "2026-01-01T00:00:00Z")["moved"] >= 3
    assert consumer.bodies() == [b"1", b"3", b"5"]
    assert _group(service, address, line["group"])["ready"] == 0


@pytest.mark.parametrize("service", ["2"], indirect=True)
def test_workers_share_what_comes_again(dial_to: DialTo, service: Service, address: str) -> None:
    """Each message once."""
    workers = pids_of_workers(service)
    each = 40 // len(workers)
    sessions: list[Session] = []
    for worker in workers:
        peer = dial_to(worker)
        peer.send(Open(container_id=f"{address}-{worker}"))
        peer.remote_open = peer.wait(Open)
        sessions.append(peer.begin())
    consumers = [session.receiver(address) for session in sessions]
    post(sessions[0], address, *_bodies(40))
    for _ in range(2):
        taken = [body for consumer in consumers for body in _consume(consumer, each)]
        assert sorted(taken) == sorted(_bodies(40))
        assert _seek(service, address, "--back-to", "2026-01-01T00:00:00Z")["moved"] == 40


def test_one_that_is_killed_is_finished_by_the_next(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    """Each message comes once, while a consumer accepts them."""
    count = 12_000
    session = begin()
    post(session, address, b"x")
    _fill(ask, address, count)
    consumer = session.receiver(address)
    assert _consume(consumer, 1) == [b"x"]
    arguments = ["group", "seek", address, "--back-to", "2026-01-01T00:00:00Z"]
    process = subprocess.Popen(
        [sys.executable, "-m", "coordinator", *arguments, "--data-dir", str(service.data_dir)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    deadline = time.monotonic() + PATIENCE
    moved = "select coalesce(max(s.moved), 0) from coordinator.seek s join coordinator.consumer_group g"
    moved += " on g.id = s.group_id join coordinator.address a on a.id = g.address_id where a.name = %s"
    while not ask(moved, address)[0][0]:
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = ask(moved, address)[0][0]
    assert 0 < before < count + 1
    assert "(not finished)" in service.cli("group", "list", address)
    taken = _consume(consumer, 500)
    assert _seek(service, *arguments[2:])["moved"] == count + 1
    while len(taken) < count + 1:
        taken += _consume(consumer, min(500, count + 1 - len(taken)))
    assert len(set(taken)) == len(taken)
    assert consumer.bodies() == []


def _fill(ask: Ask, address: str, count: int) -> None:
    """So many messages that the group has accepted, in one op, as if they had been posted and consumed."""
    ask(
        "with made as ("
        "  insert into coordinator.half (id, address_id, message)"
        "  select (select max(id) from coordinator.half) + n, a.id,"
        "         '\\x005375a0'::bytea || set_byte('\\x00'::bytea, 0, octet_length(n::text)) || n::text::bytea"
        "    from coordinator.address a, generate_series(1, %s) n where a.name = %s returning id, address_id)"
        " insert into coordinator.op (id, decision, half_ids, group_ids)"
        " select uuidv7(), 'accept', array_agg(m.id), array_agg(g.id) from made m"
        "   join coordinator.consumer_group g on g.address_id = m.address_id returning id",
        count,
        address,
    )


@pytest.mark.rule("R15", "R13")
def test_a_reconciliation_finds_nothing_but_real_double_deliveries(
    begin: Begin, service: Service, ask: Ask, address: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Of what was moved some were accepted again, some wait, some were skipped."""
    session = begin()
    consumer = session.receiver(address)
    post(session, address, *_bodies(20))
    assert len(_consume(consumer, 10)) == 10
    place = _now()
    post(session, address, *_bodies(5, 20))
    _seek(service, address, "--forth-to", place)
    assert _consume(consumer, 5) == _bodies(5, 20)
    _seek(service, address, "--back-to", "2026-01-01T00:00:00Z")
    assert len(_consume(consumer, 12)) == 12
    _seek(service, address, "--back-to", "2026-01-01T00:00:00Z")
    assert len(_consume(consumer, 3)) == 3
    store = running_url(service.data_dir)
    assert run(spark, store, tmp_path / "clean").findings.by_kind == {}
    # one that was accepted again, and one that waits
    ask(
        "insert into coordinator.op (id, decision, half_ids, group_ids)"
        " select uuidv7(), 'accept', array[half], array[o.group_ids[1]]"
        "   from (select max(id::text)::uuid as id from coordinator.op where decision = 'replay') last"
        "   join coordinator.op o using (id), unnest(array[o.half_ids[1], o.half_ids[9]]) half returning 1"
    )
    assert run(spark, store, tmp_path / "doubled").findings.by_kind["double-delivery"] == 2


@pytest.mark.rule("H16")
def test_before_what_is_kept(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    """The oldest that can be had is named, and can be had."""
    post(begin(), address, b"x")
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    ask(
        "insert into coordinator.retention values ('half', %s, now()) on conflict (table_name) do update"
        " set kept_from = excluded.kept_from returning 1",
        today.date(),
    )
    done = service.command("group", "seek", address, "--back-to", (today - timedelta(days=9)).isoformat())
    ask("delete from coordinator.retention where table_name = 'half' returning 1")
    assert done.returncode == 1
    oldest = done.stderr.partition("messages are kept since ")[2].partition(";")[0]
    assert datetime.fromisoformat(oldest) <= today
    assert _seek(service, address, "--back-to", oldest)["moved"] == 0
