"""Users of a service that runs, made without the command line, which takes a second."""

from __future__ import annotations

from coordinator.login import verifiers
from store import users
from store.database import connected
from store.embedded.running import running_url
from tests.fix_service import Service

#: what must be found nowhere
PASSWORD = "a5ecret,of=users"


def add_users(service: Service, *names: str, password: str = PASSWORD) -> None:
    with connected(running_url(service.data_dir)) as connection:
        for name in names:
            users.add(connection, name, verifiers.new(password))
