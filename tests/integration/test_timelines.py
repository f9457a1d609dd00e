"""Where the functions that tell a server's timeline are kept from the service's role, it works and compares nothing."""

from __future__ import annotations

import secrets
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Connection

from store import roles
from store.database import connected
from store.libpq import Connection as Libpq
from tests.fix_loop import EpollLoop


class _Owner:
    is_connected = False

    def connected(self) -> None:
        self.is_connected = True

    def lost(self) -> None:
        pass

    def notified(self, channel: str, payload: str) -> None:
        pass


def _comes_up(url: str) -> bool:
    loop, owner = EpollLoop(), _Owner()
    connection = Libpq(loop, url, "test", "", owner)
    connection.start()
    loop.run_until(lambda: owner.is_connected)
    connection.close()
    loop.close()
    return owner.is_connected


@pytest.mark.rule("S9")
def test_a_server_that_does_not_say_is_worked_with(database: Connection, database_url: str) -> None:
    role = f"test_{secrets.token_hex(4)}"
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
        roles.grant(database, roles.SERVICE, role)
        owner.execute("revoke execute on function pg_control_system() from public")
        as_service = f"{database_url}{'&' if '?' in database_url else '?'}options=-c%20role%3D{role}"
        with connected(as_service) as connection:
            driver: Any = connection.connection.driver_connection
            assert driver.at is None
        assert _comes_up(as_service)
        owner.execute("grant execute on function pg_control_system() to public")
        with connected(as_service) as connection:
            driver = connection.connection.driver_connection
            assert driver.at.number >= 1
        owner.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))
