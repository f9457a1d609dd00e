"""Verifiers are what the store keeps in place of passwords (RFC 5802, section 3)."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import stringprep
import unicodedata

from store.users import Verifier

#: The mechanisms with passwords, the best first, and their hashes.
HASHES = {"SCRAM-SHA-512": "sha512", "SCRAM-SHA-256": "sha256"}
#: The mechanism whose verifier is compared with the password of `PLAIN`.
OF_PLAIN = "SCRAM-SHA-256"
#: The least that RFC 7677 allows: for `PLAIN` the worker computes them, 1 ms, while other clients wait. The number is
#: equal for all, as it would show whether a user exists.
ITERATIONS = 4096
_SALT_OCTETS = 16


def mac(mechanism: str, key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, HASHES[mechanism])


def digest(mechanism: str, octets: bytes) -> bytes:
    return hashlib.new(HASHES[mechanism], octets).digest()


def derived(mechanism: str, password: str, salt: bytes, iterations: int) -> Verifier:
    """Return the verifier of a prepared password."""
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
    return Verifier(
        salt=salt,
        iterations=iterations,
        stored_key=digest(mechanism, mac(mechanism, salted, b"Client Key")),
        server_key=mac(mechanism, salted, b"Server Key"),
    )


def new(password: str) -> dict[str, Verifier]:
    """Return verifiers of a new password, by mechanism."""
    return {each: derived(each, password, secrets.token_bytes(_SALT_OCTETS), ITERATIONS) for each in HASHES}


def decoy(mechanism: str, name: str, secret: bytes) -> Verifier:
    """Return a verifier that no password fits, for an unknown name: constant for each name, like that of a user.
    ``secret``: the store's key.
    """

    def made(part: str) -> bytes:
        return mac(mechanism, secret, f"{part} {mechanism} {name}".encode())

    return Verifier(
        salt=made("salt")[:_SALT_OCTETS], iterations=ITERATIONS, stored_key=made("stored"), server_key=made("server")
    )


def fits(password: str, mechanism: str, verifier: Verifier) -> bool:
    found = derived(mechanism, password, verifier.salt, verifier.iterations)
    return hmac.compare_digest(found.stored_key, verifier.stored_key)


# SASLprep (RFC 4013) brings names and passwords into the form in which they are compared, with the tables of the
# standard library.

#: The most octets in UTF-8: a SASL frame has at most 512 (part 5, section 5.3.1), and `PLAIN` sends both in one.
MOST_NAME_OCTETS = 128
MOST_PASSWORD_OCTETS = 255
#: The fewest characters of a new password: NIST SP 800-63B, section 5.1.1.2.
FEWEST_PASSWORD_CHARACTERS = 8

_PROHIBITED = (
    stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3, stringprep.in_table_c4,
    stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7, stringprep.in_table_c8,
    stringprep.in_table_c9,
)  # fmt: skip


class NotPrepared(ValueError):
    """The text cannot be a name or a password; the message says why, without quoting it."""


def prepared(text: str) -> str:
    """Apply SASLprep to ``text``: characters that look alike become one.

    :raises NotPrepared: it has a character that is not allowed, mixes directions of writing, or is empty.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(each) else each for each in text if not stringprep.in_table_b1(each)
    )
    made = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not made:
        raise NotPrepared("it is empty")
    for each in made:
        if any(within(each) for within in _PROHIBITED) or stringprep.in_table_a1(each):
            raise NotPrepared("a control character, or one that SASLprep (RFC 4013) does not allow")
    if any(map(stringprep.in_table_d1, made)):  # written from right to left (RFC 3454, section 6)
        ends = stringprep.in_table_d1(made[0]) and stringprep.in_table_d1(made[-1])
        if not ends or any(map(stringprep.in_table_d2, made)):
            raise NotPrepared("letters written from right to left beside others")
    return made


def prepared_name(text: str) -> str:
    """Prepare and check the name of a user. :raises NotPrepared:"""
    return _bounded(prepared(text), MOST_NAME_OCTETS)


def prepared_password(text: str) -> str:
    """Prepare and check a password. :raises NotPrepared:"""
    return _bounded(prepared(text), MOST_PASSWORD_OCTETS)


def new_password(text: str) -> str:
    """Prepare and check a new password of a user. :raises NotPrepared:"""
    made = prepared_password(text)
    if len(made) < FEWEST_PASSWORD_CHARACTERS:
        raise NotPrepared(f"it has {len(made)} characters, expected {FEWEST_PASSWORD_CHARACTERS} at least")
    return made


def _bounded(made: str, most: int) -> str:
    if len(made.encode()) > most:
        raise NotPrepared(f"longer than {most} octets in UTF-8")
    return made
