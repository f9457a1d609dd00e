"""With the server that comes along, too, the service serves by a role that owns nothing (rule S9)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors

from store.embedded.running import SERVES, running_url, serving
from tests.fix_service import Service, running_service
from tests.wire.frames import Accepted
from tests.wire.messages import data
from tests.wire.peer import Peer, Session

pytestmark = pytest.mark.rule("S9")

Store = psycopg.Connection[Any]

_OLD_DAYS = "array[to_regclass('coordinator.half_20240101'), to_regclass('coordinator.op_20240101')]"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Started on a store that has an old day: the first start of this version on it."""
    with running_service(constants={"coordinator.process.supervisor._MAINTENANCE_DELAY_SECONDS": 1.0}) as service:
        with psycopg.connect(running_url(service.data_dir)) as owner:
            owner.execute("select coordinator.make_day('2024-01-01')")
            owner.execute(f"drop owned by {SERVES}".encode())
            owner.execute(f"drop role {SERVES}".encode())
        service.kill()
        service.restart()
        yield service


@pytest.fixture
def store(service: Service) -> Iterator[Store]:
    """As the role of the service."""
    with psycopg.connect(serving(running_url(service.data_dir)), autocommit=True) as store:
        yield store


def _session(service: Service) -> Session:
    peer = Peer(service.port)
    peer.open()
    return peer.begin()


def test_all_that_serves_does_it_by_this_role(service: Service, store: Store) -> None:
    session = _session(service)
    assert session.sender("orders").outcome(data(b"x")) == Accepted()
    assert session.receiver("orders", credit=1).take().body == b"x"
    with psycopg.connect(running_url(service.data_dir)) as owner:
        names = "'^coordinator (batch|queries|heartbeat)'"
        serve = f"select distinct usename from pg_stat_activity where application_name ~ {names}"
        assert owner.execute(serve.encode()).fetchall() == [(SERVES,)]
    owned = "select relname from pg_class where pg_get_userbyid(relowner) = current_user"
    assert store.execute(owned).fetchall() == []
    assert store.execute("select rolsuper or rolcreaterole from pg_roles where rolname = current_user").fetchone() == (
        False,
    )


@pytest.mark.parametrize("table", ["half", "op"])
@pytest.mark.parametrize(
    "statement",
    [
        "update coordinator.{} set id = id",
        "delete from coordinator.{}",
        "truncate coordinator.{}",
        "drop table coordinator.{}",
        "alter table coordinator.{} disable trigger all",
    ],
)
def test_it_cannot_change_what_was_said_and_decided(store: Store, statement: str, table: str) -> None:
    with pytest.raises(errors.InsufficientPrivilege):
        store.execute(statement.format(table).encode())


def test_the_days_of_the_past_are_dropped_all_the_same(service: Service, store: Store) -> None:
    """Maintenance is the owner's."""
    service.wait_for(lambda line: line.get("event") == "old days dropped")
    assert store.execute(f"select {_OLD_DAYS}".encode()).fetchone() == ([None, None],)
