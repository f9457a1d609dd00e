"""The service that these tests run against: ``COORDINATOR_URL`` and ``COORDINATOR_DATABASE_URL`` name one, else one is
started. Of the service they use its command line alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from proton import Message
from proton._events import Event
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container, Transaction
from proton.utils import BlockingConnection


class Running(NamedTuple):
    """``url``: for AMQP; ``database``: of its store."""

    url: str
    database: str


@pytest.fixture(scope="session")
def running() -> Iterator[Running]:
    if "COORDINATOR_URL" in os.environ:
        yield Running(os.environ["COORDINATOR_URL"], os.environ["COORDINATOR_DATABASE_URL"])
        return
    # Started by root, PostgreSQL runs as another user, who must be able to reach the folder.
    home = Path(tempfile.mkdtemp(prefix="coordinator-client-"))
    home.chmod(0o755)
    data = home / "data"
    place = [*("--listen", "amqp://127.0.0.1:0"), "--data-dir", str(data), "--log-format", "json"]
    process = subprocess.Popen([sys.executable, "-m", "coordinator", "serve", *place], stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        said = [json.loads(line) for line in _until_it_listens(process.stderr)]
        yield Running(said[-1]["listen"][0], f"postgresql://coordinator@/coordinator?host={data}/run&port=5432")
    finally:
        process.terminate()
        process.communicate(timeout=60)
        shutil.rmtree(home, ignore_errors=True)


def _until_it_listens(log: Any) -> Iterator[bytes]:
    for line in log:
        yield line
        if b'"listening"' in line:
            return
    pytest.fail("the service ended before it listened")


@pytest.fixture
def application(running: Running) -> Iterator[psycopg.Connection[Any]]:
    """A connection of an application to the store."""
    with psycopg.connect(running.database) as connection:
        yield connection


@pytest.fixture
def address(running: Running) -> str:
    """A queue of the test's own; it is made by being named in a link."""
    name = f"queue-{uuid.uuid4().hex}"
    connection = BlockingConnection(running.url)
    connection.create_sender(name)
    connection.close()
    return name


@pytest.fixture
def stored(application: psycopg.Connection[Any]) -> Callable[[str], list[Message]]:
    """The messages of an address that the store has, in order."""

    def read(name: str) -> list[Message]:
        rows = application.execute(
            "select h.message from coordinator.half h join coordinator.address a on a.id = h.address_id "
            "where a.name = %s order by h.id",
            [name],
        ).fetchall()
        application.rollback()
        found = []
        for (octets,) in rows:
            found.append(Message())
            found[-1].decode(octets)
        return found

    return read


class _Leaving(MessagingHandler, TransactionHandler):
    """Posts a message in a checkable transaction, and goes without a discharge."""

    def __init__(self, url: str, address: str, group: str) -> None:
        super().__init__()
        self._url = url
        self._address = address
        self._group = group
        self._transaction: Transaction | None = None
        self._posted = False

    def on_start(self, event: Event) -> None:
        container: Any = event.container
        properties = {"coordinator:producer-group": self._group}
        self._connection = container.connect(self._url, reconnect=False, properties=properties)
        self._sender = container.create_sender(self._connection, self._address)
        container.declare_transaction(self._connection, handler=self)

    def on_transaction_declared(self, event: Event) -> None:
        self._transaction = event.transaction
        self.on_sendable(event)

    def on_sendable(self, event: Event) -> None:
        if self._transaction is not None and self._sender.credit and not self._posted:
            self._posted = True
            message = Message(id="order-1", durable=True, body="tea", properties={"check-immunity-ms": 0})
            self._transaction.send(self._sender, message)

    def on_settled(self, event: Event) -> None:
        if event.sender == self._sender:
            self._connection.close()

    @property
    def txn_id(self) -> bytes:
        assert self._transaction is not None
        declared: Any = self._transaction.id
        return bytes(declared)


#: By an address and a producer group: the txn-id of an undecided transaction that has posted one message.
Leave = Callable[[str, str], bytes]


@pytest.fixture
def leave(running: Running) -> Leave:
    def left(address: str, group: str) -> bytes:
        client = _Leaving(running.url, address, group)
        Container(client).run()
        return client.txn_id

    return left
