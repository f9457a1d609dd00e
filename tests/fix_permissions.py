"""Sessions of users with the permissions that a test gives them."""

from __future__ import annotations

from itertools import count
from typing import Protocol

import pytest

from tests.fix_service import Service
from tests.fix_users import PASSWORD, Grant, add_user
from tests.fix_wire import Dial
from tests.wire.peer import Session
from tests.wire.sasl import Login, plain

_names = count()


class Enter(Protocol):
    def __call__(self, grants: list[Grant], user: str | None = None) -> Session:
        """Log in as a new user with these permissions, and begin a session. ``user``: its name, if not any."""


@pytest.fixture
def enter(dial: Dial, service: Service) -> Enter:
    def session(grants: list[Grant], user: str | None = None) -> Session:
        name = user or f"user {next(_names)}"
        add_user(service, name, grants)
        return enter_as(dial, name)

    return session


def enter_as(dial: Dial, name: str, *, container_id: str | None = None) -> Session:
    login = Login(dial())
    login.init("PLAIN", plain(name, PASSWORD))
    assert login.outcome().code == 0
    login.peer.open(container_id=container_id)
    return login.peer.begin()
