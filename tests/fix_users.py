"""Users of a service that runs, and what they may do, made without the command line, which takes a second."""

from __future__ import annotations

from collections.abc import Collection

from coordinator.login import verifiers
from store import permissions, users
from store.database import connected
from store.embedded.running import running_url
from store.permissions import Grantee, Verb
from store.tables import ANONYMOUS
from tests.fix_service import Service

#: what must be found nowhere
PASSWORD = "a5ecret,of=users"

#: A verb and a pattern.
Grant = tuple[Verb, str]
EVERYTHING: list[Grant] = [(verb, "*") for verb in Verb]


def add_users(service: Service, *names: str, password: str = PASSWORD) -> None:
    """They, and clients without a login, may do everything."""
    grant(service, EVERYTHING, role=ANONYMOUS)
    for name in names:
        add_user(service, name, EVERYTHING, password)


def add_user(service: Service, name: str, grants: Collection[Grant], password: str = PASSWORD) -> None:
    with connected(running_url(service.data_dir)) as connection:
        users.add(connection, name, verifiers.new(password))
    grant(service, grants, user=name)


def grant(service: Service, grants: Collection[Grant], *, user: str | None = None, role: str | None = None) -> None:
    with connected(running_url(service.data_dir)) as connection:
        for verb, pattern in grants:
            assert permissions.grant(connection, Grantee(user=user, role=role), [verb], pattern)


def revoke(service: Service, grants: Collection[Grant], *, user: str | None = None, role: str | None = None) -> None:
    with connected(running_url(service.data_dir)) as connection:
        for verb, pattern in grants:
            assert permissions.revoke(connection, Grantee(user=user, role=role), [verb], pattern) == 1
