"""An authority, and certificates that it has signed, made with openssl in a folder of the test's own."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

#: a record of TLS that no key fits
NONSENSE = b"\x17\x03\x03\x00\x20" + bytes(32)


@dataclass(frozen=True)
class Authority:
    """``certificate``: its own."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.pem"

    def sign(self, name: str, subject: str = "/CN=localhost", *, alternative: str = "", days: str = "2") -> Path:
        """A certificate ``NAME.pem`` with its key ``NAME.key``. ``days``: from now, or ``expired``."""
        key, request, made = (self.folder / f"{name}.{end}" for end in ("key", "csr", "pem"))
        _openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", subject,
                 "-keyout", str(key), "-out", str(request))  # fmt: skip
        key.chmod(0o600)
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={alternative}\n" if alternative else "basicConstraints=CA:FALSE\n")
        times = ["-days", days] if days != "expired" else ["-days", "-1"]
        more = ["-CA", str(self.certificate), "-CAkey", str(self.folder / "ca.key"), "-CAcreateserial", *times]
        more += ["-extfile", str(extensions), "-out", str(made)]
        _openssl("x509", "-req", "-in", str(request), *more)
        return made


def key_of(certificate: Path) -> Path:
    return certificate.with_suffix(".key")


def authority(folder: Path) -> Authority:
    folder.mkdir(parents=True, exist_ok=True)
    _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-subj", "/CN=tests", "-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.pem"))  # fmt: skip
    return Authority(folder)


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("certificates"))
