"""SCRAM by the examples of its RFCs, and names and passwords as they are compared (rule S1)."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from coordinator.login import password, verifiers
from coordinator.login.password import Challenge, Code, Outcome, Reply
from store.users import Verifier
from tests.tables import all_cases


class Pencils:
    """In place of a comparison: one user, whose password is ``pencil``."""

    user = "user"

    def __init__(self, mechanism: str, salt: bytes) -> None:
        self._verifier = verifiers.derived(mechanism, "pencil", salt, 4096)

    def look_up(self, name: str, mechanism: str, then: Callable[[Verifier], None], say: Reply) -> None:
        assert name == self.user
        then(self._verifier)

    def compare(self, fits: Callable[[Verifier], Outcome | None], say: Reply) -> None:
        say(fits(self._verifier) or Outcome(Code.AUTH))


# RFC 7677, section 3
@pytest.mark.rule("S1")
def test_the_example_of_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base64, "b64encode", _with_nonce(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"))
    said: list[Challenge | Outcome] = []
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    exchange = password.Scram("SCRAM-SHA-256", Pencils("SCRAM-SHA-256", salt), said.append)  # type: ignore[arg-type]
    exchange.take(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert said == [
        Challenge(b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    ]
    exchange.take(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert said[1:] == [Outcome(Code.OK, b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "user")]


def _with_nonce(nonce: bytes) -> Callable[[bytes], bytes]:
    """The first that is encoded is the server's part of the nonce."""
    real, given = base64.b64encode, [nonce]
    return lambda octets: given.pop() if given else real(octets)


# -- names and passwords (RFC 4013)


@pytest.mark.rule("S1")
@all_cases(
    ("text", "made"),
    [
        ("I\u00adX", "IX"), ("user", "user"), ("USER", "USER"), ("\u00aa", "a"), ("\u2168", "IX"),
        ("a\u00a0b", "a b"), ("\u0627\u0628", "\u0627\u0628"), ("\uff41", "a"),
    ],
)  # fmt: skip
def test_what_looks_alike_is_one(text: str, made: str) -> None:
    assert verifiers.prepared(text) == made


@pytest.mark.rule("S1", "S7")
@all_cases(
    "text",
    ["", "\u00ad", "\x07", "a\nb", "a\0b", "\u0627\u0031", "\u0627a\u0628", "\ue000", "\ufffd", "\u200e", "\U000e0001"],
)
def test_what_can_be_no_name(text: str) -> None:
    with pytest.raises(verifiers.NotPrepared):
        verifiers.prepared(text)


@pytest.mark.rule("S1")
def test_names_and_passwords_have_a_length() -> None:
    assert verifiers.prepared_name("é" * 64) == "é" * 64
    assert verifiers.prepared_password("x" * 255) == "x" * 255
    for prepare, text in ((verifiers.prepared_name, "é" * 64 + "x"), (verifiers.prepared_password, "x" * 256)):
        with pytest.raises(verifiers.NotPrepared, match="longer than"):
            prepare(text)


@pytest.mark.rule("S1")
@pytest.mark.parametrize("mechanism", verifiers.HASHES)
def test_a_decoy_looks_like_a_verifier(mechanism: str) -> None:
    """The same of each name and store, and another of any other."""
    real = verifiers.new("pencil")[mechanism]
    decoy = verifiers.decoy(mechanism, "user", b"secret")
    for part in ("salt", "stored_key", "server_key"):
        assert len(getattr(decoy, part)) == len(getattr(real, part))
    assert decoy.iterations == real.iterations
    assert verifiers.decoy(mechanism, "user", b"secret") == decoy
    others = [verifiers.decoy(mechanism, "user2", b"secret"), verifiers.decoy(mechanism, "user", b"other")]
    assert len({each.salt for each in (decoy, real, *others)}) == 4
    assert decoy.stored_key != decoy.server_key
