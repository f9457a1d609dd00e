"""An application with SQL transactions of its own on the PostgreSQL of the store (X2, X3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_service import Service

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
