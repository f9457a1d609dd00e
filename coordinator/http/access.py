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


class Access:
    """Metrics need the token, if there is one; the API needs a token, and loopback as well."""

    def __init__(self, measuring: Measuring, *, local: bool) -> None:
        """``measuring`` has the token; ``local``: only this machine can connect."""
        self._measuring = measuring
        self._local = local

    def shown(self, request: Request) -> bool:
        """Return whether the request has the token, if one is needed."""
        token = self._measuring.token
        if token is None:
            return True
        kind, _, shown = request.headers.get("Authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), token)

    async def admit(self, request: Request) -> None:
        """Check that a request may use the API.

        :raises Refused: it may not.
        """
        if not self._local:
            raise Refused(HTTPStatus.FORBIDDEN, "the API is answered at addresses of loopback alone: metrics.listen")
        if not _names_loopback(request.headers.get("Host", "")):
            raise Refused(HTTPStatus.FORBIDDEN, "the header Host names another machine, expected localhost")
        if self._measuring.token is None:
            raise Refused(HTTPStatus.FORBIDDEN, "the API is answered where metrics.token is set, to who shows it")
        if not self.shown(request):
            raise Refused(HTTPStatus.UNAUTHORIZED, "expected the token of metrics.token")
        if any("\0" in each for each in (*request.path_params.values(), *request.query_params.values())):
            raise Refused(HTTPStatus.BAD_REQUEST, "expected no NUL character: no name has one")


def _names_loopback(host: str) -> bool:
    """Return whether a header Host names this machine: a page of a browser has the name that it was loaded by, even
    where that name leads to loopback (DNS rebinding).
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or loopback(name)
    except ValueError:
        return False
