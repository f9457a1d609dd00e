"""Tokens are checked by the keys of a JWKS: which keys, which algorithms, and what is read of the claims (S13)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from joserfc import jwk

from coordinator.login.bearer import Bearer, TokenLogins
from coordinator.login.password import REFUSED, Challenge, Outcome
from coordinator.login.penalties import Penalties
from coordinator.login.tokens import LEEWAY_SECONDS, KeysInvalid, NoKeys, Refused, Tokens, UnknownKey, read_keys
from coordinator.settings import TokenSettings
from store.clock import CLOCK
from store.users import Account
from tests.fix_issuer import AUDIENCE, ISSUER, key, public, token
from tests.tables import all_cases

pytestmark = pytest.mark.rule("S13")


def _tokens(*keys: jwk.Key, **more: Any) -> Tokens:
    settings = TokenSettings(issuer=ISSUER, audience=AUDIENCE, **more)
    return Tokens(settings, read_keys(public(*keys).encode()))


@all_cases(
    ("algorithm", "kind", "size"),
    [
        ("RS256", "RSA", 2048),
        ("RS512", "RSA", 2048),
        ("PS256", "RSA", 2048),
        ("ES256", "EC", "P-256"),
        ("ES384", "EC", "P-384"),
        ("ES512", "EC", "P-521"),
        ("Ed25519", "OKP", "Ed25519"),
        ("EdDSA", "OKP", "Ed25519"),
    ],
)
@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
def test_algorithms(algorithm: str, kind: str, size: int | str) -> None:
    signing = key("one", kind, size)
    claimed = _tokens(signing, key("other")).check(token(signing, algorithm).encode())
    assert (claimed.user, claimed.roles) == ("alice", ("clerks",))


@all_cases(
    "keys",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": 1}',
        b'{"keys": []}',
        b'{"keys": [1]}',
        b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}',
        b'{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}',
        b'{"keys": [{"kty": "EC", "crv": "secp256k1", "x": "AQ", "y": "AQ"}]}',
        b'{"keys": [{"kty": "PQ"}]}',
        b"[" * 100_000,
        b'{"keys": [' + b",".join([b"{}"] * 101) + b"]}",
        b"\xff",
    ],
)
def test_what_has_no_keys(keys: bytes) -> None:
    with pytest.raises(KeysInvalid, match="expected"):
        read_keys(keys)


@pytest.mark.filterwarnings("ignore:Key size should be")
def test_other_keys_are_left_out_and_nothing_private_is_kept() -> None:
    good = key("good").as_dict(private=True)
    short = jwk.generate_key("RSA", 1024, {"kid": "short"}).as_dict(private=False)
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"}
    hiding = {**key("hiding").as_dict(private=False), "use": "enc"}
    found = read_keys(json.dumps({"keys": [secret, short, hiding, {"kty": "new"}, good]}).encode())
    assert [(each["kid"], sorted(each)) for each in found] == [("good", ["e", "kid", "kty", "n", "use"])]


def test_a_key_for_one_algorithm_is_for_no_other() -> None:
    signing = key("one")
    given = [{**signing.as_dict(private=False), "alg": "RS256"}]
    found = Tokens(TokenSettings(issuer=ISSUER, audience=AUDIENCE), read_keys(json.dumps({"keys": given}).encode()))
    assert found.check(token(signing, "RS256").encode()).user == "alice"
    with pytest.raises(UnknownKey):
        found.check(token(signing, "PS256").encode())


@all_cases("algorithm", ["RS256", "PS256"])
def test_a_token_that_names_no_key_counts_if_any_key_for_its_algorithm_has_signed_it(algorithm: str) -> None:
    """As while the issuer changes its keys, when it has two."""
    for_others = [key("ed", "OKP", "Ed25519"), key("wider", "EC", "P-384"), key("curve", "EC", "P-256")]
    found = _tokens(*for_others, key("first"), key("second"))
    for signing in (key("first"), key("second")):
        assert found.check(token(signing, algorithm, {"kid": None}).encode()).user == "alice"
    assert found.check(token(for_others[-1], "ES256", {"kid": None}).encode()).user == "alice"


@all_cases("known", [["first"], ["first", "second"]])
def test_a_token_that_names_no_key_and_that_none_has_signed_is_by_an_unknown_key(known: list[str]) -> None:
    """By the next one, perhaps: the issuer is asked."""
    with pytest.raises(UnknownKey):
        _tokens(*map(key, known)).check(token(key("third"), header={"kid": None}).encode())


def test_without_keys() -> None:
    with pytest.raises(NoKeys):
        Tokens(TokenSettings(issuer=ISSUER, audience=AUDIENCE), None).check(token().encode())


@all_cases(
    ("name", "said", "roles"),
    [
        ("roles", {"roles": ["b", "a", "b"]}, ("a", "b")),
        ("roles", {"roles": "b a"}, ("a", "b")),
        ("roles", {"roles": None}, ()),
        ("roles", {"roles": {"a": "b"}}, ()),
        ("roles", {"roles": [1, None, [], "", "a\0", "\x1b[2J", "x" * 129, "\ud800", "kept"]}, ("kept",)),
        ("realm_access.roles", {"realm_access": {"roles": ["a"]}}, ("a",)),
        ("realm_access.roles", {"realm_access": ["roles"]}, ()),
        ("https://a.example/roles", {"https://a.example/roles": ["a"]}, ("a",)),
    ],
)
def test_roles(name: str, said: dict[str, Any], roles: tuple[str, ...]) -> None:
    found = _tokens(key("first"), roles_claim=name)
    assert found.check(token(**said).encode()).roles == roles


def test_another_claim_has_the_user() -> None:
    found = _tokens(key("first"), user_claim="preferred_username")
    assert found.check(token(preferred_username="Al\u00adice").encode()).user == "Alice"
    with pytest.raises(Refused, match="preferred_username"):
        found.check(token().encode())


@all_cases(("claim", "near", "far"), [("exp", -29, -31), ("nbf", 29, 31), ("iat", 29, 31)])
def test_the_clocks_may_differ_by_30_s(monkeypatch: pytest.MonkeyPatch, claim: str, near: int, far: int) -> None:
    now = int(time.time())
    monkeypatch.setattr(CLOCK, "now", lambda: now)
    found = _tokens(key("first"))
    counts: dict[str, Any] = {claim: now + near}
    assert found.check(token(**counts).encode()).user == "alice"
    refused: dict[str, Any] = {claim: now + far}
    with pytest.raises(Refused, match=r"expired|nbf|iat"):
        found.check(token(**refused).encode())


def test_a_token_expires_later_than_it_says_by_as_much() -> None:
    exp = int(time.time()) + 100
    assert _tokens(key("first")).check(token(exp=exp).encode()).expires == exp + 30 == exp + LEEWAY_SECONDS


def _logins(users: dict[str, Any]) -> TokenLogins:
    """Logins by token of a worker without a store: ``users`` is what it has of its users."""
    given: Any = SimpleNamespace(
        **{
            "penalties": Penalties(lambda: 0.0),
            "failures": SimpleNamespace(count=lambda *_: None),
            "call_later": lambda _seconds, then: then(),
            "enter": lambda *_: None,
            "leave": lambda *_: None,
            "look_up_account": lambda _name, found, _none: found(None),
            **users,
        }
    )
    loop: Any = SimpleNamespace(call_later=lambda *_: None)
    return TokenLogins(loop, given, _tokens(key("first")), lambda: None)


def _begun(logins: TokenLogins, said: list[Challenge | Outcome], made: str) -> Bearer:
    exchange = logins.begin("XOAUTH2", "192.0.2.1", said.append, lambda: None, lambda: None)
    exchange.take(f"user=\x01auth=Bearer {made}\x01\x01".encode())
    return exchange


def test_each_wrong_token_of_an_address_waits_longer_and_a_right_one_does_not() -> None:
    """Nothing waits for a wrong token but its own answer."""
    waits: list[float] = []
    said: list[Challenge | Outcome] = []
    logins = _logins({"call_later": lambda seconds, _: waits.append(seconds)})
    for _ in range(4):
        _begun(logins, said, token(exp=1))
    assert (waits, said) == ([0.1, 0.2, 0.4, 0.8], [])
    _begun(logins, said, token())
    assert [each.user for each in said if isinstance(each, Outcome)] == ["alice"]


def test_nothing_is_kept_of_a_connection_that_has_ended() -> None:
    logins = _logins({})
    exchange = _begun(logins, [], token())
    assert len(logins._ends) == 1
    exchange.end()
    assert logins._ends == {}


@all_cases("found", [None, Account("1", enabled=True)])
def test_a_user_who_is_disabled_during_the_look_up_does_not_come_in(found: Account | None) -> None:
    """``found``: what the look-up says, which began before."""
    told: list[Callable[[Account | None], None]] = []
    said: list[Challenge | Outcome] = []

    def look_up(_name: str, then: Callable[[Account | None], None], _none: object) -> None:
        told[0](Account("1", enabled=False))
        then(found)

    logins = _logins({"enter": lambda _name, changed: told.append(changed), "look_up_account": look_up})
    _begun(logins, said, token())
    assert (said, logins._ends) == ([REFUSED], {})
