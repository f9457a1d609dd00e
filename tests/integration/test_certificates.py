"""Certificates that cannot be used are refused at the start, by name (rule S2)."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from coordinator.process.certificates import load
from coordinator.secret_file import FileInvalid
from coordinator.settings import TlsSettings
from tests.fix_certificates import Authority, authority, key_of
from tests.fix_command import Serve


@pytest.fixture
def good(ca: Authority, tmp_path: Path) -> TlsSettings:
    made = ca.sign("good", alternative="IP:127.0.0.1")
    for source, name in ((made, "server.pem"), (key_of(made), "server.key"), (ca.certificate, "ca.pem")):
        shutil.copy(source, tmp_path / name)
    (tmp_path / "server.key").chmod(0o640)
    return TlsSettings(certificate=tmp_path / "server.pem", key=tmp_path / "server.key", client_ca=tmp_path / "ca.pem")


@pytest.mark.rule("S2")
def test_what_can_be_used(good: TlsSettings) -> None:
    load(good)


@pytest.mark.rule("S2")
def test_nothing_is_negotiated_again_by_any_openssl(good: TlsSettings) -> None:
    """OpenSSL 3 refuses it by itself; 1.1.1, of which Python 3.11 may be built, only when it is told to."""
    assert load(good).options & ssl.OP_NO_RENEGOTIATION


@pytest.mark.rule("S2")
@pytest.mark.parametrize("name", ["certificate", "key", "client_ca"])
@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file or directory"), ("nonsense", "expected "), ("", "expected ")]
)
def test_files_that_are_not_there_or_nonsense(good: TlsSettings, name: str, content: str | None, said: str) -> None:
    file: Path = getattr(good, name)
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with pytest.raises(FileInvalid, match=rf"tls\.{name}: .*{file.name}.*{said}"):
        load(good)


@pytest.mark.rule("S2", "S8")
@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602])
def test_a_key_that_all_may_read(good: TlsSettings, mode: int) -> None:
    assert good.key is not None
    good.key.chmod(mode)
    with pytest.raises(FileInvalid, match=rf"tls.key: .*server.key: all users may .*mode {mode:o}"):
        load(good)


@pytest.mark.rule("S2")
def test_a_certificate_that_has_expired(good: TlsSettings, ca: Authority) -> None:
    made = ca.sign("old", days="expired")
    with pytest.raises(FileInvalid, match=r"tls.certificate: .*old.pem: it has expired"):
        load(good.model_copy(update={"certificate": made, "key": key_of(made)}))


@pytest.mark.rule("S2")
def test_the_key_of_another_certificate(good: TlsSettings, ca: Authority) -> None:
    other = ca.sign("other")
    with pytest.raises(FileInvalid, match=r"tls.key: .*other.key: it is not the key of the certificate"):
        load(good.model_copy(update={"key": key_of(other)}))


@pytest.mark.rule("S2")
def test_an_authority_of_ones_own(tmp_path: Path) -> None:
    """A certificate that signs itself is one as well."""
    own = authority(tmp_path / "own")
    (own.folder / "ca.key").chmod(0o600)
    load(TlsSettings(certificate=own.certificate, key=own.folder / "ca.key"))


@pytest.mark.rule("S2", "S8")
def test_a_key_with_a_passphrase(good: TlsSettings, tmp_path: Path) -> None:
    assert good.key is not None
    locked = tmp_path / "locked.key"
    command = ["openssl", "pkcs8", "-topk8", "-in", str(good.key), "-out", str(locked), "-passout", "pass:x"]
    subprocess.run(command, check=True)
    locked.chmod(0o600)
    with pytest.raises(FileInvalid, match="it has a passphrase"):
        load(good.model_copy(update={"key": locked}))


@pytest.mark.rule("S2")
def test_the_service_does_not_start(serve: Serve, tmp_path: Path) -> None:
    listen = ("--listen", "amqps://127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    for more, said in (
        ({}, "amqps, wss and https need tls.certificate and tls.key"),
        ({"COORDINATOR_TLS__CERTIFICATE": "/none.pem", "COORDINATOR_TLS__KEY": "/none.key"}, "/none.pem: No such file"),
    ):
        service = serve(*listen, **more)
        assert service.end(None) == 2
        assert said in service.values("cannot start", "reason")[0]
