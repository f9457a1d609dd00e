"""Two servers in the URL: a service is with one of them as a whole, and with none that was left behind (T11)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from store.tables import SCHEMA
from tests.acceptance.engine_client import Client
from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_standby import TwoServers

pytestmark = pytest.mark.rule("T11")

#: Sessions that the service keeps: four of each worker, and the watch's.
_KEPT = "application_name ~ '^coordinator (batch|queries|decisions|heartbeat|watch)'"


def _ask(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall()


def _sessions(url: str) -> int:
    return int(_ask(url, f"select count(*) from pg_stat_activity where {_KEPT}")[0][0])


def _end_sessions(url: str, which: str = _KEPT) -> None:
    assert _ask(url, f"select pg_terminate_backend(pid) from pg_stat_activity where {which}")


def _await(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def _committed(service: Service, container: str) -> bytes:
    """The id of a transaction whose commit was answered; asked for until the store is there."""
    client = Client(service.port, container, producer_group="g")
    sender = client.sender("orders")
    answer = None
    while answer is None or not answer.accepted:
        txn_id = client.declare()
        client.post(sender, "x", txn=txn_id)
        answer = client.discharge(txn_id, fail=False)
    client.close()
    return txn_id


def _again(service: Service, txn_id: bytes) -> bool:
    """Whether a commit that is asked for again is answered as one."""
    client = Client(service.port, "again", producer_group="g")
    accepted = client.discharge(txn_id, fail=False).accepted
    client.close()
    return accepted


def _decided(url: str, txn_id: bytes) -> list[tuple[Any, ...]]:
    return _ask(url, f"select decision from {SCHEMA}.op where id = '{txn_id.hex()}'")


def _whys(service: Service, since: int) -> list[str]:
    return [str(line["why"]) for line in service.log_lines(since) if line.get("event") == "database away"]


def _leave_alone(url: str, which: str, *, until: Callable[[], bool]) -> None:
    """Connections of that name are ended, and none is taken ``until`` this is so."""
    with psycopg.connect(url.replace("/coordinator?", "/postgres?"), autocommit=True) as connection:
        connection.execute("alter database coordinator allow_connections false")
        _end_sessions(connection.info.dsn, f"application_name ~ '^coordinator {which}'")
        _await(until)
        connection.execute("alter database coordinator allow_connections true")


def test_an_old_primary_that_comes_back_is_asked_nothing(two_servers: TwoServers) -> None:
    """It is the first of the URL's hosts, and takes what is written to it."""
    with running_service({"database_url": two_servers.url}) as service:
        _committed(service, "before")
        two_servers.kill_first()
        two_servers.promote()
        txn_id = _committed(service, "after")
        _await(lambda: _sessions(two_servers.second_url) == 5)
        two_servers.first.start()
        since = len(service.log_lines())
        _leave_alone(
            two_servers.second_url,
            "decisions",
            until=lambda: any("old primary" in each for each in _whys(service, since)),
        )
        assert _again(service, txn_id)
        (why,) = {each for each in _whys(service, since) if "old primary" in each}
        assert why.endswith("is an old primary, on timeline 1, and another server was seen on 2: stop it")
        _end_sessions(two_servers.second_url)
        _await(lambda: _sessions(two_servers.second_url) == 5)
        assert _again(service, txn_id)
        assert (_decided(two_servers.first_url, txn_id), _decided(two_servers.second_url, txn_id)) == (
            [],
            [("commit",)],
        )
        assert _sessions(two_servers.first_url) == 0
        assert not [line for line in service.log_lines() if line.get("event") == "worker ended"]


def test_a_primary_that_is_cut_off_is_left_by_all_workers(two_servers: TwoServers) -> None:
    """One connection finds out, and the others would never ask."""
    with running_service({"database_url": two_servers.url, "workers": "2"}) as service:
        _committed(service, "before")
        _await(lambda: _sessions(two_servers.first_url) == 9)
        two_servers.promote()
        maintenance = two_servers.first_url.replace("/coordinator?", "/postgres?")
        with psycopg.connect(maintenance, autocommit=True) as connection:
            connection.execute("alter database coordinator allow_connections false")
        _end_sessions(maintenance, "application_name = 'coordinator batch 1'")
        _await(lambda: _sessions(two_servers.second_url) == 9)
        assert _sessions(maintenance) == 0
        txn_id = _committed(service, "after")
        assert _decided(two_servers.second_url, txn_id) == [("commit",)]
        assert "another server has taken over, on timeline 2" in _whys(service, 0)
        assert not [line for line in service.log_lines() if line.get("event") == "worker ended"]
