"""The API of a service, which commands ask in place of the store with ``coordinator --url``: from another machine, too,
and without a password of the database.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from inspect import signature
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from coordinator.operations import Operation
    from coordinator.settings import Endpoint

_SECONDS = 30.0
#: entries of a page
_PAGE = 1000
#: A time in JSON, as :func:`coordinator.answers.plain` writes it.
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d:\d\d")
_FOLLOWING = re.compile(r'<(/[^>]*)>; rel="(next|prev)"')


class RemoteError(Exception):
    """The API has not done what it was asked for; the message says why. ``status``: None: it has not answered."""

    def __init__(self, said: str, status: int | None = None) -> None:
        super().__init__(said)
        self.status = status


class Remote:
    """Asks the API at one place, as an operator."""

    def __init__(self, place: Endpoint, token: str) -> None:
        self._place = place
        self._headers = {"Authorization": f"Bearer {token}"}

    def ask(self, run: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        """Return what the function ``run`` of an operation returns there with the arguments ``given``; of a list all
        pages, up to ``most`` entries.

        :raises RemoteError: it was not done, or goes on after the answer.
        """
        from coordinator.operations import ACTS, READS

        operation = next(each for each in (*ACTS, *READS) if each.run is run)
        path = _path(operation, given)
        others = {name: value for name, value in given.items() if f"{{{name}" not in operation.path}
        if operation in ACTS:
            body = json.dumps({name: _said(value) for name, value in others.items() if value is not None})
            done, _ = self._answer("POST", path, body)
            return done
        most = others.pop("most", None)
        if "most" in signature(run).parameters:
            others["limit"] = _PAGE if most is None else min(most, _PAGE)
        query = urlencode({name: _written(value) for name, value in others.items() if value is not None}, doseq=True)
        found, following = self._answer("GET", f"{path}?{query}")
        back = following is not None and following[2] == "prev"  # the audit: its latest page comes first
        while following is not None and (most is None or len(found) < most):
            page, following = self._answer("GET", following[1])
            found = page + found if back else found + page
        if not isinstance(found, list) or most is None:
            return found
        return found[-most:] if back else found[:most]

    def _answer(self, method: str, path: str, body: str | None = None) -> tuple[Any, re.Match[str] | None]:
        """Return the answer to a request, and the path of the page that follows, with its relation."""
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        host, port = self._place.host, self._place.port
        if self._place.scheme == "https":
            connection: HTTPConnection = HTTPSConnection(
                host, port, timeout=_SECONDS, context=ssl.create_default_context()
            )
        else:
            connection = HTTPConnection(host, port, timeout=_SECONDS)
        done = ""
        try:
            connection.connect()
            done = "" if body is None else "; what it was asked for may be done all the same"
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            value = json.loads(answer.read(), object_hook=_with_times)
        except (OSError, HTTPException, ValueError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise RemoteError(f"{self._place}: no answer of the API: {why}{done}") from None
        finally:
            connection.close()
        if answer.status == HTTPStatus.ACCEPTED:
            raise RemoteError(str(value["goes_on"]), answer.status)
        if answer.status != HTTPStatus.OK:
            raise RemoteError(str(value.get("detail", answer.reason)), answer.status)
        return value, _FOLLOWING.fullmatch(answer.headers.get("Link", ""))


def _path(operation: Operation, given: Mapping[str, Any]) -> str:
    """Return the path with its arguments."""
    from coordinator.operations import ROOT

    return ROOT + re.sub(r"{(\w+)(:path)?}", lambda each: quote(str(given[each[1]]), safe=""), operation.path)


def _said(value: Any) -> Any:
    """Return the value of an argument as it is in a body."""
    from pydantic import SecretStr

    if isinstance(value, datetime):
        return value.isoformat()
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _written(value: Any) -> Any:
    """Return the value of a parameter as it is written in a path."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, datetime) else value


def _with_times(values: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a JSON object, with its times."""
    return {
        name: datetime.fromisoformat(value) if isinstance(value, str) and _TIME.fullmatch(value) else value
        for name, value in values.items()
    }
