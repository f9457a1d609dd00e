"""Clients that show no certificate which TLS trusts leave a trace in the audit (rules S2, S10)."""

from __future__ import annotations

import ssl
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_certificates import Authority, authority, key_of
from tests.fix_service import PATIENCE, Service, running_service
from tests.wire.peer import Ended, Peer

_FAILED = "select client_user, place, detail->>'why', times from coordinator.audit where action = 'login-failed'"


@pytest.mark.rule("S2", "S10")
def test_why_a_certificate_was_not_trusted_is_in_the_audit(ca: Authority, tmp_path: Path) -> None:
    server, good = ca.sign("server", alternative="IP:127.0.0.1"), ca.sign("good", "/CN=alice")
    shown = {
        "certificate has expired": ca.sign("old", "/CN=alice", days="expired"),
        "unable to get local issuer certificate": authority(tmp_path / "other").sign("other", "/CN=alice"),
        "peer did not return a certificate": None,
    }
    settings = {"tls.certificate": str(server), "tls.key": str(key_of(server)), "tls.client_ca": str(ca.certificate)}
    with running_service({**settings, "tls.client_certificates": "required"}) as service:
        for certificate in shown.values():
            with pytest.raises((Ended, ssl.SSLError, OSError)):
                _come_in(service, ca, certificate)
        broken = Peer(service.port)
        broken.send_octets(b"GET / HTTP/1.1\r\n\r\n")
        service.wait_for(lambda line: line.get("why") == "TLS: http request")
        broken.close_socket()
        _come_in(service, ca, good)
        said = [line["why"] for line in service.log_lines() if line.get("event") == "connection failed"]
        assert said[:3] == [f"TLS: {why}" for why in shown]
        assert _told(service, 3) == {(None, "127.0.0.1", why): 1 for why in shown}


def _come_in(service: Service, ca: Authority, certificate: Path | None) -> None:
    context = ssl.create_default_context(cafile=str(ca.certificate))
    if certificate is not None:
        context.load_cert_chain(certificate, key_of(certificate))
    peer = Peer(service.port)
    try:
        peer.behind_tls(context)
        peer.open()
    finally:
        peer.close_socket()


def _told(service: Service, times: int) -> Counter[tuple[object, ...]]:
    """Rows are written a second after the first failure, and those that come later after a minute."""
    deadline = time.monotonic() + PATIENCE
    with psycopg.connect(running_url(service.data_dir), autocommit=True) as store:
        while True:
            told: Counter[tuple[object, ...]] = Counter()
            for *key, count in store.execute(_FAILED).fetchall():
                told[tuple(key)] += count
            if told.total() >= times or time.monotonic() > deadline:
                return told
            time.sleep(0.1)
