"""Problems are errors of the API, each with one sentence: RFC 9457, ``application/problem+json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any

from fastapi.responses import JSONResponse

from coordinator.answers import InTheWay, Malformed, TakesTooLong, Unknown
from store.connections import ClosedAlready, NoSuchConnection
from store.errors import (
    AddressGone,
    AlreadyDecided,
    CannotCheck,
    CannotCommit,
    Contended,
    Locked,
    NotUndecided,
    StoreError,
)
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
#: Errors with which an operation refuses, whose messages are for the person who asks.
KNOWN = (InTheWay, Malformed, TakesTooLong, Unknown, StoreError)
#: Where the framework finds an argument, which it names first.
_PLACES = (("query",), ("path",), ("header",), ("body",))


class Refused(Exception):
    """A request is not answered; the message is one sentence that says why. ``partly``: a part of it may be done."""

    def __init__(self, status: HTTPStatus, detail: str, *, partly: bool = False) -> None:
        super().__init__(f"{detail}; a part of it may be done" if partly else detail)
        self.status = status
        self.partly = partly


@dataclass(frozen=True, kw_only=True)
class ProblemDetails:
    """An error in one sentence (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


class Problem(JSONResponse):
    """An error as its answer."""

    media_type = "application/problem+json"

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        told = ProblemDetails(type="about:blank", title=status.phrase, status=status, detail=detail)
        super().__init__(asdict(told), status)


def refused(error: Exception, *, partly: bool = False) -> Refused:
    """Return the refusal of a request that the store, or a rule, refuses; what is not known here is the store's."""
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), HTTPStatus.SERVICE_UNAVAILABLE)
    return Refused(status, str(error), partly=partly)


def invalid(errors: Iterable[Mapping[str, Any]]) -> Refused:
    """Return the refusal of a request whose arguments pydantic does not take: each is named, with what is wrong."""
    wrong: dict[str, dict[str, None]] = {}
    for each in errors:
        # what follows the argument is the number of an entry, or one of several types that it can have
        place = each["loc"][1:] if each["loc"][:1] in _PLACES else each["loc"]
        wrong.setdefault(str(place[0]) if place else "body", {})[each["msg"]] = None
    said = (f"{name}: {', or '.join(messages)}" for name, messages in wrong.items())
    return Refused(HTTPStatus.BAD_REQUEST, "; ".join(said))
