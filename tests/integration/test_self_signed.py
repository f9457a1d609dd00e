"""The certificate that docs/how-to/tls.md makes is one that a service can be tried with (rule S2)."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from tests.fix_command import ROOT, Serve
from tests.readme import blocks
from tests.wire.peer import Peer


@pytest.mark.rule("S2")
def test_a_client_that_trusts_it_comes_in(serve: Serve, database_url: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "tls.md").read_text("utf-8")
    (made,) = [each.text for each in blocks(page) if "openssl req" in each.text]
    subprocess.run(["sh", "-ec", made], cwd=tmp_path, check=True, capture_output=True)
    folder = tmp_path / "tls"
    assert (folder / "server.key").stat().st_mode & 0o777 == 0o600
    given = {
        "COORDINATOR_DATABASE_URL": database_url,
        "COORDINATOR_TLS__CERTIFICATE": str(folder / "server.pem"),
        "COORDINATOR_TLS__KEY": str(folder / "server.key"),
    }
    service = serve("--listen", "amqps://127.0.0.1:0", **given)
    peer = Peer(service.listening()[1])
    peer.behind_tls(ssl.create_default_context(cafile=str(folder / "server.pem")))
    peer.open()
    peer.close()
