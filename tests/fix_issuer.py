"""An issuer of tokens: its keys, tokens right and wrong, and where it publishes its keys by HTTPS."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from joserfc import jwk, jws

from coordinator.login.tokens import ALGORITHMS
from tests.fix_certificates import Authority, key_of

AUDIENCE = "coordinator"
#: Of an issuer whose keys are in a file.
ISSUER = "https://issuer.example"


@functools.cache
def key(kid: str, kind: str = "RSA", size: int | str = 2048) -> jwk.Key:
    """The private key of this name, the same each time."""
    parameters: Any = {"kid": kid, "use": "sig"}
    made: Any = jwk.generate_key(kind, size, parameters)  # type: ignore[call-overload]
    found: jwk.Key = made
    return found


def public(*keys: jwk.Key) -> str:
    """A JWKS."""
    return json.dumps({"keys": [each.as_dict(private=False) for each in keys]})


def claims(**more: Any) -> dict[str, Any]:
    """Those of a right token, for an hour; ``more`` in their place, None: without it."""
    now = int(time.time())
    given = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 3600, "roles": ["clerks"], **more}
    return {name: value for name, value in given.items() if value is not None}


def token(signing: jwk.Key | None = None, algorithm: str = "RS256", header: Any = None, **more: Any) -> str:
    """A token; without further arguments a right one, signed by the key ``first``. ``header``: as of :func:`claims`."""
    signing = key("first") if signing is None else signing
    given = {"alg": algorithm, "kid": signing.kid, **(header or {})}
    head = {name: value for name, value in given.items() if value is not None}
    registry = jws.JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
    return jws.serialize_compact(head, json.dumps(claims(**more)), signing, registry=registry)


def unsigned(**more: Any) -> str:
    """One that says ``alg: none``."""
    return f"{_part({'alg': 'none', 'kid': 'first'})}.{_part(claims(**more))}."


def signed_by_the_public_key(**more: Any) -> str:
    """One that takes the public key for the secret of HS256 (RFC 8725, section 2.1)."""
    signing = key("first")
    assert isinstance(signing, jwk.RSAKey)
    secret = signing.as_pem(private=False)
    begin = f"{_part({'alg': 'HS256', 'kid': 'first'})}.{_part(claims(**more))}"
    return f"{begin}.{_base64(hmac.digest(secret, begin.encode(), hashlib.sha256))}"


def _part(value: object) -> str:
    return _base64(json.dumps(value).encode())


def _base64(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).decode().rstrip("=")


class Issuer:
    """Publishes what :attr:`pages` has, by path. ``asked``: the paths that were asked for."""

    def __init__(self, ca: Authority, port: int = 0) -> None:
        self.pages: dict[str, str] = {}
        self.asked: list[str] = []
        certificate = ca.folder / "issuer.pem"
        if not certificate.exists():
            ca.sign("issuer", alternative="DNS:localhost")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key_of(certificate))
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                body = issuer.pages.get(self.path, "").encode()
                self.send_response(200 if body else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """It is silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self.url = f"https://localhost:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def publish(self, *keys: jwk.Key) -> None:
        self.pages["/.well-known/openid-configuration"] = json.dumps(
            {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        )
        self.pages["/keys"] = public(*keys)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def issuing(ca: Authority, *keys: jwk.Key) -> Iterator[Issuer]:
    """An issuer that has published these keys."""
    issuer = Issuer(ca)
    try:
        issuer.publish(*keys)
        yield issuer
    finally:
        issuer.close()


def settings_of_file(folder: Path, *keys: jwk.Key) -> dict[str, str]:
    """Settings of a service that takes tokens signed by these keys, which are in a file."""
    file = folder / "keys.json"
    file.write_text(public(*(keys or (key("first"),))))
    return {
        "tokens.issuer": ISSUER, "tokens.audience": AUDIENCE, "tokens.keys": str(file), "login.plain": "always",
        "log.level": "debug",
    }  # fmt: skip
