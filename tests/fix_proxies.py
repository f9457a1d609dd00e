"""HAProxy and PgBouncer, as ``docs/how-to/run-on-several-machines.md`` tells to set them up."""

from __future__ import annotations

from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from tests.fix_certificates import Authority, key_of
from tests.fix_clients import REPOSITORY
from tests.fix_nginx import of_the_page
from tests.fix_packages import Daemon, free_port, program
from tests.fix_service import Service
from tests.readme import blocks, section

_PAGE = REPOSITORY / "docs" / "how-to" / "run-on-several-machines.md"


def _block(title: str, begins: str) -> str:
    (found,) = (block.text for block in blocks(section(title, _PAGE)) if block.text.startswith(begins))
    return found


class Proxied(Service):
    """Behind TLS, as are its metrics: at ports that stay over a restart."""

    def __init__(self, folder: Path, ca: Authority, database_url: str) -> None:
        self.health_port = free_port()
        certificate = ca.sign("proxied", alternative="IP:127.0.0.1")
        settings = {
            "database_url": database_url,
            "login.anonymous": "always",
            "metrics.listen": f"https://127.0.0.1:{self.health_port}",
            "tls.certificate": str(certificate),
            "tls.key": str(key_of(certificate)),
        }
        super().__init__(folder, settings)


class HAProxy(Daemon):
    """One that spreads connections over two services."""

    def __init__(self, folder: Path, ca: Authority, one: Proxied, two: Proxied) -> None:
        libraries = ("liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")
        of = program("haproxy", "haproxy", *libraries)
        port = free_port()
        super().__init__(of, ["-f", str(folder / "haproxy.cfg")], port)
        replaced = {
            "bind :5671": f"bind 127.0.0.1:{port}",
            "/etc/haproxy/ca.pem": str(ca.certificate),
            "10.0.0.11:5671": f"127.0.0.1:{one.port} port {one.health_port}",
            "10.0.0.12:5671": f"127.0.0.1:{two.port} port {two.health_port}",
        }
        text = of_the_page(_block("A proxy in front", "# HAProxy\n"), replaced, _PAGE)
        (folder / "haproxy.cfg").write_text(text)


class PgBouncer(Daemon):
    """One before the server of ``database_url``, whose users need no password. ``url``: of the same database."""

    def __init__(self, folder: Path, database_url: str) -> None:
        of = program("pgbouncer", "pgbouncer")
        port = free_port()
        # as root it does not start
        super().__init__(of, [str(folder / "pgbouncer.ini")], port, user="nobody")
        server = conninfo_to_dict(database_url)
        user, name = server["user"], server["dbname"]
        replaced = {
            "coordinator = host=10.0.0.21": f"{name} = host={server['host']} port={server['port']}",
            "listen_port = 6432": f"listen_port = {port}",
            "auth_type = scram-sha-256": "auth_type = trust",
            "/etc/pgbouncer/userlist.txt": str(folder / "userlist.txt"),
        }
        (folder / "pgbouncer.ini").write_text(of_the_page(_block("PgBouncer", "[databases]\n"), replaced, _PAGE))
        (folder / "userlist.txt").write_text(f'"{user}" ""\n')
        for each in (folder, folder / "pgbouncer.ini", folder / "userlist.txt"):
            each.chmod(0o755)
        self.url = f"postgresql://{user}@127.0.0.1:{port}/{name}"
