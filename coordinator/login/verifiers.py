"""What the store keeps in place of a password (RFC 5802, section 3)."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from store.users import Verifier

#: The mechanisms that compare passwords, the best first, and their hashes.
HASHES = {"SCRAM-SHA-512": "sha512", "SCRAM-SHA-256": "sha256"}
#: The one by which a password that came in whole is compared.
OF_PLAIN = "SCRAM-SHA-256"
#: The least that RFC 7677 allows: `PLAIN` makes the worker do them, 1 ms, while other clients wait. The same for all,
#: as the number tells whether a user is there.
ITERATIONS = 4096
_SALT_OCTETS = 16


def mac(mechanism: str, key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, HASHES[mechanism])


def digest(mechanism: str, octets: bytes) -> bytes:
    return hashlib.new(HASHES[mechanism], octets).digest()


def derived(mechanism: str, password: str, salt: bytes, iterations: int) -> Verifier:
    """The verifier of a password that is prepared."""
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
    return Verifier(
        salt=salt,
        iterations=iterations,
        stored_key=digest(mechanism, mac(mechanism, salted, b"Client Key")),
        server_key=mac(mechanism, salted, b"Server Key"),
    )


def new(password: str) -> dict[str, Verifier]:
    """Verifiers of a new password, by mechanism."""
    return {each: derived(each, password, secrets.token_bytes(_SALT_OCTETS), ITERATIONS) for each in HASHES}


def decoy(mechanism: str, name: str, secret: bytes) -> Verifier:
    """A verifier that no password fits, for a name that is not there: always the same for the same name, as that of a
    user would be. ``secret``: the store's.
    """

    def made(part: str) -> bytes:
        return mac(mechanism, secret, f"{part} {mechanism} {name}".encode())

    return Verifier(
        salt=made("salt")[:_SALT_OCTETS], iterations=ITERATIONS, stored_key=made("stored"), server_key=made("server")
    )


def fits(password: str, mechanism: str, verifier: Verifier) -> bool:
    found = derived(mechanism, password, verifier.salt, verifier.iterations)
    return hmac.compare_digest(found.stored_key, verifier.stored_key)
