"""Logins by token, frame by frame: right and wrong ones, and what becomes of a connection when its token expires
(rule S13; RFC 7628).
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from store import users
from store.database import connected
from store.embedded.running import running_url
from store.permissions import Verb
from tests.fix_certificates import Authority, key_of
from tests.fix_compiled import BOTH_RULES
from tests.fix_issuer import (
    ISSUER,
    Issuer,
    issuing,
    key,
    settings_of_file,
    signed_by_the_public_key,
    token,
    unsigned,
)
from tests.fix_service import PATIENCE, Service, TwoDoors, running, running_service
from tests.fix_users import EVERYTHING, PASSWORD, add_user, grant
from tests.fix_wire import Dial
from tests.held_store import nothing_is_decided
from tests.tables import all_cases
from tests.wire.frames import AMQP_HEADER, SASL, Accepted, Discharge, SaslInit, SaslOutcome, SaslResponse, frame
from tests.wire.messages import data
from tests.wire.peer import Peer, Session
from tests.wire.sasl import Login, plain

pytestmark = BOTH_RULES

LARGEST = 16 * 1024
#: Tests that would wait for them do not.
CONSTANTS = {
    "coordinator.login.penalties.TOLD_AFTER_SECONDS": 0.05,
    "coordinator.login.penalties.BETWEEN_SECONDS": 0.05,
    "coordinator.login.penalties.FIRST_SECONDS": 0.001,
    "coordinator.login.penalties.LONGEST_SECONDS": 0.002,
    "coordinator.login.tokens.LEEWAY_SECONDS": 0,
}


def bearer(token: str, authzid: str = "") -> bytes:
    """The initial response of OAUTHBEARER (RFC 7628, section 3.1)."""
    named = f"a={authzid}" if authzid else ""
    return f"n,{named},\x01host=localhost\x01port=5672\x01auth=Bearer {token}\x01\x01".encode()


def xoauth2(token: str, user: str = "alice") -> bytes:
    return f"user={user}\x01auth=Bearer {token}\x01\x01".encode()


@pytest.fixture(scope="module")
def service(rules: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = settings_of_file(tmp_path_factory.mktemp("keys"))
    with running_service(settings, CONSTANTS) as service:
        grant(service, EVERYTHING, role="anonymous")
        grant(service, [(Verb.SEND, "orders"), (Verb.CREATE, "orders")], role="clerks")
        yield service


def _kept_secret(service: Service, *tokens: str) -> bool:
    """Whether no part of the tokens is in the log or in the audit."""
    with psycopg.connect(running_url(service.data_dir)) as store:
        said = str(store.execute("select detail, client_user from coordinator.audit").fetchall())
    said += str(service.log_lines())
    return not any(part in said for each in tokens for part in each.split(".") if len(part) > 20)


def _logged_in(peer: Peer, right: str) -> Peer:
    login = Login(peer)
    login.init("OAUTHBEARER", bearer(right))
    assert login.outcome() == SaslOutcome(code=0)
    return peer


def _begun(peer: Peer) -> Session:
    peer.open()
    return peer.begin()


def _refused(login: Login) -> dict[str, Any]:
    """What the server says of it (RFC 7628, section 3.2.2), which the client confirms, and then the end."""
    said: dict[str, Any] = json.loads(login.challenge())
    login.respond(b"\x01")
    login.refused()
    return said


@pytest.mark.rule("S13", "S8")
@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "XOAUTH2"])
@pytest.mark.parametrize("initial", [True, False])
def test_a_right_token(dial: Dial, service: Service, mechanism: str, *, initial: bool) -> None:
    right = token()
    response = bearer(right, "alice") if mechanism == "OAUTHBEARER" else xoauth2(right)
    login = Login(dial())
    assert login.mechanisms[2:5] == ("OAUTHBEARER", "XOAUTH2", "PLAIN")
    login.init(mechanism, response if initial else None)
    if not initial:
        assert login.challenge() == b""
        login.respond(response)
    assert login.outcome() == SaslOutcome(code=0)
    name = f"by {mechanism} {initial}"
    login.peer.open(container_id=name)
    assert service.wait_for(lambda line: line.get("container") == name)["user"] == "alice"
    line = service.wait_for(lambda line: line["event"] == "login by token")
    assert (line["issuer"], line["subject"]) == ("https://issuer.example", "alice")
    assert _kept_secret(service, right)


def _of_other_keys() -> str:
    return token(key("first", "EC", "P-256"), "ES256")


#: Each with what the log says of it.
WRONG: dict[str, tuple[Callable[[], str], str]] = {
    "expired": (lambda: token(exp=int(time.time()) - 60), "has expired (issuer https://issuer.example, subject alice)"),
    "without an end": (lambda: token(exp=None), "claim exp of the token is missing or wrong"),
    "for ever": (lambda: token(exp=float("nan")), "claim exp of the token is missing or wrong"),
    "not yet": (lambda: token(nbf=int(time.time()) + 600), "claim nbf of the token is missing or wrong"),
    "another issuer": (lambda: token(iss="https://evil.example"), "claim iss of the token is missing or wrong"),
    "no issuer": (lambda: token(iss=None), "claim iss of the token is missing or wrong"),
    "another audience": (lambda: token(aud=["mail", "wiki"]), "claim aud of the token is missing or wrong"),
    "no audience": (lambda: token(aud=None), "claim aud of the token is missing or wrong"),
    "no user": (lambda: token(sub=None), "claim sub of the token is missing, or can be no name"),
    "no name": (lambda: token(sub="a\0b"), "claim sub of the token is missing, or can be no name"),
    "none": (unsigned, "an algorithm that is not taken"),
    "HS256 by the public key": (signed_by_the_public_key, "an algorithm that is not taken"),
    "another key": (lambda: token(key("second")), "has no such key"),
    "another key of the name": (_of_other_keys, "no JSON Web Token"),
    "changed": (lambda: token()[:-8] + "AAAAAAAA", "signature of the token is wrong"),
    "no token": (lambda: "abcdef", "no JSON Web Token"),
    "dots": (lambda: "..", "no JSON Web Token"),
    "no JSON": (lambda: "YQ.YQ.YQ", "no JSON Web Token"),
    "a list as algorithm": (lambda: "eyJhbGciOltdfQ.e30.YQ", "no JSON Web Token"),
    "brackets": (lambda: f"{'W1tbW1tb' * 1200}.e30.YQ", "no JSON Web Token"),
}


@pytest.mark.rule("S13", "S8")
@all_cases("case", list(WRONG))
def test_a_wrong_token(dial: Dial, service: Service, case: str) -> None:
    """The peer is told that it is invalid, the log why; the log has no part of the token."""
    made, why = WRONG[case]
    wrong = made()
    since = len(service.log_lines())
    login = Login(dial())
    login.init("OAUTHBEARER", bearer(wrong))
    assert _refused(login) == {"status": "invalid_token"}
    line = service.wait_for(lambda line: line["event"] == "login refused", since=since)
    assert why in line["reason"]
    assert _kept_secret(service, wrong)


@pytest.mark.rule("S13")
def test_xoauth2_is_refused_without_a_challenge(dial: Dial) -> None:
    """Its clients have no answer to one."""
    login = Login(dial())
    login.init("XOAUTH2", xoauth2(token(aud="mail")))
    login.refused()


@pytest.mark.rule("S13")
@pytest.mark.parametrize(("mechanism", "response"), [
    ("XOAUTH2", xoauth2(token(), "mallory")), ("OAUTHBEARER", bearer(token(), "mallory")),
])  # fmt: skip
def test_a_client_acts_as_no_other_user(dial: Dial, service: Service, mechanism: str, response: bytes) -> None:
    since = len(service.log_lines())
    login = Login(dial())
    login.init(mechanism, response)
    line = service.wait_for(lambda line: line["event"] == "login refused", since=since)
    assert line["reason"] == "the client names another user than its token"


@pytest.mark.rule("S13", "S10")
def test_the_audit_has_issuer_and_subject(dial: Dial, service: Service) -> None:
    """Of a token that is genuine; of another one the claims may be anything."""
    late, foreign = token(exp=1, sub="late"), token(key("second"), sub="unseen")
    for wrong in (late, foreign):
        login = Login(dial())
        login.init("OAUTHBEARER", bearer(wrong))
        _refused(login)
    deadline = time.monotonic() + PATIENCE
    with psycopg.connect(running_url(service.data_dir), autocommit=True) as store:
        while not (rows := store.execute(_FAILED, ("late",)).fetchall()):
            assert time.monotonic() < deadline
        assert rows == [("login-failed", f"the token has expired (issuer {ISSUER}, subject late)")]
        assert store.execute(_FAILED, ("unseen",)).fetchall() == []


_FAILED = "select action, detail->>'why' from coordinator.audit where client_user = %s"


@pytest.mark.rule("S13", "S5")
@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "XOAUTH2"])
def test_the_largest_token(dial: Dial, mechanism: str) -> None:
    """The largest frame is taken, and no larger one is waited for; one of another mechanism has 512 octets."""

    def init(padding: int) -> bytes:
        large = token(padding="x" * padding)
        made = bearer(large) if mechanism == "OAUTHBEARER" else xoauth2(large)
        return frame(SaslInit(mechanism=mechanism, initial_response=made), kind=SASL)

    fitting = max(filter(lambda octets: len(octets) <= LARGEST, map(init, range(11_500, 12_000, 3))), key=len)
    assert len(fitting) >= LARGEST - 8
    login = Login(dial())
    login.peer.send_octets(fitting)
    assert login.outcome() == SaslOutcome(code=0)

    login = Login(dial())
    login.peer.send_octets(init(13_000)[:100])
    login.refused()

    login = Login(dial())
    login.init("PLAIN", plain("alice", "x" * 600))
    login.refused()


@pytest.mark.rule("S13", "S5")
@all_cases("response", [
    b"",
    b"\x01",
    b"n,,",
    b"n,,\x01\x01",
    b"n,,\x01auth=Basic YTpi\x01\x01",
    b"n,,\x01auth=Bearer \x01\x01",
    b"n,,\x01auth=Bearer a\0b\x01\x01",
    b"n,,\x01auth=Bearer a.b.c\x01auth=Bearer a.b.c\x01\x01",
    b"n,a=\xff,\x01auth=Bearer a.b.c\x01\x01",
    b"n,a=a=2Xb,\x01auth=Bearer a.b.c\x01\x01",
    b"p=tls-unique,,\x01auth=Bearer a.b.c\x01\x01",
])  # fmt: skip
def test_what_is_no_initial_response(dial: Dial, response: bytes) -> None:
    login = Login(dial())
    login.init("OAUTHBEARER", response)
    assert _refused(login) == {"status": "invalid_token"}


@pytest.mark.rule("S13", "S5")
def test_no_frame_behind_the_last_one_counts(dial: Dial) -> None:
    login = Login(dial())
    login.peer.send_octets(
        frame(SaslInit(mechanism="OAUTHBEARER", initial_response=bearer("a.b.c")), kind=SASL)
        + frame(SaslResponse(response=b"\x01"), kind=SASL)
        + frame(SaslResponse(response=bearer(token())), kind=SASL) * 50
        + AMQP_HEADER
    )
    login.challenge()
    login.refused()


@pytest.mark.rule("S13", "S3")
def test_roles_of_the_token(dial: Dial) -> None:
    """They have what the store grants to them, and the user need not be there."""
    session = _begun(_logged_in(dial(), token(sub="carol")))
    session.sender("orders").outcome(data(b"tea"))
    assert session.receiver("orders").error == "amqp:unauthorized-access"
    without = _begun(_logged_in(dial(), token(sub="carol", roles=None)))
    assert without.sender("orders").error == "amqp:unauthorized-access"


@pytest.mark.rule("S13", "S1")
def test_a_disabled_user_is_locked_out(dial: Dial, service: Service) -> None:
    """A user whose name an operator has disabled comes in by no token, and loses its connections."""
    add_user(service, "dave", [])
    peer = _logged_in(dial(), token(sub="dave"))
    peer.open()
    with connected(running_url(service.data_dir)) as store:
        users.disable(store, "dave")
    assert peer.closed().condition == "amqp:unauthorized-access"
    login = Login(dial())
    login.init("OAUTHBEARER", bearer(token(sub="dave")))
    _refused(login)


@pytest.mark.rule("S13")
def test_a_password_beside_tokens(dial: Dial, service: Service) -> None:
    """A user of the store, whose wrong passwords are not those of tokens."""
    add_user(service, "erin", EVERYTHING)
    for _ in range(3):
        login = Login(dial())
        login.init("OAUTHBEARER", bearer(token(exp=1)))
        _refused(login)
    login = Login(dial())
    login.init("PLAIN", plain("erin", PASSWORD))
    assert login.outcome() == SaslOutcome(code=0)


@pytest.mark.rule("S13", "T10")
def test_a_connection_ends_with_its_token(dial: Dial, service: Service) -> None:
    """Its open transaction is rolled back."""
    peer = _logged_in(dial(), token(sub="frank", exp=int(time.time()) + 5))
    session = _begun(peer)
    control, sender = session.control(), session.sender("orders")
    txn = control.declare()
    sender.outcome(data(b"gone"), txn=txn)
    error = peer.closed()
    assert error.condition == "amqp:unauthorized-access"
    assert error.description == "the token of the login has expired: connect again with a new one"
    line = service.wait_for(lambda line: line.get("reason") == "token-expired")
    assert line["user"] == "frank"
    kept = service.cli("transaction", "list", "--json")
    assert txn.hex() not in kept.replace("-", "")


@pytest.mark.rule("S13", "T8")
def test_a_commit_under_way_is_answered_before_the_end(dial: Dial, service: Service) -> None:
    peer = _logged_in(dial(), token(sub="grace", exp=int(time.time()) + 5))
    session = _begun(peer)
    control, sender = session.control(), session.sender("orders")
    txn = control.declare()
    sender.outcome(data(b"kept"), txn=txn)
    with nothing_is_decided(service) as waits:
        discharged = control.request(Discharge(txn_id=txn, fail=False))
        waits()
        service.wait_for(lambda line: line.get("event") == "token expired" and line["user"] == "grace")
    answer = control.answer_to(discharged)
    assert (answer.settled, answer.state) == (True, Accepted())
    assert peer.closed().condition == "amqp:unauthorized-access"
    assert b"kept" in _begun(dial()).receiver("orders").bodies()


# -- an issuer that publishes its keys


@pytest.fixture
def trusted(ca: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """The services that are started trust the authority of the issuer."""
    monkeypatch.setenv("SSL_CERT_FILE", str(ca.certificate))


def _settings_of(issuer: Issuer) -> dict[str, str]:
    return {"tokens.issuer": issuer.url, "tokens.audience": "coordinator", "login.plain": "always", "workers": "2"}


def _code(service: Service, right: str) -> int:
    peer = Peer(service.port)
    login = Login(peer)
    login.init("XOAUTH2", xoauth2(right))
    code = login.outcome().code
    peer.close_socket()
    assert isinstance(code, int)
    return code


@pytest.mark.rule("S13")
def test_keys_by_openid_connect(ca: Authority, trusted: None) -> None:
    """Another key counts as soon as the issuer has it, and one that it has no more does not; the last keys count while
    the issuer does not answer, also after a kill.
    """
    constants = {**CONSTANTS, "coordinator.commands.token_keys.FEWEST_SECONDS": 0.0}
    with issuing(ca, key("first")) as issuer, running_service(_settings_of(issuer), constants) as service:
        service.wait_for(lambda line: line["event"] == "keys of the issuer of tokens read")
        assert _code(service, token(iss=issuer.url)) == 0
        login = Login(Peer(service.port))
        login.init("OAUTHBEARER", bearer(token(key("second"), iss=issuer.url)))
        where = f"{issuer.url}/.well-known/openid-configuration"
        assert _refused(login) == {"status": "invalid_token", "openid-configuration": where}
        login.peer.close_socket()
        issuer.publish(key("second"))
        assert _code(service, token(key("second"), iss=issuer.url)) == 0
        assert _code(service, token(iss=issuer.url)) == 1
        issuer.close()
        service.kill()
        seen = len(service.log_lines())
        service.restart()
        service.wait_for(lambda line: line["event"].startswith("the keys of the issuer of tokens are not"), since=seen)
        assert _code(service, token(key("second"), iss=issuer.url)) == 0
        assert _code(service, token(iss=issuer.url)) == 1


@pytest.mark.rule("S13")
def test_unknown_keys_ask_the_issuer_now_and_then(ca: Authority, trusted: None) -> None:
    """However many tokens have them: who sends them does not have the service flood the issuer."""
    with issuing(ca, key("first")) as issuer, running_service(_settings_of(issuer), CONSTANTS) as service:
        service.wait_for(lambda line: line["event"] == "keys of the issuer of tokens read")
        for _ in range(5):
            assert _code(service, token(key("second"), iss=issuer.url)) == 1
        assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]


@pytest.mark.rule("S13")
@pytest.mark.parametrize(("configuration", "keys", "why"), [
    ('{"issuer": "https://another.example", "jwks_uri": "URL/keys"}', "", "another issuer than tokens.issuer"),
    ('{"issuer": "URL", "jwks_uri": "http://another.example/keys"}', "", "its jwks_uri is not https://"),
    ('{"issuer": "URL", "jwks_uri": "file:///etc/passwd"}', "", "its jwks_uri is not https://"),
    ('{"issuer": "URL", "jwks_uri": "URL/keys"}', '{"keys": []}', "none of its keys is for signatures"),
    ('{"issuer": "URL", "jwks_uri": "URL/keys"}', "[" * 300_000, "more than 262144 octets"),
    ('{"issuer": "URL", "jwks_uri": "URL/nothing"}', "", "the answer has the status 404"),
    ("[]", "", "expected JSON with issuer and jwks_uri"),
])  # fmt: skip
@pytest.mark.night
def test_an_issuer_that_says_something_else(
    ca: Authority, trusted: None, configuration: str, keys: str, why: str
) -> None:
    with issuing(ca) as issuer:
        issuer.pages["/.well-known/openid-configuration"] = configuration.replace("URL", issuer.url)
        issuer.pages["/keys"] = keys
        with running_service(_settings_of(issuer), CONSTANTS) as service:
            line = service.wait_for(lambda line: line["event"].startswith("the keys of the issuer of tokens are not"))
            assert why in line["reason"]
            assert _code(service, token(iss=issuer.url)) == 4


@pytest.mark.rule("S13", "S5")
@pytest.mark.night
def test_an_issuer_that_says_nothing() -> None:
    constants = {**CONSTANTS, "coordinator.process.issuer._SECONDS": 0.5}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = {"tokens.issuer": url, "tokens.audience": "coordinator", "login.plain": "always"}
        with running_service(settings, constants) as service:
            line = service.wait_for(lambda line: line["event"].startswith("the keys of the issuer of tokens are not"))
            assert line["reason"] == f"{url}/.well-known/openid-configuration: no keys in 0.5 s"


# -- where they are offered


@pytest.mark.rule("S13")
def test_tokens_are_asked_for_behind_tls_alone(ca: Authority, tmp_path: Path) -> None:
    """Like passwords."""
    certificate = ca.sign("tokens", alternative="IP:127.0.0.1")
    settings = {
        **settings_of_file(tmp_path),
        "login.plain": "tls",
        "tls.certificate": str(certificate),
        "tls.key": str(key_of(certificate)),
    }
    with running(lambda folder: TwoDoors(folder, settings)) as service:
        open_to_all = Peer(service.ports[0])
        assert Login(open_to_all).mechanisms == ("SCRAM-SHA-512", "SCRAM-SHA-256", "ANONYMOUS")
        open_to_all.close_socket()
        behind = Peer(service.ports[1])
        behind.behind_tls(ssl.create_default_context(cafile=str(ca.certificate)))
        login = Login(behind)
        assert login.mechanisms[2:5] == ("OAUTHBEARER", "XOAUTH2", "PLAIN")
        login.init("OAUTHBEARER", bearer(token()))
        assert login.outcome() == SaslOutcome(code=0)
        behind.close_socket()


@pytest.mark.rule("S13")
def test_a_file_without_keys_prevents_the_start(tmp_path: Path) -> None:
    settings = settings_of_file(tmp_path)
    Path(settings["tokens.keys"]).write_text("{}")
    with pytest.raises(AssertionError, match="expected JSON with public keys"), running_service(settings):
        pass
