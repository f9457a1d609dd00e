"""A store is migrated while a service of the version before works on it: nothing acknowledged is lost (rule F6)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from coordinator.commands.migrate import migrate
from store.ids import HalfIds
from tests.committing import Committing
from tests.fix_later_version import LATER, later_constants
from tests.fix_night import by_night
from tests.fix_service import Service, running, running_service
from tests.wire.frames import Accepted
from tests.wire.messages import data
from tests.wire.peer import Peer

pytestmark = pytest.mark.rule("F6")

#: It writes each row anew, under a lock that neither writers nor readers get past.
_REWRITES = f"""
from alembic import op
revision, down_revision = "{LATER}", "0.1"
def upgrade():
    op.execute("alter table coordinator.half add column later timestamptz not null default clock_timestamp()")
"""
#: Messages of today that were consumed.
_CONSUMED = """
    insert into coordinator.half (id, address_id, message)
    select %(id)s + number, (select id from coordinator.address where name = 'many'), 'x'
      from generate_series(1, %(rows)s) number"""


@pytest.fixture
def old(database_url: str) -> Iterator[Service]:
    with running_service({"database_url": database_url}) as service:
        for name in ("many", "live"):
            service.cli("address", "add", name)
        yield service


class _Poster(threading.Thread):
    """A client that posts numbers, one after the other; ``acknowledged``: so many are."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._peer = Peer(port)
        self._peer.open()
        self._sender = self._peer.begin().sender("live")
        self._ending = threading.Event()
        self._news = threading.Condition()
        self.acknowledged = 0

    def run(self) -> None:
        while not self._ending.is_set():
            if self._sender.outcome(data(b"%d" % self.acknowledged)) != Accepted():
                return
            with self._news:
                self.acknowledged += 1
                self._news.notify_all()

    def goes_on(self) -> None:
        """Wait until some more are acknowledged."""
        with self._news:
            wanted = self.acknowledged + 20
            assert self._news.wait_for(lambda: self.acknowledged >= wanted, timeout=300)

    def end(self) -> None:
        self._ending.set()
        self.join()
        self._peer.close()


@pytest.mark.parametrize("rows", [1_000, by_night(1_000_000)])
def test_an_old_service_works_through_the_step(
    old: Service, database_url: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(database_url) as store:
        store.execute(_CONSUMED, {"rows": rows, "id": HalfIds(1).next()})
    peer = Peer(old.port)
    peer.open()
    session = peer.begin()
    control = session.control()
    opened = control.declare()
    session.sender("live").post(data(b"in a transaction"), txn=opened)
    poster = _Poster(old.port)
    poster.start()
    poster.goes_on()

    constants = later_constants(tmp_path, _REWRITES)
    for name, value in constants.items():
        monkeypatch.setattr(name, value)
    migrate(database_url=database_url)

    poster.goes_on()
    control.commit(opened)
    poster.end()
    old.stop()
    for arguments in (["check"], ["serve", "--listen", "amqp://127.0.0.1:0"]):
        refused = old.command(*arguments)
        assert refused.returncode == 2
        assert f"database schema is at {LATER}, which this version does not know" in refused.stderr

    new = Service(tmp_path, {"database_url": database_url}, constants)
    try:
        new.start()
        wanted = [*(b"%d" % number for number in range(poster.acknowledged)), b"in a transaction"]
        after = Peer(new.port)
        after.open()
        found = [each.body for each in after.begin().receiver("live").take_many(len(wanted))]
        assert sorted(found) == sorted(wanted)
    finally:
        new.discard()
    with psycopg.connect(database_url) as store:
        many = "select count(later) from coordinator.half h join coordinator.address a on a.id = address_id"
        assert store.execute(f"{many} where name = 'many'".encode()).fetchone() == (rows,)


def test_services_are_replaced_one_after_the_other(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is at one that ends goes to the other, and sees no more than that."""
    given = {"database_url": database_url}

    def made(folder: Path) -> Service:
        return Service(folder, given)

    with running(made) as one, running(made) as two, ExitStack() as later:
        ports = [one.port, two.port]
        clients = [Committing("orders", ports), Committing("bills", ports[::-1])]
        for client in clients:
            later.callback(client.end)
            client.goes_on()
        constants = later_constants(tmp_path)
        for name, value in constants.items():
            monkeypatch.setattr(name, value)
        migrate(database_url=database_url)
        for old in (one, two):
            for client in clients:
                client.goes_on()
            old.stop()
            new = Service(tmp_path, given, constants)
            new.port = old.port
            later.callback(new.discard)
            new.start()
        for client in clients:
            client.goes_on()
            client.end()
            client.check(one.port)
        assert [each.connections for each in clients] == [3, 2]
