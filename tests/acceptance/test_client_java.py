"""The tests of the client library for Java (clients/java) run against a service of ours."""

from __future__ import annotations

from contextlib import closing

import pytest

from store.embedded.running import ROLE, running_url
from tests.fix_clients import maven
from tests.fix_night import by_night
from tests.fix_proxy import Proxy
from tests.fix_service import REPOSITORY, Service


@pytest.mark.rule("X2", "X4", "H8")
@pytest.mark.parametrize("tests", ["SqlTest", by_night("CheckerTest")])
def test_the_client_library_for_java(service: Service, tests: str) -> None:
    with closing(Proxy(running_url(service.data_dir))) as proxy:  # the driver of Java knows no unix sockets
        store = f"jdbc:postgresql://{proxy.url.rpartition('@')[2]}&user={ROLE}"
        place = [f"-Dcoordinator.url={service.url}", f"-Dcoordinator.jdbc={store}"]
        done = maven(REPOSITORY / "clients" / "java", "test", f"-Dtest={tests}", *place)
    assert done.returncode == 0, done.stdout + done.stderr
