"""Where clients may come in without a login, and what is said of it at the start (rule S1)."""

from __future__ import annotations

import pytest

from coordinator.settings import endpoint
from store import users
from store.database import connected
from tests.fix_command import Serve, answers

HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"


@pytest.mark.rule("S1")
def test_an_address_that_others_can_reach_is_warned_of(serve: Serve, database_url: str) -> None:
    """Where clients may come in without a login, as that was asked for; else where none can log in."""
    listen = ("--database-url", database_url, "--listen", "amqp://0.0.0.0:0")
    opened = serve(*listen, COORDINATOR_LOGIN__ANONYMOUS="always")
    warning = opened.until("clients are not authenticated: every client that can connect may do everything")
    assert warning["level"] == "warning"
    warned = "no client can log in, as there is no user: coordinator user add"
    empty = serve(*listen)
    assert empty.until(warned)["level"] == "warning"
    with connected(database_url) as store:
        users.add(store, "alice", {})
    service = serve(*listen, "--listen", "amqp://127.0.0.1:0")
    places = [endpoint(place) for place in service.until("listening")["listen"]]
    assert warned not in [line["event"] for line in service.lines]
    assert answers(("127.0.0.1", places[0].port)) == SASL_HEADER  # part 2, section 2.2: what it takes there
    assert answers(("127.0.0.1", places[1].port)) == HEADER
