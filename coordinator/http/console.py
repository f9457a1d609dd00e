"""The console shows operators in a browser what the API answers, by the same functions: ``/console``. It only reads.

A browser shows the token once, in a form, and from then on the cookie of a session (S11).
"""

from __future__ import annotations

import hmac
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute

from coordinator import answers
from coordinator.http.access import Access, Person
from coordinator.http.api import FOR_OPERATORS, After, Limit, Store
from coordinator.http.pages import FOLDER, ROOT, link, page
from coordinator.http.problems import Refused
from coordinator.http.sessions import Session, Sessions
from coordinator.process.measuring import Measuring
from coordinator.timeline import why_undecided
from store import health

#: lines of a list on one page
_MOST = 100
#: octets of a form
_LONGEST_FORM = 8192
Number = Annotated[int, Query(ge=0, lt=1 << 63)]
#: percent of the disk; with fewer free, an operator must look
_FEWEST_FREE = 10


class _Page(APIRoute):
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
            return page(request, "problem", status, title=status.phrase, said=said)

        return answer_or_say_why


async def _session(request: Request) -> Session:
    sessions: Sessions = request.app.state.sessions
    session = sessions.find(request.cookies.get(_cookie(request), ""))
    if session is None:
        raise Refused(HTTPStatus.UNAUTHORIZED, "log in to see this page")
    return session


async def _admit(request: Request, session: Annotated[Session, Depends(_session)]) -> None:
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


#: The application has in its ``state``: ``access``, ``sessions`` and ``measuring``.
entrance = APIRouter(prefix=ROOT, route_class=_Page, include_in_schema=False)
#: For those who have logged in.
pages = APIRouter(prefix=ROOT, route_class=_Page, include_in_schema=False, dependencies=[Depends(_admit)])


# The login, and what its page loads.


@entrance.get("/console.css")
async def style() -> Response:
    return Response((FOLDER / "console.css").read_bytes(), media_type="text/css")


@entrance.get("/local-times.js")
async def script() -> Response:
    return Response((FOLDER / "local-times.js").read_bytes(), media_type="text/javascript")


@entrance.get("/login")
async def login(request: Request) -> Response:
    return page(request, "login", said=None, to=ROOT)


@entrance.post("/login")
async def log_in(request: Request) -> Response:
    form = await _form(request)
    to = form.get("to", ROOT)
    if not f"{to}/".startswith((f"{ROOT}/", f"{ROOT}?")):
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
async def log_out(request: Request, session: Annotated[Session, Depends(_session)]) -> Response:
    form = await _form(request)
    if not hmac.compare_digest(form.get("form", "").encode(), session.form.encode()):
        raise Refused(HTTPStatus.FORBIDDEN, "the form is of no page of this session")
    sessions: Sessions = request.app.state.sessions
    sessions.end(session)
    answer = RedirectResponse(f"{ROOT}/login", HTTPStatus.SEE_OTHER)
    answer.delete_cookie(_cookie(request), path=ROOT)
    return answer


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form, the first of each name."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _LONGEST_FORM:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected a form of at most {_LONGEST_FORM} octets")
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=8)
    except ValueError:
        raise Refused(HTTPStatus.BAD_REQUEST, "expected the fields of a form") from None
    return {name: values[0] for name, values in fields.items()}


# The pages.


@pages.get("")
def overview(store: Store, request: Request) -> Response:
    with store.asked() as connection:
        found = health.read(connection)
    checked = answers.checked(found, fewest_free=_FEWEST_FREE, least_bytes=store.least_bytes)
    measuring: Measuring = request.app.state.measuring
    connected = sum(measuring.workers.now("connections").values())
    wrong = [*checked["wrong"]]
    if measuring.disk_low:  # the role of the service may not ask the server for its folder
        wrong.append("the disk of the embedded server is nearly full: posts are refused")
    seen = {"checked": checked, "wrong": wrong, "figures": measuring.figures(), "connected": connected}
    return page(request, "overview", HTTPStatus.OK, **seen)


@pages.get("/find")
def find(what: str) -> Response:
    """Lead to what an id or a name stands for."""
    text = what.strip()
    for name, read in (
        ("transaction", answers.txn_id_of),
        ("message", answers.half_id_of),
        ("connection", answers.connection_id_of),
    ):
        try:
            return RedirectResponse(link(name, id=str(read(text))), HTTPStatus.SEE_OTHER)
        except answers.Malformed:
            continue
    return RedirectResponse(link("address", name=text), HTTPStatus.SEE_OTHER)


@pages.get("/addresses")
def list_addresses(store: Store, request: Request, after: After = None) -> Response:
    with store.asked() as connection:
        lines = answers.all_addresses(connection, after=after, most=_MOST + 1)
    return _list(request, "addresses", lines, lambda line: line["name"])


@pages.get("/address")
def show_address(store: Store, request: Request, name: str) -> Response:
    with store.asked() as connection:
        shown = answers.one_address(connection, name)
        links = answers.links_of(connection, name, _MOST + 1)
    return page(request, "address", HTTPStatus.OK, of=shown, links=links[:_MOST], more=len(links) > _MOST)


@pages.get("/groups")
def list_groups(store: Store, request: Request, after: After = None) -> Response:
    with store.asked() as connection:
        lines = answers.all_groups(connection, after=after, most=_MOST + 1)
    return _list(request, "groups", lines, answers.group_key)


@pages.get("/transactions")
def list_transactions(store: Store, request: Request, after: After = None) -> Response:
    above = None if after is None else answers.txn_id_of(after)
    with store.asked() as connection:
        lines = answers.all_undecided(connection, after=above, most=_MOST + 1)
    for line in lines:
        now = line["declared_at"] + timedelta(seconds=line["age_seconds"])
        line["why"] = why_undecided(line["txn_id"], line, now)
    return _list(request, "transactions", lines, lambda line: line["txn_id"])


# Names of parameters are seen in URLs.


@pages.get("/transaction")
def show_transaction(store: Store, request: Request, id: str, limit: Limit = 100) -> Response:
    wanted = answers.txn_id_of(id)
    with store.asked() as connection:
        life = answers.transaction(connection, wanted, limit)
    return page(request, "life", title=f"Transaction {wanted}", life=life)


@pages.get("/message")
def show_message(store: Store, request: Request, id: str) -> Response:
    wanted = answers.half_id_of(id)
    with store.asked() as connection:
        life = answers.message(connection, wanted)
    return page(request, "life", title=f"Message {wanted}", life=life)


@pages.get("/dead-letters")
def list_dead_letters(store: Store, request: Request, after: After = None) -> Response:
    with store.asked() as connection:
        lines = answers.all_dead_letters(connection, after=after, most=_MOST + 1)
    return _list(request, "dead-letters", lines, lambda line: line["name"])


@pages.get("/letters", dependencies=FOR_OPERATORS)
def list_letters(store: Store, request: Request, name: str, after: Number = 0) -> Response:
    with store.asked() as connection:
        lines = answers.letters(connection, name, after=after, most=_MOST + 1)
    alike = defaultdict(list)
    for line in lines[:_MOST]:
        alike[line["original_address"], line["last_error"]].append(line)
    most_first = sorted(alike.items(), key=lambda each: -len(each[1]))
    return _list(request, "letters", lines, lambda line: line["entry"], name=name, alike=most_first)


@pages.get("/letter", dependencies=FOR_OPERATORS)
def show_letter(store: Store, request: Request, id: str) -> Response:
    """Show a letter with the life of the message that it was, which has what became of the letter, too."""
    wanted = answers.half_id_of(id)
    with store.asked() as connection:
        letter = answers.letter(connection, wanted)
        try:
            life = answers.message(connection, answers.half_id_of(str(letter["original_id"])))
        except (answers.Unknown, answers.Malformed):  # not kept any more, or never was: clients can write such letters
            life = answers.message(connection, wanted)
    return page(request, "letter", letter=letter, life=life)


@pages.get("/connections")
def list_connections(store: Store, request: Request, after: After = None, closed: bool = False) -> Response:
    with store.asked() as connection:
        lines = answers.all_connections(connection, after=after, most=_MOST + 1, closed=closed)
    if closed:
        return page(request, "connections", lines=lines[:_MOST], closed=True, following=None)
    return _list(request, "connections", lines, answers.connection_key, closed=False)


@pages.get("/connection")
def show_connection(store: Store, request: Request, id: str) -> Response:
    with store.asked() as connection:
        return page(request, "connection", of=answers.one_connection(connection, connection_id=id))


@pages.get("/audit")
def audit(store: Store, request: Request, after: Number | None = None) -> Response:
    """Show the latest first: what follows the row of an id is older."""
    with store.asked() as connection:
        lines = answers.audited(connection, before=after, most=_MOST + 1)[::-1]
    return _list(request, "audit", lines, lambda line: line["id"])


def _list(
    request: Request,
    template: str,
    lines: Sequence[answers.Answer],
    key: Callable[[answers.Answer], object],
    **values: object,
) -> Response:
    """Show a page of lines, with a link to the next page if there are more. A list has its template's name in URLs."""
    query = {**request.query_params, "after": str(key(lines[_MOST - 1]))} if len(lines) > _MOST else None
    following = None if query is None else link(template, **query)
    return page(request, template, HTTPStatus.OK, lines=lines[:_MOST], following=following, **values)
