"""Clients by others behind TLS, with a password and with a certificate (rules S1, S2)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.clients import run_case
from tests.fix_certificates import Authority, authority, key_of
from tests.fix_jms import Jms
from tests.fix_service import PATIENCE, REPOSITORY, Service, running_service
from tests.fix_users import PASSWORD, add_users
from tests.readme import blocks

#: What a client saw of a login with this environment.
LogIn = Callable[[dict[str, str]], dict[str, Any]]


@pytest.fixture(scope="module")
def service(ca: Authority) -> Iterator[Service]:
    # Proton looks for an address in the common name alone
    server = ca.sign("server", "/CN=127.0.0.1", alternative="IP:127.0.0.1")
    settings = {"tls.certificate": str(server), "tls.key": str(key_of(server)), "tls.client_ca": str(ca.certificate)}
    with running_service({**settings, "login.anonymous": "never"}) as service:
        add_users(service, "alice", "shipping")
        yield service


def _only_those_it_trusts(ca: Authority, log_in: LogIn, tmp_path: Path, *mechanisms: str) -> None:
    known, unknown = ca.sign("alice", "/CN=alice"), ca.sign("mallory", "/CN=mallory")
    environment = {"LOGIN_CA": str(ca.certificate), "LOGIN_USER": "alice", "LOGIN_PASSWORD": PASSWORD}
    for mechanism in mechanisms:
        assert log_in({**environment, "LOGIN_MECHANISM": mechanism}) == {"in": True}
        refused = log_in({**environment, "LOGIN_MECHANISM": mechanism, "LOGIN_PASSWORD": "wr0ng"})
        assert "refused" in refused
    by_certificate = {**environment, "LOGIN_MECHANISM": "EXTERNAL", "LOGIN_USER": ""}
    shown = {"LOGIN_CERTIFICATE": str(known), "LOGIN_KEY": str(key_of(known))}
    assert log_in({**by_certificate, **shown}) == {"in": True}
    shown = {"LOGIN_CERTIFICATE": str(unknown), "LOGIN_KEY": str(key_of(unknown))}
    assert "refused" in log_in({**by_certificate, **shown})
    stranger = authority(tmp_path / "stranger").certificate
    assert "refused" in log_in({**environment, "LOGIN_MECHANISM": "PLAIN", "LOGIN_CA": str(stranger)})


def _by_program(program: Path, service: Service) -> LogIn:
    return lambda environment: run_case(program, "login", service.url, more=environment)


@pytest.mark.rule("S1", "S2")
def test_proton_python_behind_tls(service: Service, ca: Authority, tmp_path: Path) -> None:
    def log_in(environment: dict[str, str]) -> dict[str, Any]:
        return run_case(sys.executable, "-m", "tests.acceptance.proton_login", service.url, more=environment)

    _only_those_it_trusts(ca, log_in, tmp_path, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.mark.rule("S1", "S2")
def test_the_program_of_the_page(service: Service, ca: Authority) -> None:
    """Of ``docs/how-to/users.md``."""
    page = (REPOSITORY / "docs/how-to/users.md").read_text("utf-8")
    (program,) = (block.text for block in blocks(page) if block.language == "python")
    for there, here in (("amqps://coordinator.example", service.url), ("authority.pem", str(ca.certificate))):
        assert program.count(there) == 1
        program = program.replace(there, here)
    subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "SHIPPING_PASSWORD": PASSWORD},
        check=True,
        timeout=PATIENCE,
    )
    orders = next(line for line in service.cli("address", "list").splitlines() if line.startswith("orders "))
    assert orders.split()[6] == "1"  # ready


@pytest.mark.rule("S1", "S2")
def test_rhea_behind_tls(service: Service, ca: Authority, rhea_project: Path, tmp_path: Path) -> None:
    def log_in(environment: dict[str, str]) -> dict[str, Any]:
        return run_case("node", "driver.js", "login", str(service.port), cwd=rhea_project, more=environment)

    _only_those_it_trusts(ca, log_in, tmp_path, "PLAIN")


@pytest.mark.rule("S1", "S2")
def test_qpid_jms_behind_tls(service: Service, ca: Authority, jms: Jms, tmp_path: Path) -> None:
    def log_in(environment: dict[str, str]) -> dict[str, Any]:
        return jms("login", service, **environment).line()

    _only_those_it_trusts(ca, log_in, tmp_path, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.mark.night
@pytest.mark.rule("S1", "S2")
def test_go_amqp_behind_tls(service: Service, ca: Authority, go_program: Path, tmp_path: Path) -> None:
    _only_those_it_trusts(ca, _by_program(go_program, service), tmp_path, "PLAIN")


@pytest.mark.night
@pytest.mark.rule("S1", "S2")
def test_fe2o3_behind_tls(service: Service, ca: Authority, fe2o3_program: Path, tmp_path: Path) -> None:
    _only_those_it_trusts(ca, _by_program(fe2o3_program, service), tmp_path, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.mark.night
@pytest.mark.rule("S1", "S2")
def test_proton_cpp_behind_tls(service: Service, ca: Authority, proton_cpp_program: Path, tmp_path: Path) -> None:
    _only_those_it_trusts(ca, _by_program(proton_cpp_program, service), tmp_path, "PLAIN")
