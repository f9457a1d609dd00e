"""Clients that call everything they name by a hostile value: what the service tells of it to them, to its log, to those
who read its metrics, and to a terminal (rule S7)."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from coordinator.__main__ import app
from store.embedded.running import running_url
from tests.fix_hostile import HOSTILE, harmful
from tests.fix_service import PATIENCE, Service, running_service
from tests.wire.frames import RECEIVER, Accepted, Discharge, Rejected, Source, Target
from tests.wire.links import Link
from tests.wire.messages import APPLICATION_PROPERTIES, Properties, data, section
from tests.wire.peer import Peer, Session
from tests.wire.types import Described, Symbol

pytestmark = pytest.mark.rule("S7")

#: What AMQP can say: its strings have no lone surrogates. As long as a frame has room for several.
VALUES = {name: value[:4000] for name, value in HOSTILE.items() if name != "lone surrogates"}
#: No description is longer.
LONGEST_DESCRIPTION = 2000


class Told(NamedTuple):
    """What the service said to one client: descriptions of errors; and its transaction, which stays open."""

    descriptions: list[str]
    txn: str


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"metrics.listen": "http://127.0.0.1:0", "log.level": "debug"}) as service:
        yield service


@pytest.fixture(scope="module")
def told(service: Service) -> Iterator[dict[str, Told]]:
    """By the name of the value. The clients stay connected, their links and transactions with them."""
    peers = [Peer(service.port) for _ in VALUES]
    yield {name: _use(peer, VALUES[name]) for peer, name in zip(peers, VALUES, strict=True)}
    for peer in peers:
        peer.close_socket()


def _use(peer: Peer, value: str) -> Told:
    peer.open(container_id=_whole(value), hostname=value, properties={Symbol("product"): value, _symbol(value): value})
    session = peer.begin()
    links = list(_links(session, value))
    errors = [link.wait_detached().error for link in links if _refused(link)]
    relay = session.sender(Target())
    states = [relay.outcome(_message(value, to=to)) for to in (value, f"$check/{value}", f"{value}::{value}")]
    control = session.control(name=f"control {_whole(value)}")
    states.append(control.reply(Discharge(txn_id=value.encode()[:64], fail=False)))
    errors += [getattr(state, "error", None) for state in states]
    _bury(session, value)
    txn = control.declare()
    session.sender("hostile").outcome(_message(value, to=value), txn=txn)
    session.sync()  # the connection still works
    return Told([error.description or "" for error in errors if error is not None], txn.hex())


def _links(session: Session, value: str) -> Iterator[Link]:
    filtered = {Symbol("select"): Described(Symbol("apache.org:selector-filter:string"), value)}
    group = {Symbol("coordinator:producer-group"): value, Symbol("coordinator:timeout-ms"): value}
    yield session.sender(value, name=_whole(value))
    yield session.sender(f"${value}")
    yield session.receiver(value, name=f"of {_whole(value)}")
    yield session.receiver(f"{value}::{value}")
    yield session.receiver(f"$check/{value}")
    yield session.receiver(Source(address="hostile", filter=filtered))
    yield session.receiver(Source(address="hostile", distribution_mode=_symbol(value)))
    yield session.control(properties=group)


def _whole(value: str) -> str:
    """As a container-id or a link's name may be: what has a NUL is refused there (test_nul.py)."""
    return value.replace("\0", "")


def _symbol(value: str) -> Symbol:
    """Symbols are ASCII (part 1, section 1.6.21)."""
    return Symbol(value.encode("ascii", "ignore").decode()[:200])


def _refused(link: Link) -> bool:
    """The answer has no target for what we send, no source for what we receive (part 2, section 2.6.3)."""
    return (link.answer.target if link.answer.role is RECEIVER else link.answer.source) is None


def _message(value: str, **fields: Any) -> bytes:
    properties = Properties(message_id=value, subject=value, reply_to=value, group_id=value, **fields)
    return properties.encoded() + section(APPLICATION_PROPERTIES, {value: value}) + data(value.encode())


def _bury(session: Session, value: str) -> None:
    """A dead letter whose reason is the value."""
    assert session.sender("buried").outcome(_message(value, to="buried")) == Accepted()
    receiver = session.receiver("buried", credit=1)
    receiver.take().disposition(Rejected(error=None))
    receiver.detach()


def test_errors_are_a_printable_line(told: dict[str, Told]) -> None:
    for name, (descriptions, _) in told.items():
        assert len(descriptions) >= 3, name  # a txn-id that was never given, a selector that is none, a timeout
        for said in descriptions:
            assert harmful(said) == set(), (name, said)
            assert len(said) < LONGEST_DESCRIPTION, name


def test_the_log_has_one_line_for_each_event(told: dict[str, Told], service: Service) -> None:
    assert told
    lines = service.log_lines()
    opened = [line["container"] for line in lines if line.get("event") == "connection opened"]
    named = [_whole(value) for value in VALUES.values()]
    assert sorted(each for each in opened if each in named) == sorted(named)
    assert all({"event", "level", "timestamp"} <= set(line) for line in lines)
    assert "forged" not in {line["event"] for line in lines}
    assert "internal error" not in {line["event"] for line in lines}
    assert max(len(json.dumps(line)) for line in lines) < 100_000


def test_metrics_have_no_line_of_theirs(told: dict[str, Told], service: Service) -> None:
    assert told
    (place,) = next(line for line in service.log_lines() if line.get("event") == "metrics")["listen"]
    deadline = time.monotonic() + PATIENCE
    addresses: set[str] = set()
    while not {"hostile", VALUES["a formula"]} <= addresses:
        assert time.monotonic() < deadline, addresses
        time.sleep(0.2)
        with urllib.request.urlopen(f"{place}/metrics", timeout=PATIENCE) as answer:
            text = answer.read().decode()
        families = list(text_string_to_metric_families(text))
        addresses = {each.labels.get("address", "") for family in families for each in family.samples}
    assert "coordinator_forged" not in {each.name for family in families for each in family.samples}
    assert {each for line in text.split("\n") for each in harmful(line)} == set()


@pytest.mark.parametrize(
    "command",
    [
        "address list",
        "address show hostile",
        "group list",
        "transaction list",
        "dead-letters list",
        "dead-letters show buried",
        "audit",
        "check",
    ],
)
def test_a_terminal_gets_no_control_character(told: dict[str, Told], service: Service, command: str) -> None:
    assert told
    done = _run(service, *command.split())
    assert done.splitlines()
    assert {each for line in done.split("\n") for each in harmful(line)} == set()


def test_a_history_forges_no_event(told: dict[str, Told], service: Service) -> None:
    for _, txn in told.values():
        done = _run(service, "transaction", "show", txn)
        assert {each for line in done.split("\n") for each in harmful(line)} == set()
        assert done.count(" declared ") == 1


def test_no_statement_and_no_file_comes_of_them(told: dict[str, Told], service: Service) -> None:
    with psycopg.connect(running_url(service.data_dir)) as store:
        assert store.execute("select count(*) from coordinator.op").fetchone() is not None
        names = [row[0] for row in store.execute("select name from coordinator.address").fetchall()]
    assert len(names) > len(told) / 2
    assert [each for each in names if harmful(each)] == []


def _run(service: Service, *arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments, "--database-url", running_url(service.data_dir)])
    assert done.exit_code != 2, done.stderr
    return done.stdout
