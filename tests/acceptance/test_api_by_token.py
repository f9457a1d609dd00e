"""The API by tokens of an issuer: their roles say who reads and who acts, and the audit names them (S11, S13)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.api import asked
from tests.fix_issuer import ISSUER, key, settings_of_file, token
from tests.fix_service import Service, running_service
from tests.tables import all_cases

pytestmark = [pytest.mark.rule("S11"), pytest.mark.rule("S13")]

_ROLES = {"tokens.operator_role": "operators", "tokens.reader_role": "readers"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {**settings_of_file(tmp_path_factory.mktemp("keys")), **_ROLES, "metrics.listen": "http://127.0.0.1:0"}
    with running_service(settings) as service:
        yield service


def _status(
    service: Service, shown: str, method: str = "GET", path: str = "/addresses", body: str | None = None
) -> int:
    return asked(service, method, path, body, Authorization=f"Bearer {shown}").status


def test_operators_act_and_readers_read(service: Service) -> None:
    act = ("POST", "/addresses/orders/add", '{"reason": "of the test"}')
    operator, reader, client = (token(sub=each, roles=[f"{each}s"]) for each in ("operator", "reader", "clerk"))
    assert _status(service, client) == 403
    assert _status(service, reader) == 200
    assert _status(service, reader, *act) == 403
    assert _status(service, reader, "GET", "/users") == 403
    assert _status(service, operator) == 200
    assert _status(service, operator, *act) == 200
    (line,) = asked(service, "GET", "/audit?what=address-add", Authorization=f"Bearer {operator}").value
    assert (line["os_user"], line["reason"]) == ("operator", "of the test")
    assert line["place"] == f"api 127.0.0.1, token of {ISSUER}, subject operator"


@all_cases(
    "wrong",
    [
        token(roles=["operators"], exp=1),
        token(roles=["operators"], aud="mail"),
        token(roles=["operators"], iss="https://evil.example"),
        token(key("second"), roles=["operators"]),
        "a.b.c",
        "",
    ],
)
def test_a_wrong_token(service: Service, wrong: str) -> None:
    answer = asked(service, "GET", "/addresses", Authorization=f"Bearer {wrong}")
    assert answer.status == 401
    assert "expected" in answer.value["detail"]
    assert not any(len(part) > 20 and part in str(service.log_lines()) for part in wrong.split("."))
