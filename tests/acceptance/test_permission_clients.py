"""Clients by others at an address for which their user has no permission (rule S3)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from store.permissions import Verb
from tests.acceptance.clients import run_case
from tests.fix_jms import Jms
from tests.fix_service import Service, running_service
from tests.fix_users import PASSWORD, add_user

USER = "carol"
ADDRESS = "not-hers"
UNAUTHORIZED = "amqp:unauthorized-access"
OWN = "hers"
ENVIRONMENT = {"LOGIN_USER": USER, "LOGIN_PASSWORD": PASSWORD, "LOGIN_ADDRESS": ADDRESS, "LOGIN_OWN": OWN}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"login.plain": "always"}) as service:
        add_user(service, USER, [(verb, OWN) for verb in Verb])
        yield service


@pytest.mark.rule("S3")
def test_qpid_jms(service: Service, jms: Jms) -> None:
    """A JMSSecurityException, wherever the standard has a place for it."""
    seen = jms("permissions", service, **ENVIRONMENT, LOGIN_MECHANISM="SCRAM-SHA-512").line()
    for verb in ("send", "receive", "browse"):
        assert seen[verb].startswith(f"JMSSecurityException: no permission to {verb}: '{ADDRESS}'")
        assert UNAUTHORIZED in seen[verb]
    assert seen["create"].startswith("JMSSecurityException: no permission to create: ")
    assert f"no permission to send: '{ADDRESS}'" in seen["relay"]


@pytest.mark.rule("S3")
def test_proton_python(service: Service) -> None:
    more = {**ENVIRONMENT, "LOGIN_MECHANISM": "SCRAM-SHA-512"}
    seen = run_case(sys.executable, "-m", "tests.acceptance.proton_login", service.url, more=more)
    for verb in ("send", "receive"):
        assert UNAUTHORIZED in seen[verb]
        assert f"no permission to {verb}: '{ADDRESS}'" in seen[verb]


@pytest.mark.rule("S3")
def test_rhea(service: Service, rhea_project: Path) -> None:
    more = {**ENVIRONMENT, "LOGIN_MECHANISM": "PLAIN"}
    seen = run_case("node", "driver.js", "login", str(service.port), cwd=rhea_project, more=more)
    assert seen == {"in": True, "send": UNAUTHORIZED, "receive": UNAUTHORIZED}


def _seen_by(program: Path, service: Service, mechanism: str, said: str = UNAUTHORIZED) -> dict[str, Any]:
    """``said``: how the client shows the condition."""
    seen = run_case(program, "permissions", service.url, more={**ENVIRONMENT, "LOGIN_MECHANISM": mechanism})
    assert said in seen["send"]
    assert said in seen["receive"]
    return seen


@pytest.mark.night
@pytest.mark.rule("S3", "T23")
def test_fe2o3(service: Service, fe2o3_program: Path) -> None:
    """Its transaction with a post that was refused rolls back; the next one is the user's own."""
    seen = _seen_by(fe2o3_program, service, "SCRAM-SHA-512", "AmqpError(UnauthorizedAccess)")
    assert f"no permission to send: '{ADDRESS}'" in seen["post"]
    assert "Rollback" in seen["commit"]
    assert seen["own"] == ["permitted"]


@pytest.mark.night
@pytest.mark.rule("S3")
def test_go_amqp(service: Service, go_program: Path) -> None:
    """It has no transactions: a post on the relay."""
    seen = _seen_by(go_program, service, "PLAIN")
    assert f"no permission to send: '{ADDRESS}'" in seen["post"]
    assert seen["own"] == ["permitted"]


@pytest.mark.night
@pytest.mark.rule("S3")
def test_proton_cpp(service: Service, proton_cpp_program: Path) -> None:
    """It has no transactions, and does not show why a message was rejected, but why a link has ended."""
    seen = _seen_by(proton_cpp_program, service, "PLAIN")
    assert (seen["post"], seen["permitted"], seen["settled"]) == ("rejected", "accepted", UNAUTHORIZED)
    assert seen["own"] == "permitted"
