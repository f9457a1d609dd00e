"""The service as a role of the database that owns nothing (rule S9): it does all that it does as the owner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import psycopg
import pytest

from coordinator.commands.maintenance import maintain
from coordinator.settings import Settings
from store import roles
from store.database import connected
from store.embedded.server import EmbeddedServer
from tests.fix_command import Command
from tests.fix_postgres import log_in
from tests.fix_service import Service, running_service
from tests.wire.checkable import accept, in_group
from tests.wire.frames import Accepted, Rejected
from tests.wire.peer import Peer, Session
from tests.wire.queues import dead_letters, post

pytestmark = pytest.mark.rule("S9")

#: long past what is kept
_OLD_DAY = "select coordinator.make_day((now() at time zone 'utc' - interval '60 days')::date)"


@dataclass(frozen=True)
class Store:
    """Its owner's URL, and that of the service's role."""

    owner: str
    service: str


@pytest.fixture
def store(own_server: tuple[EmbeddedServer, str]) -> Store:
    url = own_server[1]
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("create role serves login")
        owner.execute("create role reads login")
        log_in(owner, "serves,reads", "trust")
        owner.execute(_OLD_DAY)
    with connected(url) as connection:
        roles.grant(connection, roles.SERVICE, "serves")
        roles.grant(connection, roles.READER, "reads")
    return Store(url, url.replace(f"//{urlsplit(url).username}@", "//serves@"))


@pytest.fixture
def service(store: Store) -> Iterator[Service]:
    with running_service({"database_url": store.service, "workers": "2"}) as service:
        yield service


def _session(service: Service) -> Session:
    peer = Peer(service.port)
    peer.open()
    return peer.begin()


def test_messages_transactions_retries_and_administration(service: Service, store: Store, command: Command) -> None:
    session = _session(service)
    big = bytes(3 << 20)
    post(session, "orders", b"1", big)
    control, consumer = session.control(), session.receiver("orders", credit=10)
    txn = control.declare()
    for expected in (b"1", big):
        delivery = consumer.take()
        assert delivery.body == expected
        delivery.retire(txn, Accepted())
    control.commit(txn)
    checkable, sender = in_group(session), session.sender("orders")
    txn = checkable.declare()
    accept(sender, b"2", txn)
    checkable.commit(txn)
    delivery = consumer.take()
    assert delivery.body == b"2"
    delivery.disposition(Rejected(), settled=True)
    assert dead_letters(session, "orders").take().body == b"2"
    for arguments in (
        ("address", "set", "orders", "--max-attempts", "3"),
        ("address", "purge", "orders"),
        ("group", "seek", "orders", "--back-to", "2026-01-01T00:00Z"),
        ("user", "add", "alice", "--without-password"),
        ("permission", "grant", "all", "*", "--role", "anonymous"),
        ("address", "remove", "orders", "--force"),
    ):
        assert service.command(*arguments).returncode in (0, 1), arguments
    post(session, "by-hand", b"1")
    with psycopg.connect(store.owner) as owner:
        found = owner.execute("select max(id) from coordinator.half").fetchone()
        assert found is not None
    for more in (
        ("group", "pause", "by-hand"),
        ("schedule", "list"),
        ("message", "retire", str(found[0]), "by-hand", "--accepted", "--reason", "r"),
        ("group", "resume", "by-hand"),
    ):
        told = service.command(*more)
        assert told.returncode == 0, told.stderr
    refused = [line for line in service.log_lines() if "permission denied" in str(line)]
    assert refused == []
    done = command("audit", "--format", "json", COORDINATOR_DATABASE_URL=store.service)
    assert len(done.stdout.splitlines()) >= 5, done.stderr


def test_a_killed_worker_is_given_up_by_the_role_of_the_service(service: Service) -> None:
    session = _session(service)
    post(session, "orders", b"1")
    consumer = session.receiver("orders", credit=1)
    assert consumer.take().body == b"1"
    service.kill()
    service.restart()
    assert _session(service).receiver("orders", credit=1).take().body == b"1"


def test_old_days_are_the_owners_to_drop(store: Store, command: Command) -> None:
    """Maintenance by the role of the service leaves them, and coordinator maintain drops them."""

    def there() -> list[bool]:
        with psycopg.connect(store.owner) as owner:
            day = "to_char(now() at time zone 'utc' - interval '60 days', 'YYYYMMDD')"
            names = f"unnest(array['half_', 'op_']) t(name), to_regclass('coordinator.' || t.name || {day}) as found"
            return [each for (each,) in owner.execute(f"select found is not null from {names}")]

    assert maintain(Settings(), store.service) == 0
    assert there() == [True, True]
    refused = command("maintain", COORDINATOR_DATABASE_URL=store.service)
    assert refused.returncode == 1
    assert "does not own the store" in refused.stderr
    assert there() == [True, True]
    done = command("maintain", COORDINATOR_DATABASE_URL=store.owner)
    assert (done.returncode, there()) == (0, [False, False]), done.stderr
