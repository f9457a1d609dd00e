"""Problems are errors of the API, each with one sentence: RFC 9457, ``application/problem+json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi.responses import JSONResponse

from coordinator.answers import InTheWay, Malformed, TakesTooLong, Unknown
from store.connections import ClosedAlready, NoSuchConnection
from store.errors import AddressGone, AlreadyDecided, CannotCheck, CannotCommit, Contended, Locked, NotUndecided
from store.runs import Superseded

_STATUSES: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (Malformed, HTTPStatus.BAD_REQUEST),
    (Unknown, HTTPStatus.NOT_FOUND),
    (InTheWay, HTTPStatus.CONFLICT),
    (TakesTooLong, HTTPStatus.SERVICE_UNAVAILABLE),
    (NotUndecided, HTTPStatus.NOT_FOUND),
    (NoSuchConnection, HTTPStatus.NOT_FOUND),
    (Locked, HTTPStatus.SERVICE_UNAVAILABLE),
    (Contended, HTTPStatus.CONFLICT),
    (AlreadyDecided, HTTPStatus.CONFLICT),
    (CannotCommit, HTTPStatus.CONFLICT),
    (CannotCheck, HTTPStatus.CONFLICT),
    (ClosedAlready, HTTPStatus.CONFLICT),
    (AddressGone, HTTPStatus.CONFLICT),
    (Superseded, HTTPStatus.CONFLICT),
)


class Refused(Exception):
    """A request is not answered; the message is one sentence that says why."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Problem(JSONResponse):
    """An error as its answer."""

    media_type = "application/problem+json"

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__({"type": "about:blank", "title": status.phrase, "status": status, "detail": detail}, status)


def refused(error: Exception) -> Refused:
    """Return the refusal of a request that the store, or a rule, refuses; what is not known here is the store's."""
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), HTTPStatus.SERVICE_UNAVAILABLE)
    return Refused(status, str(error))


def invalid(errors: Iterable[Mapping[str, Any]]) -> Refused:
    """Return the refusal of a request whose arguments pydantic does not take."""
    found = (f"{each['loc'][-1] if each['loc'] else 'body'}: {each['msg']}" for each in errors)
    return Refused(HTTPStatus.BAD_REQUEST, "; ".join(found))
