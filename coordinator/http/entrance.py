"""The entrance to the console: a browser shows the token once, in a form, and from then on the cookie of a session
(S11). What its pages send shows the session's own word as well, which no other page knows.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute
from starlette.routing import Match

from coordinator import answers
from coordinator.http.access import Access, Person
from coordinator.http.pages import FOLDER, ROOT, page
from coordinator.http.problems import Refused
from coordinator.http.sessions import Session, Sessions

#: octets of a form, and its fields
_LONGEST_FORM = 16_384
_MOST_FIELDS = 16


class Page(APIRoute):
    """Answers an error as a page; where a login is missing, as the form for it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def answer_or_say_why(request: Request) -> Response:
            try:
                return await answer(request)
            except Refused as error:
                if error.status is HTTPStatus.UNAUTHORIZED:
                    asked = f"{request.url.path}?{request.url.query}".removesuffix("?")
                    return page(request, "login", error.status, said=str(error), to=asked)
                status, said = error.status, str(error)
            except answers.Malformed as error:
                status, said = HTTPStatus.BAD_REQUEST, str(error)
            except RequestValidationError as error:
                found = (f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())
                status, said = HTTPStatus.BAD_REQUEST, "; ".join(found)
            # a message-id may look like any other id
            looked_for = request.query_params.get("id") if status is HTTPStatus.NOT_FOUND else None
            return page(request, "problem", status, title=status.phrase, said=said, looked_for=looked_for)

        return answer_or_say_why


def _is_page(request: Request, to: str) -> bool:
    """Return whether a URL is of a page of the console, which a browser can be led to: not of what forms send to."""
    path = to.partition("?")[0]
    asked = {**request.scope, "method": "GET", "path": path}
    known = any(route.matches(asked)[0] is Match.FULL for route in request.app.routes)
    return known and f"{path}/".startswith(f"{ROOT}/")


async def session_of(request: Request) -> Session:
    sessions: Sessions = request.app.state.sessions
    session = sessions.find(request.cookies.get(_cookie(request), ""))
    if session is None:
        raise Refused(HTTPStatus.UNAUTHORIZED, "log in to see this page")
    return session


async def admit(request: Request, session: Annotated[Session, Depends(session_of)]) -> None:
    request.state.operator = await _let_in(request, session.token)
    request.state.session = session


async def _let_in(request: Request, token: bytes) -> Person | None:
    """Check that a request may come in with the token, as one to the API that shows it and reads; return the
    operator whose token it is.

    :raises Refused: it may not.
    """
    access: Access = request.app.state.access
    others = [each for each in request.scope["headers"] if each[0] != b"authorization"]
    shows = {"headers": [*others, (b"authorization", b"Bearer " + token)], "method": "GET"}
    showing = Request({**request.scope, **shows})
    await access.admit(showing)
    operator: Person | None = showing.state.operator
    return operator


def _cookie(request: Request) -> str:
    """Return the cookie's name: browsers keep cookies by host alone, and tunnels to several services end at one."""
    return f"coordinator-{request.url.port}"


#: The application has in its ``state``: ``access`` and ``sessions``.
entrance = APIRouter(prefix=ROOT, route_class=Page, include_in_schema=False)


@entrance.get("/console.css")
async def style() -> Response:
    return Response((FOLDER / "console.css").read_bytes(), media_type="text/css")


@entrance.get("/{name}.js")
async def script(name: Literal["local-times", "live"]) -> Response:
    return Response((FOLDER / f"{name}.js").read_bytes(), media_type="text/javascript")


@entrance.get("/login")
async def login(request: Request) -> Response:
    return page(request, "login", said=None, to=ROOT)


@entrance.post("/login")
async def log_in(request: Request) -> Response:
    form = await _form(request)
    to = form.get("to", ROOT)
    if not _is_page(request, to):
        to = ROOT
    token = form.get("token", "").encode()
    try:
        await _let_in(request, token)
    except Refused as error:
        return page(request, "login", error.status, said=str(error), to=to)
    sessions: Sessions = request.app.state.sessions
    answer = RedirectResponse(to, HTTPStatus.SEE_OTHER)
    answer.set_cookie(
        _cookie(request),
        sessions.begin(token).cookie,
        path=ROOT,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return answer


@entrance.post("/logout")
async def log_out(request: Request, session: Annotated[Session, Depends(session_of)]) -> Response:
    await form_of(request, session)
    sessions: Sessions = request.app.state.sessions
    sessions.end(session)
    answer = RedirectResponse(f"{ROOT}/login", HTTPStatus.SEE_OTHER)
    answer.delete_cookie(_cookie(request), path=ROOT)
    return answer


async def form_of(request: Request, session: Session) -> dict[str, str]:
    """Return the fields of a form that a page of the session has sent.

    :raises Refused: it is of another page.
    """
    form = await _form(request)
    if not hmac.compare_digest(form.pop("form", "").encode(), session.form.encode()):
        raise Refused(HTTPStatus.FORBIDDEN, "the form is of no page of this session; nothing was done: load it anew")
    return form


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form, the first of each name."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _LONGEST_FORM:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected a form of at most {_LONGEST_FORM} octets")
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise Refused(HTTPStatus.BAD_REQUEST, "expected the fields of a form") from None
    return {name: values[0] for name, values in fields.items()}
