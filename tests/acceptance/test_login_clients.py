"""Clients by others log in with each mechanism that they know, with right and wrong passwords (rule S1)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.clients import run_case
from tests.fix_issuer import settings_of_file, token
from tests.fix_jms import Jms
from tests.fix_service import Service, running_service
from tests.fix_users import EVERYTHING, PASSWORD, add_users, grant

#: What a client saw of a login with a mechanism and a password.
LogIn = Callable[[str, str], dict[str, Any]]

USER = "user=of,clients"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
#: fe2o3-amqp sends a name as it is, where SCRAM has two characters escaped
PLAIN_USER = "fe2o3"
WRONG = "wr0ng=password"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"login.plain": "always", "login.anonymous": "never"}) as service:
        add_users(service, USER, PLAIN_USER)
        yield service


def _environment(mechanism: str, password: str, user: str = USER) -> dict[str, str]:
    return {"LOGIN_USER": user, "LOGIN_PASSWORD": password, "LOGIN_MECHANISM": mechanism}


def _only_right_passwords(service: Service, log_in: LogIn, mechanism: str, said: str) -> None:
    """``said``: by which the client shows that it was its login that was refused."""
    assert log_in(mechanism, PASSWORD) == {"in": True}
    refused = log_in(mechanism, WRONG)
    assert said.lower() in str(refused["refused"]).lower()
    assert not any(password in str(service.log_lines()) for password in (PASSWORD, WRONG))


@pytest.mark.rule("S1", "S8")
@pytest.mark.parametrize("mechanism", [*SCRAM, "PLAIN"])
def test_qpid_jms_logs_in(service: Service, jms: Jms, mechanism: str) -> None:
    def log_in(mechanism: str, password: str) -> dict[str, Any]:
        return jms("login", service, **_environment(mechanism, password)).line()

    _only_right_passwords(service, log_in, mechanism, "JMSSecuritySaslException")


@pytest.mark.rule("S1", "S8")
@pytest.mark.parametrize("mechanism", [*SCRAM, "PLAIN"])
def test_proton_python_logs_in(service: Service, mechanism: str) -> None:
    def log_in(mechanism: str, password: str) -> dict[str, Any]:
        command = (sys.executable, "-m", "tests.acceptance.proton_login", service.url)
        return run_case(*command, more=_environment(mechanism, password))

    _only_right_passwords(service, log_in, mechanism, "amqp:unauthorized-access")


@pytest.mark.rule("S1", "S8")
def test_rhea_logs_in(service: Service, rhea_project: Path) -> None:
    def log_in(mechanism: str, password: str) -> dict[str, Any]:
        more = _environment(mechanism, password)
        return run_case("node", "driver.js", "login", str(service.port), cwd=rhea_project, more=more)

    _only_right_passwords(service, log_in, "PLAIN", "Failed to authenticate")


@pytest.fixture(scope="module")
def by_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    constants = {"coordinator.login.tokens.LEEWAY_SECONDS": 0}
    with running_service(settings_of_file(tmp_path_factory.mktemp("keys")), constants) as service:
        grant(service, EVERYTHING, role="clerks")
        yield service


@pytest.mark.rule("S13", "S8")
def test_qpid_jms_logs_in_by_token(by_token: Service, jms: Jms) -> None:
    def log_in(made: str) -> dict[str, Any]:
        return jms("login", by_token, **_environment("XOAUTH2", made, "alice")).line()

    assert log_in(token()) == {"in": True}
    assert "JMSSecuritySaslException" in log_in(token(aud="mail"))["refused"]


@pytest.mark.rule("S13")
def test_qpid_jms_comes_again_with_another_token(by_token: Service, jms: Jms) -> None:
    """Its application is told why the first one has ended."""
    tokens = f"{token(exp=int(time.time()) + 6)} {token()}"
    case = jms("login renewed", by_token, LOGIN_TOKENS=tokens, LOGIN_USER="alice", LOGIN_ADDRESS="renewed")
    ended = case.line()["ended"]
    assert ended.startswith("JMSSecurityException: ")
    assert "the token of the login has expired: connect again with a new one" in ended


@pytest.mark.rule("S13", "S8")
@pytest.mark.parametrize("mechanism", ["XOAUTH2", "OAUTHBEARER"])
def test_rhea_logs_in_by_token(by_token: Service, rhea_project: Path, mechanism: str) -> None:
    """OAUTHBEARER by a mechanism of the application's own, which is told why it is refused."""

    def log_in(made: str) -> dict[str, Any]:
        more = _environment(mechanism, made, "alice")
        return run_case("node", "driver.js", "login", str(by_token.port), cwd=rhea_project, more=more)

    assert log_in(token()) == {"in": True}
    assert "Failed to authenticate" in log_in(token(aud="mail"))["refused"]


@pytest.mark.night
@pytest.mark.rule("S1", "S8")
@pytest.mark.parametrize("mechanism", [*SCRAM, "PLAIN"])
def test_fe2o3_logs_in(service: Service, fe2o3_program: Path, mechanism: str) -> None:
    def log_in(mechanism: str, password: str) -> dict[str, Any]:
        return run_case(fe2o3_program, "login", service.url, more=_environment(mechanism, password, PLAIN_USER))

    _only_right_passwords(service, log_in, mechanism, "Auth")


@pytest.mark.night
@pytest.mark.rule("S1", "S8")
def test_go_amqp_logs_in(service: Service, go_program: Path) -> None:
    def log_in(mechanism: str, password: str) -> dict[str, Any]:
        return run_case(go_program, "login", service.url, more=_environment(mechanism, password))

    _only_right_passwords(service, log_in, "PLAIN", "SASL PLAIN auth failed")


@pytest.mark.night
@pytest.mark.rule("S1", "S8")
def test_proton_cpp_logs_in(service: Service, proton_cpp_program: Path) -> None:
    """Not every system's library has SCRAM: Debian's is built without Cyrus."""

    def log_in(mechanism: str, password: str) -> dict[str, Any]:
        return run_case(proton_cpp_program, "login", service.url, more=_environment(mechanism, password))

    _only_right_passwords(service, log_in, "PLAIN", "amqp:unauthorized-access")
