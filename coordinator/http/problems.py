"""Problems are errors of the API, each with one sentence: RFC 9457, ``application/problem+json``."""

from __future__ import annotations

from http import HTTPStatus

from fastapi.responses import JSONResponse


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
