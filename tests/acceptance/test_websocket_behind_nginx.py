"""AMQP over WebSockets behind nginx, which has the certificate and is set up as docs/how-to/tls.md tells (rule S14)."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.clients import run_case
from tests.fix_certificates import Authority, key_of
from tests.fix_jms import Driver
from tests.fix_nginx import Nginx
from tests.fix_packages import Program
from tests.fix_service import PATIENCE, running
from tests.fix_users import PASSWORD, add_users
from tests.fix_websocket import WebSockets
from tests.wire.messages import data
from tests.wire.peer import Ended
from tests.wire.websocket import PATH, WebSocketPeer, request

pytestmark = [pytest.mark.night, pytest.mark.rule("S14")]

#: nginx cuts a connection on which nothing has come for so long; who asks for heartbeats has four meanwhile
_SILENCE = {"proxy_read_timeout 2m": "proxy_read_timeout 4s"}
_OFTEN_MS = 2000


@pytest.fixture(scope="module")
def service(ca: Authority) -> Iterator[WebSockets]:
    certificate = ca.sign("websocket-behind", alternative="IP:127.0.0.1")
    settings = {"tls.certificate": str(certificate), "tls.key": str(key_of(certificate)), "login.plain": "always"}
    with running(lambda folder: WebSockets(folder, settings)) as service:
        add_users(service, "alice")
        yield service


@pytest.fixture
def nginx(service: WebSockets, ca: Authority, nginx_program: Program, tmp_path: Path) -> Iterator[Nginx]:
    certificate = ca.sign("nginx", alternative="IP:127.0.0.1")
    nginx = Nginx(nginx_program, tmp_path, certificate, key_of(certificate), service.port, **_SILENCE)
    nginx.start()
    yield nginx
    nginx.stop()


def _connected(nginx: Nginx, ca: Authority) -> WebSocketPeer:
    peer = WebSocketPeer(nginx.port)
    peer.behind_tls(ssl.create_default_context(cafile=str(ca.certificate)))
    peer.begin_websocket(request(Host=f"127.0.0.1:{nginx.port}", Origin=f"https://127.0.0.1:{nginx.port}"))
    return peer


@pytest.mark.rule("P2", "T7")
def test_rhea_behind_nginx(nginx: Nginx, ca: Authority, rhea_project: Path) -> None:
    url = f"wss://127.0.0.1:{nginx.port}{PATH}"
    trusts = {"NODE_EXTRA_CA_CERTS": str(ca.certificate)}
    assert run_case("node", "driver.js", "commit", url, cwd=rhea_project, more=trusts)["after"] == ["m0", "m1", "m2"]
    seen = run_case("node", "driver.js", "large", url, cwd=rhea_project, more=trusts)
    assert seen == {"answered": "accepted", "equal": True}
    login = {"LOGIN_USER": "alice", "LOGIN_PASSWORD": PASSWORD, "LOGIN_MECHANISM": "PLAIN", **trusts}
    assert run_case("node", "driver.js", "login", url, cwd=rhea_project, more=login) == {"in": True}


@pytest.mark.rule("P2", "T7", "T9")
def test_qpid_jms_behind_nginx(nginx: Nginx, jms_classpath: str) -> None:
    """It sends an Origin: the host and port that it asked for."""
    url = f"amqpwss://127.0.0.1:{nginx.port}{PATH}?transport.trustAll=true&transport.verifyHost=false"
    driver = Driver(jms_classpath, "commit-and-rollback", url)
    try:
        seen = driver.line()
    finally:
        driver.end()
    assert seen["after_commit"] == ["committed0", "committed1", "committed2"]
    assert seen["after_rollback"] == ["next0", "end"]


@pytest.mark.rule("T7")
def test_rhea_comes_back_when_nginx_is_restarted(nginx: Nginx, ca: Authority, rhea_project: Path) -> None:
    url = f"wss://127.0.0.1:{nginx.port}{PATH}"
    with subprocess.Popen(
        ["node", "driver.js", "comes_back", url],
        cwd=rhea_project,
        env={**os.environ, "NODE_EXTRA_CA_CERTS": str(ca.certificate)},
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert json.loads(program.stdout.readline()) == {"step": "cut it"}
        nginx.restart()
        seen = json.loads(program.stdout.readline())
        assert program.wait(timeout=PATIENCE) == 0
    assert seen == {"committed": [["accepted", None]] * 2, "left": ["before", "after"]}


@pytest.mark.rule("P4")
def test_heartbeats_keep_a_connection_over_the_time_that_nginx_waits(nginx: Nginx, ca: Authority) -> None:
    """Beside two that are silent, one after the other: nginx cuts them."""
    peer = _connected(nginx, ca)
    peer.open(idle_time_out=_OFTEN_MS)
    control = peer.begin().control()
    for _ in range(2):
        silent = _connected(nginx, ca)
        silent.open()
        with pytest.raises(Ended):
            silent.read()
        silent.close_socket()
    sender = peer.begin().sender("beats")
    txn = control.declare()
    sender.post(data(b"there"), txn=txn)
    control.commit(txn)
    receiver = peer.begin().receiver("beats", credit=1)
    assert receiver.take().body == b"there"
    assert peer.close().error is None
    peer.close_socket()
