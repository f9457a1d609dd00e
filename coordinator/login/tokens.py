"""Tokens are JSON Web Tokens (RFC 7519) that an issuer has signed: they are checked by its public keys, without a query
to the issuer or to the store (rule S13).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from joserfc import errors, jwk, jws, jwt
from joserfc.jws import JWSRegistry

from coordinator.login import verifiers
from coordinator.printable import printable
from coordinator.secret_file import FileInvalid, readable
from store.clock import CLOCK

if TYPE_CHECKING:
    from pathlib import Path

    from coordinator.settings import TokenSettings

#: Signatures by a private key: neither `none`, nor a secret that both sides have, in place of which an attacker could
#: take the public key (RFC 8725, section 2.1).
ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA",
)  # fmt: skip
#: How far the issuer's clock may be from the database's: a token counts so much earlier and longer than it says.
LEEWAY_SECONDS = 30
_SMALLEST_RSA = 2048
_CURVES = ("P-256", "P-384", "P-521", "Ed25519")
_MOST_KEYS = 100
#: What is kept of a key: its public part.
_OF_A_KEY = ("kty", "kid", "use", "alg", "n", "e", "crv", "x", "y")
_MOST_ROLES = 100
#: The characters of an issuer or a subject in the audit.
_MOST_SHOWN = 128

#: Public keys, as JWKS has them (RFC 7517), without what is not needed.
Keys = Sequence[Mapping[str, str]]


class KeysInvalid(ValueError):
    """The text has no keys that tokens can be checked by; the message says what was expected."""


def read_keys(octets: bytes) -> Keys:
    """Return the keys of a JWKS by which tokens can be checked: RSA, elliptic curves, Ed25519; others are left out.

    :raises KeysInvalid: there is none, or it is no JWKS.
    """
    try:
        found = json.loads(octets)["keys"]
        given = [{name: each[name] for name in _OF_A_KEY if isinstance(each.get(name), str)} for each in found]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise KeysInvalid('expected JSON with public keys (JWKS): {"keys": [...]}') from None
    if len(given) > _MOST_KEYS:
        raise KeysInvalid(f"{len(given)} keys in it, expected {_MOST_KEYS} at most")
    usable = [each for each in given if _usable(each)]
    if not usable:
        raise KeysInvalid(
            f"none of its keys is for signatures and public: expected RSA of {_SMALLEST_RSA} bits or more, or "
            + ", ".join(_CURVES)
        )
    return usable


def _usable(key: dict[str, str]) -> bool:
    if key.get("kty") == "oct" or key.get("use", "sig") != "sig" or key.get("crv", _CURVES[0]) not in _CURVES:
        return False
    try:
        made = _key(key)
    except Exception:  # noqa: BLE001 - whatever the library says of it: other keys of the issuer count
        return False
    return not isinstance(made, jwk.RSAKey) or made.public_key.key_size >= _SMALLEST_RSA


def _key(key: Mapping[str, str]) -> jwk.Key:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of keys that are too short, which :func:`_usable` leaves out
        return jwk.import_key({**key})


def read_file(path: Path) -> Keys:
    """Return the keys of the file that ``tokens.keys`` names.

    :raises FileInvalid: it cannot be read, or has no keys.
    """
    try:
        return read_keys(readable("tokens.keys", path))
    except KeysInvalid as error:
        raise FileInvalid(f"tokens.keys: {path}: {error}") from None


class Refused(Exception):
    """A token does not count; the message says why, without the token. ``user``: whom it names, if it is genuine."""

    def __init__(self, why: str, user: str | None = None) -> None:
        super().__init__(why)
        self.user = user


class UnknownKey(Refused):
    """It is signed by a key that the issuer did not have when its keys were read."""


class NoKeys(Exception):
    """The keys of the issuer are not known yet."""


class Claimed(NamedTuple):
    """What a genuine token says. ``expires``: in seconds since 1970, by the database's clock."""

    user: str
    roles: tuple[str, ...]
    subject: str
    expires: float


class Tokens:
    """Checks tokens by the settings and the issuer's keys."""

    def __init__(self, settings: TokenSettings, keys: Keys | None) -> None:
        """``keys``: None: they are not known yet."""
        self.settings = settings
        self._keys: jwk.KeySet | None = None
        self._registry = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
        if keys is not None:
            self.learn(keys)

    def learn(self, keys: Keys) -> None:
        self._keys = jwk.KeySet([_key(each) for each in keys])

    def check(self, token: bytes) -> Claimed:
        """Return what a token claims.

        :raises Refused: it does not count here, or not now.
        :raises NoKeys:
        """
        claims = self._genuine(token)
        issuer, subject = (printable(str(claims.get(name)), _MOST_SHOWN) for name in ("iss", "sub"))
        told = f"issuer {issuer}, subject {subject}"
        user = self._user(claims)
        registry = jwt.JWTClaimsRegistry(
            int(CLOCK.now()),
            LEEWAY_SECONDS,
            iss={"essential": True, "value": self.settings.issuer or ""},
            aud={"essential": True, "value": self.settings.audience or ""},
            exp={"essential": True},
        )
        try:
            registry.validate(claims)
        except errors.ExpiredTokenError:
            raise Refused(f"the token has expired ({told})", user) from None
        except errors.ClaimError as error:
            # what another issuer with the same keys calls so may be another user
            named = None if error.claim == "iss" else user
            raise Refused(f"the claim {error.claim} of the token is missing or wrong ({told})", named) from None
        if user is None:
            text = f"the claim {self.settings.user_claim} of the token is missing, or can be no name of a user ({told})"
            raise Refused(text)
        return Claimed(user, self._roles(claims), subject, claims["exp"] + LEEWAY_SECONDS)

    def _genuine(self, token: bytes) -> dict[str, Any]:
        """Return the claims of a token that the issuer has signed."""
        if self._keys is None:
            raise NoKeys
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # EdDSA has another name since RFC 9864
                return self._decoded(token, self._keys)
        except errors.InvalidKeyIdError:
            raise UnknownKey("the issuer has no such key as the token is signed by (kid)") from None
        except errors.UnsupportedAlgorithmError:
            raise Refused("the token is signed by an algorithm that is not taken (alg)") from None
        except errors.BadSignatureError:
            raise Refused("the signature of the token is wrong") from None
        except Exception:  # noqa: BLE001 - a stranger's octets: whatever the library says of them, they are no token
            raise Refused("it is no JSON Web Token") from None

    def _decoded(self, token: bytes, keys: jwk.KeySet) -> dict[str, Any]:
        if "kid" in jws.extract_compact(token, registry=self._registry).headers():
            return jwt.decode(token, keys, registry=self._registry).claims
        for key in keys:  # an issuer may name none (RFC 7515, section 4.1.4), also while it has an old and a new one
            try:
                return jwt.decode(token, key, registry=self._registry).claims
            except (errors.BadSignatureError, errors.KeyParameterError, errors.InvalidKeyCurveError):
                continue  # it has not signed it, or is for other algorithms
        raise errors.InvalidKeyIdError("no key has signed it")

    def _user(self, claims: Mapping[str, Any]) -> str | None:
        found = _claim(claims, self.settings.user_claim)
        try:
            # what follows costs time by the character
            if isinstance(found, str) and len(found) <= verifiers.MOST_NAME_OCTETS:
                return verifiers.prepared_name(found)
        except verifiers.NotPrepared:
            pass
        return None

    def _roles(self, claims: Mapping[str, Any]) -> tuple[str, ...]:
        found = _claim(claims, self.settings.roles_claim)
        given = found.split() if isinstance(found, str) else found if isinstance(found, list) else []
        return tuple(sorted({each for each in given[:_MOST_ROLES] if _is_role(each)}))


def _is_role(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and 0 < len(value.encode()) <= verifiers.MOST_NAME_OCTETS


def _claim(claims: Mapping[str, Any], name: str) -> object:
    """Return a claim by its name, which may have dots; or in the claim before a dot, the one of the name behind it."""
    if name in claims:
        return claims[name]
    first, dot, rest = name.partition(".")
    within = claims.get(first)
    return _claim(within, rest) if dot and isinstance(within, dict) else None
