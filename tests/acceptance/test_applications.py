"""Applications reach the embedded server in SQL, by a port of the loopback, and reach nothing else there (rule S9)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from store.embedded.running import DATABASE, ROLE, SERVES
from tests.fix_command import Command
from tests.fix_service import Service, running
from tests.wire.peer import Peer

pytestmark = pytest.mark.rule("S9")

_PASSWORD = "shop-secret"


class _WithApplications(Service):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {})
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.sql_port = free.getsockname()[1]

    @property
    def listens(self) -> list[str]:
        return [*super().listens, f"postgresql://127.0.0.1:{self.sql_port}"]

    def connect(self, user: str, *, password: str = _PASSWORD, dbname: str = DATABASE) -> psycopg.Connection:
        """As an application does: from its own driver."""
        return psycopg.connect(
            host="127.0.0.1", port=self.sql_port, user=user, password=password, dbname=dbname, autocommit=True
        )

    def run_sql(self, statement: str) -> None:
        self.cli("sql", "--write", "--", "--no-psqlrc", "--command", statement)


@pytest.fixture(scope="module")
def service() -> Iterator[_WithApplications]:
    with running(_WithApplications) as service:
        for role in ("shop", "other"):
            service.run_sql(f"create role {role} login password '{_PASSWORD}'")
        service.run_sql("create schema shop authorization shop")
        service.run_sql(f"alter role {ROLE} password '{_PASSWORD}'; alter role {SERVES} password '{_PASSWORD}'")
        service.cli("role", "grant", "--application", "shop")
        service.cli("address", "add", "orders")
        yield service


def test_role_grant_says_whether_the_application_can_connect(service: _WithApplications, own_service: Service) -> None:
    assert service.command("role", "grant", "--application", "shop").stderr == ""
    own_service.cli("sql", "--write", "--", "--command", "create role shop login")
    granted = own_service.command("role", "grant", "--application", "shop")
    assert granted.stdout == "role shop may use the store as an application\n"
    assert granted.stderr.startswith("it cannot connect yet: the embedded server listens at no port")


def test_an_application_posts_with_its_rows(service: _WithApplications) -> None:
    with service.connect("shop") as shop:
        assert shop.info.host == "127.0.0.1"
        shop.execute("create table if not exists shop.sale (order_id int)")
        with shop.transaction():
            shop.execute("insert into shop.sale values (1)")
            shop.execute("select coordinator.post('orders', 'sold'::text)")
    peer = Peer(service.port)
    peer.open()
    assert peer.begin().receiver("orders", credit=1).take().message.body is not None


def test_it_does_so_after_a_kill(service: _WithApplications) -> None:
    service.kill()
    service.restart()
    with service.connect("shop") as shop:
        shop.execute("select coordinator.post('orders', 'sold'::text)")


@pytest.mark.parametrize(
    ("user", "password", "dbname", "says"),
    [
        pytest.param("shop", "wrong", DATABASE, "password authentication failed", id="wrong-password"),
        pytest.param("other", _PASSWORD, DATABASE, "no pg_hba.conf entry", id="no-application"),
        pytest.param("shop", _PASSWORD, "postgres", "no pg_hba.conf entry", id="other-database"),
        pytest.param(ROLE, _PASSWORD, DATABASE, "no pg_hba.conf entry", id="owner"),
        pytest.param(SERVES, _PASSWORD, DATABASE, "no pg_hba.conf entry", id="service"),
    ],
)
def test_nothing_else_comes_in(service: _WithApplications, user: str, password: str, dbname: str, says: str) -> None:
    with pytest.raises(psycopg.OperationalError, match=says):
        service.connect(user, password=password, dbname=dbname)


def test_its_password_is_kept_as_a_verifier(service: _WithApplications) -> None:
    found = service.cli(
        "sql", "--", "--no-psqlrc", "-At", "-c", "select rolpassword from pg_authid where rolname = 'shop'"
    )
    assert found.startswith("SCRAM-SHA-256$")


def test_the_port_is_the_loopback_s_alone(service: _WithApplications) -> None:
    for family, file in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        listening = [line.split()[1] for line in Path(f"/proc/net/{file}").read_text().splitlines() if " 0A " in line]
        own = [place for place in listening if place.endswith(f":{service.sql_port:04X}")]
        assert own == ([f"0100007F:{service.sql_port:04X}"] if family == socket.AF_INET else [])


def test_a_port_that_is_taken_is_said(open_folder: Path, command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"postgresql://127.0.0.1:{taken.getsockname()[1]}"
        folder = str(open_folder / "taken")
        done = command("serve", "--listen", "amqp://127.0.0.1:0", "--listen", place, "--data-dir", folder)
    assert done.returncode == 1
    assert f"the port for applications, {urlsplit(place).netloc}: Address already in use" in done.stderr
