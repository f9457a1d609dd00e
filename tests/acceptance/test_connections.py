"""Who is connected (``coordinator connection list | show | close``, the views ``connections`` and ``links``): over two
instances of one service, over two services, with hostile clients, and when instances and servers die.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from links.close_reason import CloseReason
from tests.acceptance.clients import run_case
from tests.acceptance.engine_client import Client, Lost
from tests.fix_certificates import Authority, key_of
from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_users import PASSWORD, add_users
from tests.fix_wire import Ask, Dial, DialTo
from tests.wire.frames import AMQP_HEADER, Accepted, Open, frame
from tests.wire.messages import data
from tests.wire.peer import Peer
from tests.wire.sasl import Login, plain
from tests.wire.types import Symbol, UInt
from tests.workers import pids_of_workers

#: instances scan their connections at once
BRIEF = {"coordinator.connection_list.SCAN_SECONDS": 0.1}

Line = dict[str, Any]


@pytest.fixture(scope="module")
def service(rules: None) -> Iterator[Service]:
    with running_service({"workers": "2"}, BRIEF) as service:
        yield service


def lines(service: Service, *flags: str) -> list[Line]:
    found = json.loads(service.cli("connection", "list", "--json", *flags))
    assert isinstance(found, list)
    return found


def waited(found: Callable[[], Line | None]) -> Line:
    """What is found, which must be there after a while."""
    deadline = time.monotonic() + PATIENCE
    while (line := found()) is None:
        assert time.monotonic() < deadline, "it is not listed so"
    return line


def listed(service: Service, container: str, *flags: str, **wanted: object) -> Line:
    """The line of a container's connection, once it is as wanted."""

    def found() -> Line | None:
        for line in lines(service, *flags):
            if line["container_id"] == container and wanted.items() <= line.items():
                return line
        return None

    return waited(found)


def test_a_connection_is_listed_with_its_client_and_its_links(service: Service, dial: Dial, address: str) -> None:
    peer = dial()
    peer.open(container_id=address, properties={Symbol("product"): "tests", Symbol("version"): "0.9"})
    session = peer.begin()
    sender, receiver = session.sender(address), session.receiver(address, credit=5)
    for body in (b"1", b"2", b"3"):
        assert sender.outcome(data(body)) == Accepted()
    receiver.take().disposition(Accepted())
    txn = session.control().declare()
    assert len(txn) == 16
    line = listed(service, address, posted=3, delivered=3, unsettled=2)
    assert (line["product"], line["version"], line["tls"], line["user"]) == ("tests", "0.9", None, None)
    assert (line["host"], line["port"]) == peer.socket.getsockname()
    assert (line["sessions"], line["links"], line["last_error"]) == (1, 3, None)
    assert (line["closed_at"], line["close_reason"]) == (None, None)
    shown = json.loads(service.cli("connection", "show", line["connection"], "--json"))
    assert shown.pop("link_list") == [
        {
            "name": sender.answer.name,
            "role": "sender",
            "address": address,
            "credit": 997,
            "unsettled": 0,
            "deliveries": 3,
        },
        {
            "name": receiver.answer.name,
            "role": "receiver",
            "address": address,
            "credit": 2,
            "unsettled": 2,
            "deliveries": 3,
        },
        {"name": shown_name(service, line, "coordinator"), "role": "coordinator", "address": None, "credit": 999}
        | {"unsettled": 0, "deliveries": 1},
    ]
    assert shown["connection"] == line["connection"]
    table = service.cli("connection", "show", line["connection"])
    assert "container-id:" in table
    assert "coordinator" in table


def shown_name(service: Service, line: Line, role: str) -> str:
    links = json.loads(service.cli("connection", "show", line["connection"], "--json"))["link_list"]
    (name,) = [each["name"] for each in links if each["role"] == role]
    return str(name)


def test_the_views_say_the_same(service: Service, dial: Dial, ask: Ask, address: str) -> None:
    peer = dial()
    peer.open(container_id=address)
    sender = peer.begin().sender(address)
    assert sender.outcome(data(b"1")) == Accepted()
    line = listed(service, address, posted=1, links=1)
    columns = "connection, host, port, links, posted, closed_at"
    assert ask(f"select {columns} from coordinator.connections where container_id = %s", address) == [
        (line["connection"], line["host"], line["port"], 1, 1, None)
    ]
    columns = "role, address, credit, unsettled, deliveries"
    assert ask(f"select {columns} from coordinator.links where connection = %s", line["connection"]) == [
        ("sender", address, 999, 0, 1)
    ]


def test_credit_that_was_drained_is_no_delivery(service: Service, dial: Dial, address: str) -> None:
    peer = dial()
    peer.open(container_id=address)
    session = peer.begin()
    sender, receiver = session.sender(address), session.receiver(address)
    assert receiver.drain() == []
    for body in (b"1", b"2"):
        assert sender.outcome(data(body)) == Accepted()
    assert len(receiver.drain()) == 2
    listed(service, address, posted=2, delivered=2)
    # also once its links are gone
    sender.detach()
    receiver.detach()
    listed(service, address, posted=2, delivered=2, links=0)


def test_the_last_error_is_told(service: Service, dial: Dial, address: str) -> None:
    peer = dial()
    peer.open(container_id=address)
    refused = peer.begin().sender("%DLQ%nothing-of-the-sort")
    condition = refused.error
    error = listed(service, address, links=0)["last_error"]
    assert error.startswith(f"{condition}: ")


def _closed(dial: Dial, address: str, way: str) -> None:
    peer = dial()
    peer.open(container_id=address)
    if way == "protocol-error":
        peer.send_octets(b"\x00\x00\x00\x04\x02\x00\x00\x00")
        peer.rest()
    elif way == "client-closed":
        peer.close()
    peer.close_socket()


@pytest.mark.parametrize("reason", [CloseReason.CLIENT_CLOSED, CloseReason.CLIENT_GONE, CloseReason.PROTOCOL_ERROR])
def test_it_is_told_why_a_connection_was_closed(
    service: Service, dial: Dial, address: str, reason: CloseReason
) -> None:
    _closed(dial, address, reason)
    line = listed(service, address, "--closed", close_reason=reason.value)
    assert line["opened_at"] <= line["closed_at"]
    assert address not in {each["container_id"] for each in lines(service)}
    shown = json.loads(service.cli("connection", "show", line["connection"], "--json"))
    assert shown["close_reason"] == reason


def test_the_last_hundred_of_an_instance_are_told() -> None:
    with running_service({}, BRIEF) as service:
        for number in range(120):
            peer = Peer(service.port)
            peer.open(container_id=f"short-{number}")
            peer.close()
            Peer(service.port).close_socket()  # as a monitor does
        # the rows before go with the next scan
        wanted = [f"short-{number}" for number in range(119, 19, -1)]
        waited(lambda: {} if [each["container_id"] for each in lines(service, "--closed")] == wanted else None)
        first = service.command("connection", "list", "--closed", "--limit", "1")
        assert "short-119" in first.stdout
        assert first.stderr == "these are 1, the limit: there may be more (--limit)\n"


# -- closing


@pytest.mark.rule("S10")
def test_an_operator_closes_one(service: Service, dial_to: DialTo, ask: Ask, address: str) -> None:
    """Of each of two instances; the audit has it."""
    for worker in (0, 1):
        client, other = dial_to(worker), dial_to(worker)
        client.send(Open(container_id=f"{address}-{worker}"))
        other.send(Open(container_id=f"{address}-other-{worker}"))
        line = listed(service, f"{address}-{worker}")
        said = service.cli("connection", "close", line["connection"], "--reason", "it floods us")
        assert said == f"connection {line['connection']} is closed\n"
        assert isinstance(client.read().performative, Open)
        error = client.closed()
        assert error.condition == "amqp:connection:forced"
        assert error.description == "an operator has closed this connection: it floods us"
        listed(service, f"{address}-{worker}", "--closed", close_reason="by-hand")
        listed(service, f"{address}-other-{worker}")
        told = ask(
            "select reason, detail ->> 'container' from coordinator.audit where action = 'connection-close' "
            "and subject = %s",
            line["connection"],
        )
        assert told == [("it floods us", f"{address}-{worker}")]
        again = service.command("connection", "close", line["connection"])
        assert again.returncode == 1
        assert f"the connection {line['connection']} was closed at " in again.stderr
        assert again.stderr.endswith(" already: by-hand\n")


def test_a_client_of_proton_sees_it(service: Service, address: str) -> None:
    client = Client(service.port, address)
    sender = client.sender(address)
    assert client.outcome(client.post(sender, "m")) == 0x24
    service.cli("connection", "close", listed(service, address)["connection"])
    with pytest.raises(Lost, match="amqp:connection:forced"):
        client.until(lambda: False)


def test_a_client_of_rhea_sees_it(service: Service, rhea_project: Path) -> None:
    with ThreadPoolExecutor() as pool:
        case = "closed_by_an_operator"
        client = pool.submit(run_case, "node", "driver.js", case, str(service.port), cwd=rhea_project)
        line = listed(service, "rhea-closed-by-hand", links=1)
        service.cli("connection", "close", line["connection"], "--reason", "for a test")
        seen = client.result()
    assert seen == {
        "condition": "amqp:connection:forced",
        "description": "an operator has closed this connection: for a test",
    }


@pytest.mark.parametrize("verb", ["show", "close"])
def test_one_that_is_not_there(service: Service, verb: str) -> None:
    done = service.command("connection", verb, "999999-1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: there is no connection 999999-1 (coordinator connection list")
    for text in ("", "7", "1-2-3", "a-b", "-1-2", "1-9999999999"):
        done = service.command("connection", verb, "--", text)
        assert done.returncode == 2
        assert "CONNECTION: expected two numbers" in done.stderr


def test_an_instance_that_stands_still_closes_it_later() -> None:
    """The request is a row: the instance finds it once it goes on."""
    with running_service({}, {**BRIEF, "store.connections.CLOSE_SECONDS": 0.5}) as service:
        peer = Peer(service.port)
        peer.open(container_id="of-one-that-stands-still")
        line = listed(service, "of-one-that-stands-still")
        worker = pids_of_workers(service, count=1)[0]
        os.kill(worker, signal.SIGSTOP)
        try:
            done = service.command("connection", "close", line["connection"])
        finally:
            os.kill(worker, signal.SIGCONT)
        assert done.returncode == 1
        assert done.stderr.startswith(f"error: the instance {line['instance_id']} has not closed the connection ")
        assert peer.closed().condition == "amqp:connection:forced"


def test_of_an_instance_that_was_killed_nothing_is_left() -> None:
    with running_service({"workers": "1"}, BRIEF) as service:
        peer = Peer(service.port)
        peer.open(container_id="of-the-dead")
        line = listed(service, "of-the-dead")
        seen = len(service.log_lines())
        os.kill(pids_of_workers(service, count=1)[0], signal.SIGKILL)
        pids_of_workers(service, since=seen, count=1)
        waited(lambda: {} if not lines(service) else None)
        assert lines(service, "--closed") == []
        for verb in ("show", "close"):
            done = service.command("connection", verb, line["connection"])
            assert done.returncode == 1
            assert done.stderr.startswith(f"error: the instance {line['instance_id']} has ended at ")
        peer.close_socket()


def test_what_a_server_has_lost_in_a_crash_is_told_again() -> None:
    """A crash of PostgreSQL empties the table."""
    with running_service({}, BRIEF) as service:
        peer, closed = Peer(service.port), Peer(service.port)
        peer.open(container_id="stays")
        closed.open(container_id="closed")
        closed.close()
        line = listed(service, "stays")
        ended = listed(service, "closed", "--closed")
        seen = len(service.log_lines())
        service.signal_database(signal.SIGKILL)
        service.wait_for(lambda each: each.get("event") == "database started", since=seen)
        assert waited(lambda: _there(service, "stays"))["connection"] == line["connection"]
        assert waited(lambda: _there(service, "closed", "--closed"))["connection"] == ended["connection"]
        peer.close_socket()


def _there(service: Service, container: str, *flags: str) -> Line | None:
    """The line, where the store answers and has it."""
    done = service.command("connection", "list", "--json", *flags)
    found = json.loads(done.stdout) if done.returncode == 0 else []
    return next((line for line in found if line["container_id"] == container), None)


def test_two_services_on_one_store(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    services = [
        Service(tmp_path_factory.mktemp("service"), {"database_url": module_database_url}, BRIEF) for _ in range(2)
    ]
    try:
        peers = []
        for number, service in enumerate(services):
            service.start()
            peers.append(Peer(service.port))
            peers[-1].open(container_id=f"at-{number}")
        first = listed(services[0], "at-1")
        assert first["instance_id"] != listed(services[1], "at-0")["instance_id"]
        # each is closed by a command beside the other service
        services[0].cli("connection", "close", first["connection"])
        assert peers[1].closed().condition == "amqp:connection:forced"
        assert services[1].stop() == 0
        assert [line["container_id"] for line in lines(services[0])] == ["at-0"]
        assert lines(services[0], "--closed") == []
        peers[0].close_socket()
    finally:
        for service in services:
            service.discard()


# -- users, TLS


def test_the_user_and_tls_are_told(ca: Authority) -> None:
    server = ca.sign("listed", alternative="IP:127.0.0.1")
    settings = {"tls.certificate": str(server), "tls.key": str(key_of(server))}
    with running_service(settings, BRIEF) as service:
        add_users(service, "alice", "bob")
        peer = Peer(service.port)
        peer.behind_tls(ssl.create_default_context(cafile=str(ca.certificate)))
        login = Login(peer)
        login.init("PLAIN", plain("alice", PASSWORD))
        assert login.outcome().code == 0
        peer.open(container_id="behind-tls")
        line = listed(service, "behind-tls", "--user", "alice")
        assert (line["user"], line["tls"]) == ("alice", "TLSv1.3")
        assert lines(service, "--user", "bob") == []
        peer.close_socket()


# -- hostile clients

_WRONG = {
    "control characters": Open(container_id="a\x1b[31m\x07\r\nb", properties={Symbol("product"): "c\x1b]0;d\x07"}),
    "NUL": Open(container_id="e", properties={Symbol("product"): "f\0g", Symbol("version"): "\0"}),
    "other types": Open(container_id="h", properties={Symbol("product"): b"i", Symbol("version"): UInt(3)}),
    "long": Open(container_id="j" * 60_000, properties={Symbol("product"): "k" * 3000, Symbol("version"): "l"}),
    "many": Open(container_id="m", properties={Symbol(f"n{number}"): UInt(number) for number in range(2000)}),
    "beyond Unicode's first plane": Open(container_id="\U0001f600" * 300, properties={Symbol("product"): "\u202eo"}),
}


def _raw_open(container: bytes, properties: bytes) -> bytes:
    """An open with these encoded fields, as they are."""
    fields = container + b"\x40" * 8 + properties
    body = b"\x00\x53\x10\xd0" + (4 + len(fields)).to_bytes(4, "big") + (10).to_bytes(4, "big") + fields
    return (8 + len(body)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body


_RAW = {
    "not UTF-8": _raw_open(b"\xa1\x03\xff\xfep", b"\xc1\x01\x00"),
    "no map": _raw_open(b"\xa1\x01q", b"\xa1\x01r"),
    "a product that is not UTF-8": _raw_open(b"\xa1\x01s", b"\xc1\x0e\x02\xa3\x07product\xa1\x02\xff\xfe"),
    "an odd map": _raw_open(b"\xa1\x01t", b"\xc1\x0a\x01\xa3\x07product"),
}


def test_what_hostile_clients_say_harms_no_list() -> None:
    with running_service({}, BRIEF) as service:
        peers = []
        for opening in [*(frame(each) for each in _WRONG.values()), *_RAW.values(), frame(Open(container_id="plain"))]:
            peer = Peer(service.port)
            peer.send_octets(AMQP_HEADER + opening)
            assert peer.read_header() == AMQP_HEADER
            peers.append(peer)
        found = {each["container_id"]: each for each in [*_after(service, "plain"), *lines(service, "--closed")]}
        assert found["a\\x1b[31m\\x07\\r\\nb"]["product"] == "c\\x1b]0;d\\x07"
        assert (found["e"]["product"], found["e"]["version"]) == ("f\\x00g", "\\x00")
        assert (found["h"]["product"], found["h"]["version"]) == (None, None)
        assert found["j" * 200 + "..."]["product"] == "k" * 200 + "..."
        assert found["m"]["product"] is None
        assert found["\U0001f600" * 200 + "..."]["product"] == "\\u202eo"
        assert "q" in found
        assert service.command("connection", "list").returncode == 0
        assert not [line for line in service.log_lines() if line.get("event") in ("internal error", "query refused")]
        for peer in peers:
            peer.close_socket()


def _after(service: Service, last: str) -> list[Line]:
    """The open connections, once the last is among them."""
    listed(service, last)
    return lines(service)


def test_links_with_hostile_names_and_more_than_are_shown(service: Service, dial: Dial, address: str) -> None:
    peer = dial()
    peer.open(container_id=address)
    session = peer.begin()
    first = session.sender(address, name="x\x1b[1m\u202e" + "y" * 300)
    for number in range(120):
        session.sender(address, name=f"n{number}")
    assert first.accepted
    line = listed(service, address, links=121)
    shown = json.loads(service.cli("connection", "show", line["connection"], "--json"))["link_list"]
    assert len(shown) == 100
    assert shown[0]["name"] == "x\\x1b[1m\\u202e" + "y" * 194 + "..."
    assert "and 21 more links" in service.cli("connection", "show", line["connection"])


@pytest.mark.night
def test_a_thousand_idle_ones() -> None:
    with running_service({}) as service:
        peers = [Peer(service.port) for _ in range(1000)]
        for number, peer in enumerate(peers):
            peer.open(container_id=f"one-of-{number}")
        waited(lambda: {} if len(lines(service)) == 1000 else None)
        before = {line["connection"]: line["written_at"] for line in lines(service)}
        peers[500].begin().control()
        listed(service, "one-of-500", links=1)
        after = {line["connection"]: line["written_at"] for line in lines(service)}
        # what does not change is not written again
        assert len([each for each in before if before[each] != after[each]]) == 1
        service.cli("connection", "close", listed(service, "one-of-999")["connection"])
        assert peers[999].closed().condition == "amqp:connection:forced"
        for peer in peers:
            peer.close_socket()
