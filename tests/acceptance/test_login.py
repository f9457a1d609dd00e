"""SASL frame by frame: right and wrong passwords, and what no client sends (rule S1; part 5, section 5.3; RFC 5802)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import count

import pytest

from store import users
from store.database import connected
from store.embedded.running import running_url
from tests.fix_compiled import both_rules
from tests.fix_service import Service, running_service
from tests.fix_users import PASSWORD, add_users
from tests.fix_wire import Dial
from tests.wire.frames import (
    AMQP_HEADER,
    SASL,
    SASL_HEADER,
    Begin,
    Close,
    Open,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    frame,
)
from tests.wire.peer import Peer
from tests.wire.sasl import HASHES, Login, ScramClient, plain

_names = count()


@pytest.fixture(scope="module")
def service(rules: None) -> Iterator[Service]:
    with running_service({"login.plain": "always", "log.level": "debug"}) as service:
        yield service


@pytest.fixture(scope="module")
def strict(rules: None) -> Iterator[Service]:
    """No client comes in without a login."""
    with running_service({"login.plain": "always", "login.anonymous": "never"}) as service:
        add_users(service, "alice")
        yield service


@pytest.fixture
def user(service: Service) -> str:
    """A user that no other test is wrong about."""
    name = f"user,{next(_names)}=x"
    add_users(service, name)
    return name


# -- right passwords


@pytest.mark.rule("S1")
@pytest.mark.parametrize("mechanism", HASHES)
def test_scram(dial: Dial, service: Service, user: str, mechanism: str) -> None:
    """The server shows in the outcome that it has the verifier (RFC 5802, section 3)."""
    client = ScramClient(user=user, password=PASSWORD, mechanism=mechanism)
    login = Login(dial())
    outcome = login.scram(client)
    assert outcome.code == 0
    assert outcome.additional_data == client.server_final()
    login.peer.open(container_id=f"of {user} {mechanism}")
    line = service.wait_for(lambda line: line.get("container") == f"of {user} {mechanism}")
    assert (line["event"], line["user"]) == ("connection opened", user)
    assert PASSWORD not in str(service.log_lines())


@pytest.mark.rule("S1")
def test_plain(dial: Dial, service: Service, user: str) -> None:
    login = Login(dial())
    login.init("PLAIN", plain(user, PASSWORD, user))
    assert login.outcome() == SaslOutcome(code=0)
    login.peer.open(container_id=f"plain of {user}")
    assert service.wait_for(lambda line: line.get("container") == f"plain of {user}")["user"] == user
    assert PASSWORD not in str(service.log_lines())


@pytest.mark.rule("S1")
def test_the_log_says_that_there_are_no_users() -> None:
    """Its peer is told nothing of it."""
    with running_service({"login.plain": "always"}) as service:
        peer = Peer(service.port)
        login = Login(peer)
        login.init("PLAIN", plain("alice", PASSWORD))
        login.refused()
        peer.close_socket()
        line = service.wait_for(lambda line: "no users" in line["event"])
        assert line["level"] == "warning"


@pytest.mark.rule("S1")
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_without_an_initial_response(dial: Dial, user: str, mechanism: str) -> None:
    """Part 5, section 5.3.3.2: it comes as the response to an empty challenge."""
    login = Login(dial())
    login.init(mechanism)
    assert login.challenge() == b""
    client = ScramClient(user=user, password=PASSWORD, mechanism=mechanism)
    if mechanism == "PLAIN":
        login.respond(plain(user, PASSWORD))
    else:
        login.respond(client.first())
        login.respond(client.final(login.challenge()))
    assert login.outcome().code == 0
    login.goes_on()


@pytest.mark.rule("S1", "P1")
def test_everything_is_sent_before_anything_is_read(dial: Dial, user: str) -> None:
    peer = dial()
    peer.send_octets(
        b"".join(
            (
                SASL_HEADER,
                frame(SaslInit(mechanism="PLAIN", initial_response=plain(user, PASSWORD)), kind=SASL),
                AMQP_HEADER,
                frame(Open(container_id="hasty")),
                frame(Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10)),
                frame(Close()),
            )
        )
    )
    assert peer.read_header() == SASL_HEADER
    assert isinstance(peer.read().performative, SaslMechanisms)
    assert peer.read().performative == SaslOutcome(code=0)
    assert peer.read_header() == AMQP_HEADER
    answers = [found.performative for found in peer.rest()]
    assert [type(each) for each in answers] == [Open, Begin, Close]
    assert answers[-1] == Close()


@pytest.mark.rule("S1", "P1")
def test_octet_by_octet(dial: Dial, user: str) -> None:
    peer = dial()
    login = Login(peer)
    client = ScramClient(user=user, password=PASSWORD)
    for octet in frame(SaslInit(mechanism="SCRAM-SHA-256", initial_response=client.first()), kind=SASL):
        peer.send_octets(bytes((octet,)))
    final = frame(SaslResponse(response=client.final(login.challenge())), kind=SASL)
    for octet in final + AMQP_HEADER:
        peer.send_octets(bytes((octet,)))
    assert login.outcome().code == 0
    assert peer.read_header() == AMQP_HEADER


@pytest.mark.rule("S1")
@pytest.mark.parametrize("gs2", ["y,,", "n,a={user},"])
def test_flags_that_ask_for_nothing(dial: Dial, user: str, gs2: str) -> None:
    """RFC 5802, section 6: a client that could bind the channel, where the server cannot; and one that names itself."""
    escaped = user.replace("=", "=3D").replace(",", "=2C")
    assert Login(dial()).scram(ScramClient(user=user, password=PASSWORD, gs2=gs2.format(user=escaped))).code == 0


# -- wrong ones


@pytest.mark.rule("S1", "S8")
@pytest.mark.parametrize("mechanism", [*HASHES, "PLAIN"])
@pytest.mark.parametrize("who", ["there", "disabled", "without a password", "not there", "no name\x07"])
def test_a_wrong_password_tells_nothing(dial: Dial, service: Service, user: str, who: str, mechanism: str) -> None:
    """The same answers whether there is such a user or not, and nothing of the password in the log."""
    wrong = "wr0ng-" + PASSWORD if who != "disabled" else PASSWORD
    with connected(running_url(service.data_dir)) as store:
        if who == "disabled":
            users.disable(store, user)
        if who == "without a password":
            users.set_verifiers(store, user, {})
    name = user if who in ("there", "disabled", "without a password") else f"{who} {user}"
    login = Login(dial())
    if mechanism == "PLAIN":
        login.init(mechanism, plain(name, wrong))
    else:
        salts = set()
        for again in (Login(dial()), login):  # the salt of one that is not there stays, too
            client = ScramClient(user=name, password=wrong, mechanism=mechanism)
            again.init(mechanism, client.first())
            challenge = again.challenge()
            _, salt, iterations = challenge.decode().split(",")
            salts.add((len(salt), salt, iterations))
        assert len(salts) == 1
        assert salts.pop()[::2] == (26, "i=4096")
        login.respond(client.final(challenge))
    login.refused()
    assert wrong not in str(service.log_lines())


def _init(mechanism: str, response: bytes | None) -> bytes:
    return frame(SaslInit(mechanism=mechanism, initial_response=response), kind=SASL)


_CLIENT = ScramClient(user="u", password="p")
_CHALLENGE = f"r={_CLIENT.nonce}x,s=QUJD,i=4096".encode()


@pytest.mark.rule("S1", "S6", "P14")
@pytest.mark.parametrize(
    "octets",
    [
        pytest.param(_init("SCRAM-SHA-256", _CLIENT.final(_CHALLENGE)), id="the last message first"),
        pytest.param(_init("SCRAM-SHA-256", b""), id="no message"),
        pytest.param(_init("SCRAM-SHA-256", b"\xff\xfe"), id="not UTF-8"),
        pytest.param(_init("SCRAM-SHA-256", b"n,,r=abc,n=u"), id="the nonce before the name"),
        pytest.param(_init("SCRAM-SHA-256", b"n,,m=x,n=u,r=abc"), id="an extension that must be known"),
        pytest.param(_init("SCRAM-SHA-256", b"n,,n=u,r="), id="no nonce"),
        pytest.param(_init("SCRAM-SHA-256", b"n,,n=a=b,r=abc"), id="an escape that there is not"),
        pytest.param(_init("SCRAM-SHA-256", b"n,,n=u,r=" + b"n" * 440), id="a nonce whose challenge takes over 512"),
        pytest.param(_init("SCRAM-SHA-256", b"n,a=root,n=u,r=abc"), id="to act as another"),
        pytest.param(_init("SCRAM-SHA-256", b"p=tls-unique,,n=u,r=abc"), id="bound to a channel"),
        pytest.param(_init("PLAIN", b"u\0p"), id="PLAIN of two parts"),
        pytest.param(_init("PLAIN", b"\0u\0p\0"), id="PLAIN of four parts"),
        pytest.param(_init("PLAIN", b"\0u\0"), id="no password"),
        pytest.param(_init("PLAIN", b"\0\0p"), id="no user"),
        pytest.param(_init("PLAIN", b"\0\xff\0p"), id="PLAIN not UTF-8"),
        pytest.param(_init("PLAIN", plain("u", "p", "root")), id="PLAIN to act as another"),
        pytest.param(_init("PLAIN", plain("u" * 10_000, "p")), id="a user of 10 kB"),
        pytest.param(_init("PLAIN", plain("u", "p" * 1_000_000)), id="a password of 1 MB"),
        pytest.param(_init("SCRAM-SHA-512", ScramClient(user="u" * 10_000, password="p").first()), id="SCRAM of 10 kB"),
        pytest.param(_init("SCRAM-SHA-256-PLUS", _CLIENT.first()), id="a mechanism with channel binding"),
        pytest.param(_init("EXTERNAL", b""), id="a certificate without TLS"),
        pytest.param(_init("CRAM-MD5", b""), id="a mechanism that is not offered"),
    ],
)
def test_what_is_no_login_is_refused(dial: Dial, octets: bytes) -> None:
    login = Login(dial())
    login.peer.send_octets(octets)
    login.refused()


@pytest.mark.rule("S1", "S6")
@pytest.mark.parametrize("wrong", ["nonce", "binding", "no proof", "first again", "nothing", "of another login"])
def test_a_last_message_that_does_not_belong_to_the_first(dial: Dial, user: str, wrong: str) -> None:
    client = ScramClient(user=user, password=PASSWORD)
    before = Login(dial())
    before.init("SCRAM-SHA-256", client.first())
    replayed = client.final(before.challenge())
    login = Login(dial())
    login.init("SCRAM-SHA-256", client.first())
    challenge = login.challenge()
    right = client.final(challenge)
    login.respond(
        {
            "nonce": client.final(challenge, nonce=client.nonce + "x"),
            "binding": client.final(challenge, binding="y,,"),
            "no proof": right.rpartition(b",p=")[0],
            "first again": client.first(),
            "nothing": b"",
            "of another login": replayed,
        }[wrong]
    )
    login.refused()


@pytest.mark.rule("S1", "S6", "P14")
@pytest.mark.parametrize("kind", [SaslInit(mechanism="PLAIN"), SaslChallenge(challenge=b"x"), SaslOutcome(code=0)])
def test_another_frame_in_place_of_a_response(dial: Dial, user: str, kind: SaslInit | SaslOutcome) -> None:
    login = Login(dial())
    login.init("SCRAM-SHA-256", ScramClient(user=user, password=PASSWORD).first())
    login.challenge()
    login.peer.send(kind, kind=SASL)
    assert login.peer.rest() == []


@pytest.mark.rule("S1", "P14")
@both_rules
def test_a_defect_in_a_login_costs_its_connection_alone(service: Service, user: str) -> None:
    """At once, and not when the time to open is up: a verifier that no password can be compared with."""
    with connected(running_url(service.data_dir)) as store:
        store.exec_driver_sql("alter table coordinator.user_verifier drop constraint user_verifier_iterations_check")
        store.exec_driver_sql("update coordinator.user_verifier set iterations = 0 where user_name = %s", (user,))
        store.commit()
    neighbour, login = Peer(service.port), Login(Peer(service.port))
    neighbour.open()
    port = login.peer.socket.getsockname()[1]
    login.init("PLAIN", plain(user, PASSWORD))
    assert login.peer.rest() == []
    line = service.wait_for(lambda line: line.get("peer") == f"127.0.0.1:{port}")
    assert (line["event"], line["what"]) == ("internal error", "Comparison._unless_ended.<locals>.called")
    assert PASSWORD not in str(service.log_lines())
    neighbour.begin()


# -- where a login is needed


@pytest.mark.rule("S1")
def test_without_a_login_none_comes_in_where_one_is_needed(strict: Service) -> None:
    peer = Peer(strict.port)
    peer.send_octets(AMQP_HEADER)
    assert peer.read_header() == SASL_HEADER
    assert peer.rest() == []
    login = Login(Peer(strict.port))
    assert login.mechanisms == ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
    login.init("ANONYMOUS", b"")
    login.refused()
    behind = Login(Peer(strict.port))
    behind.peer.send_octets(AMQP_HEADER)  # leaves the layer that it has begun
    assert behind.peer.rest() == []
    assert Login(Peer(strict.port)).scram(ScramClient(user="alice", password=PASSWORD)).code == 0


@pytest.mark.rule("S1")
def test_by_default_no_password_is_taken_in_plain_text() -> None:
    with running_service() as service:
        assert Login(Peer(service.port)).mechanisms == ("SCRAM-SHA-512", "SCRAM-SHA-256", "ANONYMOUS")


# -- users that go


@pytest.mark.rule("S1")
@pytest.mark.parametrize("how", [["set", "--disable"], ["remove"]], ids=["disabled", "removed"])
def test_a_user_that_may_not_log_in_any_more_is_out(dial: Dial, service: Service, user: str, how: list[str]) -> None:
    """At once: its connections end, and a login under way fails."""
    inside, under_way = Login(dial()), Login(dial())
    client = ScramClient(user=user, password=PASSWORD)
    assert inside.scram(client).code == 0
    inside.goes_on()
    other = dial()
    other.open()
    under_way.init("SCRAM-SHA-256", client.first())
    last = client.final(under_way.challenge())
    service.cli("user", *how, user)
    closed = inside.peer.closed()
    assert closed.condition == "amqp:unauthorized-access"
    under_way.respond(last)
    under_way.refused()
    other.close()


@pytest.mark.rule("S1")
def test_a_user_that_was_disabled_while_the_store_was_away_is_out(own_service: Service) -> None:
    """The notice is lost with the connection that it would come by."""
    add_users(own_service, "alice")
    login = Login(Peer(own_service.port))
    assert login.scram(ScramClient(user="alice", password=PASSWORD)).code == 0
    login.goes_on()
    with connected(running_url(own_service.data_dir)) as store:
        store.exec_driver_sql("update coordinator.user_account set disabled_at = now()")
        store.exec_driver_sql(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name ~ 'coordinator queries'"
        )
        store.commit()
    assert login.peer.closed().condition == "amqp:unauthorized-access"


@pytest.mark.rule("S10", "F5")
def test_a_service_that_ends_has_told_of_the_last_login_that_failed(own_service: Service) -> None:
    """The first is told at once, and the next would be a minute later."""
    add_users(own_service, "alice")
    told = "select sum(times) from coordinator.audit where action = 'login-failed' and client_user = 'alice'"

    def times() -> int | None:
        with connected(running_url(own_service.data_dir)) as store:
            found: int | None = store.exec_driver_sql(told).scalar()
            return found

    def fail() -> None:
        assert Login(Peer(own_service.port)).scram(ScramClient(user="alice", password="wrong")).code == 1

    fail()
    while not times():
        pass
    fail()
    own_service.stop()
    own_service.restart()
    assert times() == 2


@pytest.mark.rule("S1", "S5")
def test_a_store_that_does_not_answer(own_service: Service) -> None:
    """Part 5, section 5.3.3.6: sys-temp, so that the client comes again; others are served meanwhile."""
    add_users(own_service, "alice")
    other = Peer(own_service.port)
    other.open()
    own_service.signal_database(signal.SIGSTOP)
    try:
        login = Login(Peer(own_service.port))
        login.init("SCRAM-SHA-256", ScramClient(user="alice", password=PASSWORD).first())
        other.begin()
        assert login.outcome() == SaslOutcome(code=4)
        assert login.peer.rest() == []
    finally:
        own_service.signal_database(signal.SIGCONT)
