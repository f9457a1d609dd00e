"""nginx in front of a service, as ``docs/how-to/tls.md`` tells to set it up."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.fix_clients import REPOSITORY, alone
from tests.fix_service import PATIENCE
from tests.readme import blocks, section

_PAGE = REPOSITORY / "docs" / "how-to" / "tls.md"
_KEPT = REPOSITORY / "build" / "nginx"
#: What the page leaves to the file around it; nothing is written outside of the folder.
_AROUND = """\
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{server}}}
"""


@pytest.fixture(scope="session")
def nginx_program() -> str:
    """The system's nginx, or else that of its packages, unpacked: one that is installed serves port 80 at once."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    return found or str(_unpacked())


def _unpacked() -> Path:
    program = _KEPT / "usr" / "sbin" / "nginx"
    _KEPT.mkdir(parents=True, exist_ok=True)
    with alone(_KEPT):
        if not program.exists():
            try:
                subprocess.run(["apt-get", "download", "nginx"], cwd=_KEPT, capture_output=True, check=True)
                for package in _KEPT.glob("nginx_*.deb"):
                    subprocess.run(["dpkg-deb", "--extract", package, _KEPT], check=True)
                subprocess.run([program, "-v"], capture_output=True, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"nginx is needed (Debian: apt-get install nginx), and there is none: {error}")
    return program


class Nginx:
    """One that passes WebSockets on to ``to``. ``port``: where it listens, behind TLS; it stays over a restart."""

    def __init__(self, program: str, folder: Path, certificate: Path, key: Path, to: int, **others: str) -> None:
        """``others``: settings whose values are not those of the page."""
        self._command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        (server,) = (
            block.text for block in blocks(section("AMQP over WebSockets", _PAGE)) if block.language == "nginx"
        )
        replaced = {
            "listen 443 ssl": f"listen 127.0.0.1:{self.port} ssl",
            "server_name coordinator.example": "server_name 127.0.0.1",
            "/etc/nginx/coordinator.pem": str(certificate),
            "/etc/nginx/coordinator.key": str(key),
            "http://127.0.0.1:5673": f"http://127.0.0.1:{to}",
            **others,
        }
        for there, here in replaced.items():
            assert server.count(there) == 1, f"{_PAGE}: {there}"
            server = server.replace(there, here)
        (folder / "nginx.conf").write_text(_AROUND.format(folder=folder, server=server))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """And wait until it listens."""
        self._process = subprocess.Popen(self._command)
        deadline = time.monotonic() + PATIENCE
        while not self._listens():
            assert self._process.poll() is None, f"nginx ended with {self._process.returncode}"
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def _listens(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """At once: it cuts the connections that go through it."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=PATIENCE)

    def restart(self) -> None:
        self.stop()
        self.start()
