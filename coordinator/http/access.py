"""Access says which requests are answered, by where they come from and what they show (S11)."""

from __future__ import annotations

import hmac
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

import structlog
from fastapi import Request

from coordinator.http.problems import Refused
from coordinator.process.listeners import loopback
from coordinator.process.measuring import Measuring

_log: structlog.stdlib.BoundLogger = structlog.get_logger()

#: The header of an answer to a request without the token.
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="metrics"'}
_READING = ("GET", "HEAD")
_DOTS_OF_A_JWT = 2


class Person(NamedTuple):
    """Who has a token. ``acts``: an operator, else a reader. ``token``: what the audit has of a JSON Web Token."""

    name: str
    acts: bool
    token: str = ""


class Access:
    """Metrics need the token, if there is one. The API needs that token, on loopback and to read alone, or the token of
    an operator: one of ``metrics.operators``, or a JSON Web Token whose roles say so.
    """

    def __init__(self, measuring: Measuring, *, local: bool) -> None:
        """``measuring`` has the tokens; ``local``: only this machine can connect."""
        self._measuring = measuring
        self._local = local

    def shown(self, request: Request) -> bool:
        """Return whether the request has the token of the metrics, if one is needed."""
        token = self._measuring.token
        return token is None or hmac.compare_digest(_token_of(request), token)

    def _person(self, request: Request) -> Person | None:
        """Return whose token the request has; None: it is nobody's.

        :raises Refused: it is a JSON Web Token that does not count.
        """
        given, found = _token_of(request), None
        for token, name in self._measuring.operators.items():
            if hmac.compare_digest(given, token):
                found = Person(name, acts=True)
        if found is not None or self._measuring.tokens is None or given.count(b".") != _DOTS_OF_A_JWT:
            return found
        of_metrics = self._measuring.token is not None and self.shown(request)
        return None if of_metrics else self._of_jwt(given)

    def _of_jwt(self, given: bytes) -> Person:
        from coordinator.login import tokens  # loaded by then: coordinator/commands/serve.py

        assert self._measuring.tokens is not None
        settings = self._measuring.tokens.settings
        try:
            claimed = self._measuring.tokens.check(given)
        except tokens.NoKeys:
            text = "the keys of the issuer of tokens are not read yet; try again later"
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, text) from None
        except tokens.Refused as error:
            if isinstance(error, tokens.UnknownKey):
                self._measuring.ask_issuer()
            _log.info("a token for the API refused", user=error.user, reason=str(error))
            raise Refused(HTTPStatus.UNAUTHORIZED, f"expected a token that counts: {error}") from None
        told = f"token of {settings.issuer}, subject {claimed.subject}"
        if settings.operator_role in claimed.roles:
            return Person(claimed.user, acts=True, token=told)
        if settings.reader_role in claimed.roles:
            return Person(claimed.user, acts=False, token=told)
        needed = "tokens.operator_role or tokens.reader_role"
        raise Refused(HTTPStatus.FORBIDDEN, f"none of the token's roles is the one of {needed}")

    async def admit(self, request: Request) -> None:
        """Check that a request may use the API; ``request.state.operator`` is the operator, or None.

        :raises Refused: it may not.
        """
        if not self._local and request.url.scheme != "https":
            raise Refused(HTTPStatus.FORBIDDEN, "the API is answered on loopback, or by https://: metrics.listen")
        if self._local and not _names_loopback(request.headers.get("Host", "")):
            raise Refused(HTTPStatus.FORBIDDEN, "the header Host names another machine, expected localhost")
        token, operators = self._measuring.token, self._measuring.operators
        if token is None and not operators and not self._measuring.by_roles:
            needed = "metrics.token, metrics.operators or tokens.operator_role"
            raise Refused(HTTPStatus.FORBIDDEN, f"the API is answered where {needed} is set, to who shows a token")
        person = self._person(request)
        request.state.operator = person if person is not None and person.acts else None
        request.state.reads_by = "metrics.token" if person is None else "tokens.reader_role"
        if person is None:
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
        elif not person.acts and request.method not in _READING:
            raise Refused(HTTPStatus.FORBIDDEN, "tokens.reader_role only reads, expected the role tokens.operator_role")
        given = (*request.path_params.items(), *request.query_params.multi_items())
        if any("\0" in each for _, each in given):
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
