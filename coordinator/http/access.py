"""Access says which requests are answered, by where they come from and what they show (S11)."""

from __future__ import annotations

import hmac
from http import HTTPStatus
from urllib.parse import urlsplit

from fastapi import Request

from coordinator.http.problems import Refused
from coordinator.process.listeners import loopback
from coordinator.process.measuring import Measuring

#: The header of an answer to a request without the token.
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="metrics"'}
_READING = ("GET", "HEAD")


class Access:
    """Metrics need the token, if there is one. The API needs that token, on loopback and to read alone, or the token of
    an operator.
    """

    def __init__(self, measuring: Measuring, *, local: bool) -> None:
        """``measuring`` has the tokens; ``local``: only this machine can connect."""
        self._measuring = measuring
        self._local = local

    def shown(self, request: Request) -> bool:
        """Return whether the request has the token of the metrics, if one is needed."""
        token = self._measuring.token
        return token is None or hmac.compare_digest(_token_of(request), token)

    def operator(self, request: Request) -> str | None:
        """Return the name of the operator whose token the request has; None: it has none of one."""
        given, found = _token_of(request), None
        for token, name in self._measuring.operators.items():
            if hmac.compare_digest(given, token):
                found = name
        return found

    async def admit(self, request: Request) -> None:
        """Check that a request may use the API; ``request.state.operator`` is the name of the operator, or None.

        :raises Refused: it may not.
        """
        if not self._local and request.url.scheme != "https":
            raise Refused(HTTPStatus.FORBIDDEN, "the API is answered on loopback, or by https://: metrics.listen")
        if self._local and not _names_loopback(request.headers.get("Host", "")):
            raise Refused(HTTPStatus.FORBIDDEN, "the header Host names another machine, expected localhost")
        token, operators = self._measuring.token, self._measuring.operators
        if token is None and not operators:
            needed = "metrics.token or metrics.operators"
            raise Refused(HTTPStatus.FORBIDDEN, f"the API is answered where {needed} is set, to who shows a token")
        operator = request.state.operator = self.operator(request)
        if operator is None:
            if token is None or not self.shown(request):
                raise Refused(
                    HTTPStatus.UNAUTHORIZED, "expected the token of metrics.token, or one of metrics.operators"
                )
            if not self._local:
                raise Refused(
                    HTTPStatus.FORBIDDEN, "metrics.token is for loopback, expected a token of metrics.operators"
                )
            if request.method not in _READING:
                raise Refused(HTTPStatus.FORBIDDEN, "metrics.token only reads, expected a token of metrics.operators")
        if any("\0" in each for each in (*request.path_params.values(), *request.query_params.values())):
            raise Refused(HTTPStatus.BAD_REQUEST, "expected no NUL character: no name has one")


def _token_of(request: Request) -> bytes:
    """Return the token that a request shows; empty: none."""
    kind, _, shown = request.headers.get("Authorization", "").partition(" ")
    return shown.strip().encode() if kind.lower() == "bearer" else b""


def _names_loopback(host: str) -> bool:
    """Return whether a header Host names this machine: a page of a browser has the name that it was loaded by, even
    where that name leads to loopback (DNS rebinding).
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or loopback(name)
    except ValueError:
        return False
