"""Clients by others over WebSockets (rule S14)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.clients import run_case
from tests.fix_certificates import Authority, key_of
from tests.fix_jms import Jms
from tests.fix_service import PATIENCE, REPOSITORY, Service, running
from tests.fix_users import PASSWORD, add_users
from tests.fix_websocket import WebSockets
from tests.readme import blocks, section
from tests.wire.websocket import PATH


class _ForJms(WebSockets):
    """Qpid JMS has schemes of its own for them."""

    @property
    def url(self) -> str:
        return f"amqpws://127.0.0.1:{self.port}{PATH}"


@pytest.fixture(scope="module")
def service(rules: None, ca: Authority) -> Iterator[_ForJms]:
    certificate = ca.sign("websocket-clients", alternative="IP:127.0.0.1")
    settings = {"tls.certificate": str(certificate), "tls.key": str(key_of(certificate)), "login.plain": "always"}
    with running(lambda folder: _ForJms(folder, settings)) as service:
        add_users(service, "alice", "shop")
        yield service


@pytest.mark.rule("S14", "P2", "T7")
@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_rhea_over_websockets(service: _ForJms, ca: Authority, rhea_project: Path, scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:{service.ports[scheme == 'wss']}{PATH}"
    trusts = {"NODE_EXTRA_CA_CERTS": str(ca.certificate)}

    seen = run_case("node", "driver.js", "commit", url, cwd=rhea_project, more=trusts)
    assert seen["after"] == ["m0", "m1", "m2"]
    seen = run_case("node", "driver.js", "large", url, cwd=rhea_project, more=trusts)
    assert seen == {"answered": "accepted", "equal": True}
    login = {"LOGIN_USER": "alice", "LOGIN_PASSWORD": PASSWORD, "LOGIN_MECHANISM": "PLAIN", **trusts}
    assert run_case("node", "driver.js", "login", url, cwd=rhea_project, more=login) == {"in": True}
    wrong = {**login, "LOGIN_PASSWORD": "wr0ng"}
    assert "Failed to auth" in run_case("node", "driver.js", "login", url, cwd=rhea_project, more=wrong)["refused"]


@pytest.mark.rule("S14", "P2", "T7", "T9")
def test_qpid_jms_over_websockets(service: _ForJms, jms: Jms) -> None:
    seen = jms("commit-and-rollback", service).line()
    assert seen["after_commit"] == ["committed0", "committed1", "committed2"]
    assert seen["after_rollback"] == ["next0", "end"]
    seen = jms("large", service).line()
    assert seen["received"] == [seen["sent"]] * 2


def _of_the_page(language: str, there: str, here: str) -> str:
    """The program in ``language`` of ``docs/how-to/tls.md``, at this service."""
    page = section("AMQP over WebSockets", REPOSITORY / "docs" / "how-to" / "tls.md")
    (program,) = (block.text for block in blocks(page) if block.language == language)
    assert program.count(there) == 1
    return program.replace(there, here)


def _ready(service: Service) -> int:
    """Messages at ``orders``."""
    listed = service.cli("address", "list").splitlines()
    return sum(int(line.split()[6]) for line in listed if line.startswith("orders "))


@pytest.mark.rule("S1", "S14")
def test_the_program_of_the_page_in_javascript(service: _ForJms, ca: Authority, rhea_project: Path) -> None:
    before = _ready(service)
    url = f"wss://127.0.0.1:{service.ports[1]}{PATH}"
    program = _of_the_page("js", "wss://coordinator.example/amqp", url)
    environment = {**os.environ, "PASSWORD": PASSWORD, "NODE_EXTRA_CA_CERTS": str(ca.certificate)}
    subprocess.run(["node", "-e", program], cwd=rhea_project, env=environment, check=True, timeout=PATIENCE)
    assert _ready(service) == before + 1


@pytest.mark.night
@pytest.mark.rule("S1", "S14", "T7")
def test_the_program_of_the_page_in_java(service: _ForJms, jms_classpath: str, tmp_path: Path) -> None:
    before = _ready(service)
    url = f"amqpwss://127.0.0.1:{service.ports[1]}{PATH}?transport.trustAll=true&transport.verifyHost=false"
    source = tmp_path / "OverWebSockets.java"
    source.write_text(_of_the_page("java", "amqpwss://coordinator.example:443/amqp", url))
    environment = {**os.environ, "PASSWORD": PASSWORD}
    subprocess.run(["java", "-cp", jms_classpath, source], env=environment, check=True, timeout=PATIENCE)
    assert _ready(service) == before + 1
