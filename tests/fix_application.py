"""An application with SQL transactions of its own on the PostgreSQL of the store (X2, X3)."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_service import PATIENCE, Service
from tests.wire.peer import Session
from tests.wire.queues import post as post_over_the_wire

#: What ``psycopg.connect`` gives.
Application = psycopg.Connection[tuple[Any, ...]]


def post(application: Application, address: object, body: object, **terms: object) -> None:
    """``select coordinator.post``; ``terms`` by their names."""
    named = "".join(f", {name} => %({name})s" for name in terms)
    application.execute(f"select coordinator.post(%(at)s, %(body)s{named})", {"at": address, "body": body, **terms})


def stored(application: Application) -> list[bytes]:
    """The messages in the store, in order."""
    rows = application.execute("select message from coordinator.half order by id").fetchall()
    application.commit()
    return [row[0] for row in rows]


@pytest.fixture
def application(database_url: str) -> Iterator[Application]:
    """On a store without a service."""
    connection: Application = psycopg.connect(database_url)
    yield connection
    connection.close()


@pytest.fixture
def beside(service: Service) -> Iterator[Application]:
    """On the store of the module's service."""
    connection: Application = psycopg.connect(running_url(service.data_dir))
    yield connection
    connection.close()


#: An advisory lock: the commit of an application waits for it.
TURN = 4711

#: At the commit each of the tables sets off the next, and the third waits: by then the transaction is decided.
CHAIN = f"""
create table if not exists first (n int);
create table if not exists second (n int);
create table if not exists third (n int);
create or replace function set_off() returns trigger language plpgsql as $$
begin
  case tg_table_name
    when 'first' then insert into second values (1);
    when 'second' then insert into third values (1);
    else perform pg_advisory_xact_lock({TURN});
  end case;
  return null;
end $$;
create constraint trigger chain after insert on first deferrable initially deferred
  for each row execute function set_off();
create constraint trigger chain after insert on second deferrable initially deferred
  for each row execute function set_off();
create constraint trigger chain after insert on third deferrable initially deferred
  for each row execute function set_off();
"""


def _wait_until_it_waits(beside: Application) -> None:
    """The commit of the application."""
    deadline = time.monotonic() + PATIENCE
    while not beside.execute(b"select 1 from pg_locks where not granted and locktype = 'advisory'").fetchone():
        beside.rollback()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    beside.rollback()


@contextmanager
def committing(service: Service, beside: Application, txn: bytes) -> Iterator[list[str | None]]:
    """Inside the block, the commit of an application has decided ``txn``, and is not over; then it goes on. The
    SQLSTATE that it ends with; None: it is committed.
    """
    ended: list[str | None] = []

    def work() -> None:
        with psycopg.connect(running_url(service.data_dir)) as own:
            own.execute("insert into first values (1)")
            own.execute("select coordinator.discharge(%s)", [uuid.UUID(bytes=txn)])
            try:
                own.commit()
                ended.append(None)
            except psycopg.Error as error:
                ended.append(error.sqlstate)

    beside.execute("select pg_advisory_lock(%s)", [TURN])
    beside.commit()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        _wait_until_it_waits(beside)
        yield ended
    finally:
        beside.execute("select pg_advisory_unlock(%s)", [TURN])
        beside.commit()
        thread.join()


@pytest.fixture
def chain(beside: Application) -> None:
    """The tables of the application."""
    beside.execute("drop table if exists first, second, third")
    beside.execute(CHAIN.encode())
    beside.commit()


def neighbour_goes_on(session: Session, address: str) -> None:
    """One at another queue posts and consumes."""
    post_over_the_wire(session, f"{address}-neighbour", b"neighbour")
    assert session.receiver(f"{address}-neighbour").bodies() == [b"neighbour"]
