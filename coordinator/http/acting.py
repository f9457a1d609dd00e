"""Acting is to change what the store has: ``POST``, with a JSON object that gives the arguments and the reason. The
audit has the reason, and the name of the operator whose token the request shows.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cache
from http import HTTPStatus
from re import findall
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import structlog
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from coordinator.answers import Malformed, check_reason
from coordinator.http.access import Person
from coordinator.http.api import answer
from coordinator.http.problems import KNOWN, Refused, invalid, refused
from coordinator.operations import ACTS, OF_THE_SERVICE, ROOT, Operation
from store import audit, migrations
from store.database import BRIEF, COUNTING, Commits, connected

if TYPE_CHECKING:
    from coordinator.settings import RetentionSettings

#: Acts at one time; so many connections more the database has to have.
_MOST_ACTING = 2
#: Seconds after which a request is answered whether its act has ended or not, and no other piece of some acts begins.
_ANSWER_SECONDS = 8.0
_PIECES_SECONDS = 4.0
#: octets of a request's body
_LONGEST_BODY = 1 << 16
_JSON = "application/json"

_Reason = Annotated[str | None, Field(description="Why; kept in the audit.")]

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Acting:
    """Lets few requests act at one time, each in a thread: an act ends, whatever becomes of its request."""

    def __init__(self, url: str, retention: RetentionSettings) -> None:
        self._url = url
        #: the arguments that no request gives
        self.service = {"kept": timedelta(hours=retention.hours), "seconds": _PIECES_SECONDS}
        self._threads = ThreadPoolExecutor(_MOST_ACTING, thread_name_prefix="act")
        self._free = threading.BoundedSemaphore(_MOST_ACTING)

    def begin(self, operation: Operation, given: Mapping[str, Any], operator: str, place: str) -> Future[Any]:
        """Begin an act with the arguments ``given``, and the reason among them; ``place``: where the operator is. What
        it returns raises :class:`Refused`, which says whether a part is done.

        :raises Refused: others are under way.
        """
        if not self._free.acquire(blocking=False):
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, f"{_MOST_ACTING} other acts are under way; try again later")
        actor = audit.Actor(os_user=operator, host=place, reason=given.get("reason"))
        doing = self._threads.submit(self._do, operation, given, actor)
        doing.add_done_callback(lambda _: self._free.release())
        return doing

    async def act(self, operation: Operation, given: Mapping[str, Any], operator: str, place: str) -> Any:
        """Return what was done, as :meth:`begin`; None: the act goes on.

        :raises Refused: it was not done, or not to its end.
        """
        doing = self.begin(operation, given, operator, place)
        waited = asyncio.wrap_future(doing)
        waited.add_done_callback(lambda done: done.exception())  # it is known where the request has ended before
        ended, _ = await asyncio.wait({waited}, timeout=_ANSWER_SECONDS)
        if not ended:
            doing.add_done_callback(lambda done: _tell(operation, done))
            return None
        return doing.result()

    def _do(self, operation: Operation, given: Mapping[str, Any], actor: audit.Actor) -> Any:
        patience = COUNTING if operation.long else BRIEF
        takes = inspect.signature(operation.run).parameters
        taken = {name: value for name, value in {**given, **self.service}.items() if name in takes}
        commits = None
        try:
            with connected(self._url, application_name="coordinator api", patience=patience) as connection:
                migrations.check(connection)
                audit.act_as(connection, actor)
                if operation.long:  # others have one SQL transaction
                    commits = Commits(connection)
                return operation.run(connection, **taken)
        except KNOWN as error:
            raise refused(error, partly=commits is not None and commits.begun) from None


def _tell(operation: Operation, done: Future[Any]) -> None:
    """Log the end of an act whose request was answered before."""
    error = done.exception()
    if error is None:
        _log.info("an act has ended", act=operation.command)
    else:
        reason = str(error) if isinstance(error, Refused) else type(error).__name__
        _log.warning("an act has failed", act=operation.command, reason=reason)


#: The application has its acts in ``state.acting``.
routes = APIRouter(prefix=ROOT)


def _add(operation: Operation) -> None:
    model, named = model_of(operation), path_of(operation)
    routes.add_api_route(
        operation.path,
        _endpoint(operation, model),
        methods=["POST"],
        summary=f"coordinator {operation.command}",
        description=inspect.getdoc(operation.run) or "",
        responses={202: {"description": "It is begun, and goes on."}},
        openapi_extra={
            "parameters": [
                {"name": each, "in": "path", "required": True, "schema": {"type": "string"}} for each in named
            ],
            "requestBody": {"required": True, "content": {_JSON: {"schema": model.model_json_schema()}}},
        },
    )


def path_of(operation: Operation) -> list[str]:
    """Return the arguments that are in the path."""
    return findall(r"{(\w+)", operation.path)


@cache
def model_of(operation: Operation) -> type[BaseModel]:
    """Return the form of a request's body: the arguments of the function that are not of the path, and the reason."""
    hints = get_type_hints(operation.run, localns={"Connection": object}, include_extras=True)
    fields: dict[str, Any] = {"reason": (_Reason, None)}
    for name, each in inspect.signature(operation.run).parameters.items():
        if name != "connection" and name not in OF_THE_SERVICE and f"{{{name}" not in operation.path:
            fields[name] = (hints[name], ... if each.default is each.empty else each.default)
    return create_model(operation.run.__name__, __config__=ConfigDict(extra="forbid", strict=True), **fields)


@dataclass(frozen=True, kw_only=True)
class GoesOn:
    """An act that takes longer than its request: a sentence about where its end is told."""

    goes_on: str


def _endpoint(operation: Operation, model: type[BaseModel]) -> Callable[[Request], Awaitable[Response]]:
    async def act(request: Request) -> Response:
        given = {**request.path_params, **await _given(request, model)}
        acting: Acting = request.app.state.acting
        done = await acting.act(operation, given, request.state.operator.name, place_of(request, "api"))
        if done is None:
            said = GoesOn(goes_on=f"{operation.command} takes longer; it goes on, and the log has its end")
            later = answer(asdict(said))
            later.status_code = HTTPStatus.ACCEPTED
            return later
        return answer(done)

    return act


def place_of(request: Request, way: str) -> str:
    """Return from where the operator acts, and by which token, for the audit. ``way``: the API or the console."""
    host = request.client.host if request.client is not None else "?"
    operator: Person = request.state.operator
    return ", ".join(filter(None, (f"{way} {host}", operator.token)))


async def _given(request: Request, model: type[BaseModel]) -> dict[str, Any]:
    """Return the arguments in the body of a request.

    :raises Refused: it is too long, or not what ``model`` describes.
    """
    # A form of a foreign page cannot have this type, and its script has to ask first, which is refused.
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != _JSON:
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"expected the header Content-Type: {_JSON}")
    octets = bytearray()
    async for piece in request.stream():
        octets += piece
        if len(octets) > _LONGEST_BODY:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected a body of at most {_LONGEST_BODY} octets")
    return arguments(lambda: model.model_validate_json(bytes(octets)))


def arguments(read: Callable[[], BaseModel]) -> dict[str, Any]:
    """Return the arguments that ``read`` finds in a request.

    :raises Refused: they are not what the model describes, or can be none.
    """
    try:
        given = read().model_dump()
        check_reason(given["reason"])
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_context=False, include_input=False)) from None
    except Malformed as error:
        raise refused(error) from None
    if any(isinstance(each, str) and "\0" in each for each in given.values()):
        raise Refused(HTTPStatus.BAD_REQUEST, "expected no NUL character: no name has one")
    return given


for each in ACTS:
    _add(each)
