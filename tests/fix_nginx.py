"""nginx in front of a service, as ``docs/how-to/tls.md`` tells to set it up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fix_clients import REPOSITORY
from tests.fix_packages import Daemon, Program, free_port, program
from tests.readme import blocks, section

_PAGE = REPOSITORY / "docs" / "how-to" / "tls.md"
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
def nginx_program() -> Program:
    return program("nginx", "nginx")


class Nginx(Daemon):
    """One that passes WebSockets on to ``to``. ``port``: where it listens, behind TLS."""

    def __init__(self, of: Program, folder: Path, certificate: Path, key: Path, to: int, **others: str) -> None:
        """``others``: settings whose values are not those of the page."""
        port = free_port()
        arguments = ["-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
        super().__init__(of, arguments, port)
        (server,) = (
            block.text for block in blocks(section("AMQP over WebSockets", _PAGE)) if block.language == "nginx"
        )
        replaced = {
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "server_name coordinator.example": "server_name 127.0.0.1",
            "/etc/nginx/coordinator.pem": str(certificate),
            "/etc/nginx/coordinator.key": str(key),
            "http://127.0.0.1:5673": f"http://127.0.0.1:{to}",
            **others,
        }
        (folder / "nginx.conf").write_text(_AROUND.format(folder=folder, server=of_the_page(server, replaced, _PAGE)))


def of_the_page(text: str, replaced: dict[str, str], page: Path) -> str:
    """What a page tells to write, with places of this machine in it; each of those that are replaced is there once."""
    for there, here in replaced.items():
        assert text.count(there) == 1, f"{page}: {there}"
        text = text.replace(there, here)
    return text
