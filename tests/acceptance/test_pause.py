"""A consumer group is paused, and goes on (rule D12): by command, over HTTP and in the console."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.acceptance.api import TOKEN, done, got, place, refused
from tests.acceptance.fifo import numbers
from tests.acceptance.fifo import post as post_groups
from tests.fix_console import BRIEF, Operator
from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_wire import Ask, Begin, BeginAt
from tests.wire.frames import Accepted, Released
from tests.wire.queues import browse, post, select

pytestmark = pytest.mark.rule("D12", "S10", "S11")

REASON = "the consumers are broken"


@pytest.fixture(scope="module", params=["1", "2"], ids=["alone", "two"])
def service(request: pytest.FixtureRequest, token_settings: dict[str, str]) -> Iterator[Service]:
    patterns = '[{"match": "fifo-*", "kind": "fifo"}]'
    with running_service(
        {**token_settings, "workers": request.param, "addresses.patterns": patterns}, BRIEF
    ) as service:
        yield service


def _group(service: Service, address: str) -> dict[str, Any]:
    groups: list[dict[str, Any]] = json.loads(service.cli("group", "list", address, "--json"))
    return groups[0]


def _metrics(service: Service) -> list[str]:
    request = urllib.request.Request(f"{place(service)}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        text: str = answer.read().decode()
        return text.splitlines()


def _until_free(service: Service, address: str, count: int) -> None:
    """Instances give back what no consumer has."""
    deadline = time.monotonic() + PATIENCE
    while _group(service, address)["ready"] != count:
        assert time.monotonic() < deadline, _group(service, address)


def test_a_paused_group_gets_nothing_new_and_goes_on(begin: Begin, service: Service, address: str) -> None:
    session = begin()
    post(session, address, *(b"%d" % number for number in range(5)))
    consumer = session.receiver(address, credit=2)
    first, second = consumer.take_many(2)
    consumer.credit(10)
    rest = consumer.take_many(3)
    rest[0].disposition(Released())
    assert consumer.take().body == b"2"
    service.cli("group", "pause", address, "--reason", REASON)
    post(session, address, b"5", b"6")
    _until_free(service, address, 2)
    first.disposition(Accepted(), settled=False)
    assert first.settlement().state == Accepted()
    second.disposition(Released())  # it comes back to the store, and to no consumer
    _until_free(service, address, 3)
    assert browse(session, address) == [b"1", b"5", b"6"]
    group = _group(service, address)
    assert (group["paused_for"], group["paused_by"] is not None) == (REASON, True)
    assert f": {REASON}" in service.cli("group", "list", address)
    done(service, f"/groups/{address}/resume")
    assert [each.body for each in consumer.take_many(3)] == [b"1", b"5", b"6"]
    assert _group(service, address)["paused_at"] is None


def test_consumers_of_all_kinds_wait(begin: Begin, service: Service, address: str) -> None:
    """One that drains, and one that comes while the group is paused; those of another group do not."""
    session = begin()
    session.receiver(f"{address}::other").detach()
    draining = session.receiver(address)
    told = done(service, f"/groups/{address}/pause", reason=REASON)
    assert (told["paused_by"], told["paused_for"]) == ("anna", REASON)
    late = session.receiver(address, credit=5)
    post(session, address, b"1", b"2")
    _until_free(service, address, 2)
    draining.credit(5)
    assert draining.drain() == []
    assert session.receiver(f"{address}::other", credit=5).take_many(2)[0].body == b"1"

    done(service, f"/groups/{address}/resume")
    assert [each.body for each in late.take_many(2)] == [b"1", b"2"]


@pytest.mark.rule("D11")
def test_what_was_read_ahead_can_be_retired_then(begin: Begin, service: Service, ask: Ask, address: str) -> None:
    session = begin()
    post(session, address, b"1", b"2", b"3")
    consumer = session.receiver(address, credit=1)
    first = consumer.take()
    service.cli("group", "pause", address)
    _until_free(service, address, 2)
    _, second, _ = ask(
        "select h.id from coordinator.half h join coordinator.address a on a.id = h.address_id where a.name = %s "
        "order by h.id",
        address,
    )
    done(service, f"/messages/{second[0]}/retire", group=address, outcome="accepted", reason=REASON)
    first.disposition(Accepted())
    service.cli("group", "resume", address)
    consumer.credit(5)
    assert consumer.take().body == b"3"
    assert consumer.drain() == []


def test_one_with_a_selector_goes_on(begin: Begin, service: Service, address: str) -> None:
    session = begin()
    selecting = select(session, address, "1 = 1")
    selecting.credit(5)
    service.cli("group", "pause", address)
    post(session, address, b"1", b"2")
    _until_free(service, address, 2)
    service.cli("group", "resume", address)
    assert [each.body for each in selecting.take_many(2)] == [b"1", b"2"]


@pytest.mark.rule("P18")
def test_message_groups_keep_their_order(begin: Begin, service: Service, address: str) -> None:
    session = begin()
    name = f"fifo-{address}"
    sender = session.sender(name)
    post_groups(sender, "ABAB")
    consumer = session.receiver(name, credit=1)
    first = consumer.take()
    service.cli("group", "pause", name)
    _until_free(service, name, 3)
    post_groups(sender, "A", first=4)
    consumer.credit(9)
    first.disposition(Accepted(), settled=False)
    first.settlement()
    _until_free(service, name, 4)
    service.cli("group", "resume", name)
    found = numbers(consumer.take_many(4))
    assert sorted(found) == [1, 2, 3, 4]
    assert [each for each in found if each % 2 == 0] == [2, 4]
    assert [each for each in found if each % 2] == [1, 3]


@pytest.mark.parametrize("kind", ["", "fifo-"])
def test_each_message_comes_once_however_often_it_is_paused(
    begin: Begin, service: Service, address: str, kind: str
) -> None:
    name, count = f"{kind}{address}", 400
    posting, *consuming = (begin() for _ in range(3))
    consumers = [session.receiver(name, credit=10) for session in consuming]

    def toggle() -> None:
        for _ in range(8):
            done(service, f"/groups/{name}/pause")
            done(service, f"/groups/{name}/resume")

    def post_all() -> None:
        post(posting, name, *(b"%d" % number for number in range(count)))

    found: list[bytes] = []
    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(post_all), pool.submit(toggle)]
        deadline = time.monotonic() + 2 * PATIENCE
        while len(found) < count or not all(each.done() for each in working):
            assert time.monotonic() < deadline, (len(found), working)
            for consumer in consumers:
                some = consumer.drain()
                for delivery in some:
                    delivery.disposition(Accepted())
                found += [delivery.body for delivery in some]
                consumer.credit(10)
        for each in working:
            each.result()
    assert sorted(map(int, found)) == list(range(count))


def test_a_group_of_a_topic_is_paused_alone(begin: Begin, service: Service, address: str) -> None:
    service.cli("address", "add", address, "--topic")
    session = begin()
    one, other = (session.receiver(f"{address}::{name}", credit=5) for name in ("one", "other"))
    assert one.answer.source is not None
    done(service, f"/groups/{address}::one/pause")
    post(session, address, b"1")
    assert other.take().body == b"1"
    assert one.drain() == []
    done(service, f"/groups/{address}::one/resume")
    one.credit(1)
    assert one.take().body == b"1"


def test_it_is_said_when_it_is_so_already(service: Service, address: str) -> None:
    service.cli("address", "add", address)
    assert refused(service, f"/groups/{address}/resume") == (409, f"'{address}' is not paused")
    assert done(service, f"/groups/{address}/pause", reason=REASON)["name"] == address
    status, said = refused(service, f"/groups/{address}/pause", reason="mine")
    assert status == 409
    assert said.startswith(f"'{address}' is paused since 20")
    assert said.endswith(f" by anna: {REASON}")
    assert refused(service, "/groups/none/pause") == (404, "there is no address 'none'")
    (line,) = [each for each in got(service, "/audit?what=group-pause") if each["subject"] == address]
    assert (line["os_user"], line["reason"], line["detail"]) == ("anna", REASON, {"group": ""})


def test_a_metric_says_for_how_long(service: Service, address: str) -> None:
    service.cli("address", "add", address)
    done(service, f"/groups/{address}/pause")
    wanted = f'coordinator_group_paused_seconds{{address="{address}",group=""}} '
    deadline = time.monotonic() + PATIENCE
    while not any(line.startswith(wanted) for line in _metrics(service)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_console_pauses_shows_and_resumes(service: Service, address: str) -> None:
    service.cli("address", "add", address)
    anna = Operator(service)
    anna.log_in()
    where = f"/console/address?{urlencode({'name': address})}"
    (path,) = [each for each in anna.ask(where).links if "do=group-pause" in each]
    assert "Done" in anna.sent(path, reason=REASON).text("p")
    page = anna.ask(where)
    assert f"by anna: {REASON}" in page.text("td")
    (path,) = [each for each in page.links if "do=group-resume" in each]
    asked = anna.ask(path)
    assert f"'{address}' is paused since 20" in asked.text("p")
    assert "Done" in anna.answer(asked, reason="mended").text("p")
    assert [each for each in anna.ask(where).links if "do=group-pause" in each]


def test_a_pause_lasts_over_a_restart(begin_at: BeginAt) -> None:
    with running_service() as service:
        session = begin_at(service)
        post(session, "orders", b"1")
        service.cli("group", "pause", "orders")
        service.stop()
        service.start()
        session = begin_at(service)
        consumer = session.receiver("orders", credit=5)
        post(session, "orders", b"2")
        _until_free(service, "orders", 2)
        service.cli("group", "resume", "orders")
        assert [each.body for each in consumer.take_many(2)] == [b"1", b"2"]
