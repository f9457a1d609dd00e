"""``coordinator tls self-signed`` makes what a service can be tried with (rule S2)."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.fix_command import Command, Serve
from tests.wire.peer import Peer

pytestmark = pytest.mark.rule("S2")


def test_a_client_that_trusts_it_comes_in(command: Command, serve: Serve, database_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "tls"
    done = command("tls", "self-signed", str(folder), "--host", "localhost", "--host", "127.0.0.1", "--host", "::1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f'certificate = "{folder}/server.pem"\nkey = "{folder}/server.key"\n'
    assert (folder / "server.key").stat().st_mode & 0o777 == 0o600
    settings = tmp_path / "settings.toml"
    settings.write_text(f"[tls]\n{done.stdout}")
    url = {"COORDINATOR_DATABASE_URL": database_url}
    service = serve("--listen", "amqps://127.0.0.1:0", "--config", str(settings), **url)
    peer = Peer(service.listening()[1])
    peer.behind_tls(ssl.create_default_context(cafile=str(folder / "server.pem")))
    peer.open()
    peer.close()
    again = command("tls", "self-signed", str(folder))
    assert (again.returncode, again.stderr) == (1, f"error: {folder}/server.pem is there already\n")


@pytest.mark.rule("S7")
@pytest.mark.parametrize(
    "host", ["", "a,IP:10.0.0.1", "a/O=x", "a\nb", "-x", "a b", "*.org", "x" * 64, "fe80::1%a,DNS:b"]
)
def test_what_can_be_no_host(command: Command, tmp_path: Path, host: str) -> None:
    done = command("tls", "self-signed", str(tmp_path / "tls"), f"--host={host}")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --host: expected a name or an address")
    assert not (tmp_path / "tls").exists()


def test_a_folder_that_cannot_be_written(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = command("tls", "self-signed", str(tmp_path / "file"))
    assert done.returncode == 1
    assert str(tmp_path / "file") in done.stderr
