"""The console shows operators in a browser what the API answers, by the same functions: ``/console``."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse, StreamingResponse

from coordinator import answers
from coordinator.address.addresses import GROUP_SEPARATOR
from coordinator.http.api import FOR_OPERATORS, After, Limit, Store, having_message_id
from coordinator.http.charts import charts
from coordinator.http.entrance import Page, admit
from coordinator.http.pages import ROOT, link, page
from coordinator.http.problems import Refused
from coordinator.process.measuring import Measuring
from coordinator.timeline import why_undecided
from store import addresses

#: lines of a list on one page
_MOST = 100
_MOST_PERMISSIONS = 1000
Number = Annotated[int, Query(ge=0, lt=1 << 63)]
#: percent of the disk; with fewer free, an operator must look
_FEWEST_FREE = 10


#: The report itself allows less (``spark/report.html.j2``).
_OF_A_REPORT = {
    "Content-Encoding": "gzip",
    "Content-Security-Policy": "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; sandbox allow-scripts allow-downloads; frame-ancestors 'self'",
}


#: For those who have logged in. The application has ``measuring`` in its ``state``.
pages = APIRouter(prefix=ROOT, route_class=Page, include_in_schema=False, dependencies=[Depends(admit)])


@pages.get("")
def overview(store: Store, request: Request) -> Response:
    checked = store.checked(_FEWEST_FREE)
    measuring: Measuring = request.app.state.measuring
    connected = sum(measuring.workers.now("connections").values())
    seen = {"checked": checked, "wrong": checked["wrong"], "figures": measuring.figures(), "connected": connected}
    seen["charts"] = charts(measuring.recent)
    return page(request, "overview", HTTPStatus.OK, **seen)


@pages.get("/find")
def find(store: Store, what: str) -> Response:
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
    with store.asked() as connection:
        known = addresses.kind_of(connection, text.partition(GROUP_SEPARATOR)[0]) is not None
    place = link("address", name=text.partition(GROUP_SEPARATOR)[0]) if known else link("messages", message_id=text)
    return RedirectResponse(place, HTTPStatus.SEE_OTHER)


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
    return page(request, "life", title=f"Transaction {wanted}", life=life, sections=[])


@pages.get("/messages")
def find_messages(
    store: Store, request: Request, message_id: str = "", since: str = "1h", until: str | None = None
) -> Response:
    lives, said, status = [], "", HTTPStatus.OK
    if message_id:
        try:
            lives = having_message_id(store, message_id, since, until)
        except Refused as error:
            said, status = str(error), error.status
    asked = {"message_id": message_id, "since": since, "until": until}
    return page(request, "messages", status, lives=lives, said=said, **asked)


@pages.get("/message")
def show_message(store: Store, request: Request, id: str) -> Response:
    wanted = answers.half_id_of(id)
    with store.asked() as connection:
        life = answers.message(connection, wanted)
        sections = answers.contents_of(connection, wanted) if request.state.operator is not None else []
    return page(request, "life", title=f"Message {wanted}", life=life, sections=sections)


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


@pages.get("/letters.jsonl", dependencies=FOR_OPERATORS)
async def export_letters(store: Store, request: Request, name: str) -> Response:
    """Answer all letters of an address, a line of JSON each, as ``coordinator dead-letters export``."""

    def piece(after: int) -> list[answers.Answer]:
        with store.asked(patient=after > 0) as connection:
            return answers.letters(connection, name, after=after, most=_MOST, whole=True)

    async def lines(found: list[answers.Answer]) -> AsyncIterator[str]:
        while found:
            after = found[-1]["entry"]
            for line in found:
                del line["entry"]
                yield json.dumps(line, default=answers.plain) + "\n"
            found = await run_in_threadpool(piece, after)

    first = await run_in_threadpool(piece, 0)
    _let_last(request)
    named = {"Content-Disposition": 'attachment; filename="letters.jsonl"'}
    return StreamingResponse(lines(first), media_type="application/jsonl", headers=named)


@pages.get("/letter", dependencies=FOR_OPERATORS)
def show_letter(store: Store, request: Request, id: str, name: str | None = None) -> Response:
    """Show a letter with the life of the message that it was, which has what became of the letter, too. ``name``: of
    the address that has it.
    """
    wanted = answers.half_id_of(id)
    with store.asked() as connection:
        letter = answers.letter(connection, wanted)
        try:
            life = answers.message(connection, answers.half_id_of(str(letter["original_id"])))
        except (answers.Unknown, answers.Malformed):  # not kept any more, or never was: clients can write such letters
            life = answers.message(connection, wanted)
    return page(request, "letter", letter=letter, life=life, box=name)


@pages.get("/browse", dependencies=FOR_OPERATORS)
def browse(store: Store, request: Request, name: str, after: Number = 0) -> Response:
    with store.asked() as connection:
        lines = answers.waiting(connection, name, after=after, most=_MOST + 1)
    return _list(request, "browse", lines, lambda line: line["entry"], name=name)


@pages.get("/schedules")
def list_schedules(store: Store, request: Request, after: After = None) -> Response:
    with store.asked() as connection:
        lines = answers.all_schedules(connection, after=after, most=_MOST + 1)
    return _list(request, "schedules", lines, answers.group_key)


@pages.get("/schedule")
def show_schedule(store: Store, request: Request, name: str, after: After = None) -> Response:
    with store.asked() as connection:
        lines = answers.scheduled(connection, name, after=after, most=_MOST + 1)
    return _list(request, "schedule", lines, answers.due_key, name=name)


@pages.get("/users", dependencies=FOR_OPERATORS)
def list_users(store: Store, request: Request, after: After = None) -> Response:
    with store.asked() as connection:
        lines = answers.all_users(connection, after=after, most=_MOST + 1)
    return _list(request, "users", lines, lambda line: line["name"])


@pages.get("/permissions", dependencies=FOR_OPERATORS)
def list_permissions(store: Store, request: Request) -> Response:
    with store.asked() as connection:
        lines = answers.all_permissions(connection)
    return page(request, "permissions", lines=lines[:_MOST_PERMISSIONS], more=len(lines) > _MOST_PERMISSIONS)


@pages.get("/instances")
def list_instances(store: Store, request: Request) -> Response:
    with store.asked() as connection:
        lines = answers.all_instances(connection, most=_MOST)
    measuring: Measuring = request.app.state.measuring
    return page(request, "instances", lines=lines, workers=measuring.workers.lines())


@pages.get("/runs")
def list_runs(store: Store, request: Request) -> Response:
    with store.asked() as connection:
        lines = answers.all_runs(connection)
    return page(request, "runs", lines=lines)


@pages.get("/findings")
def list_findings(store: Store, request: Request, run: Number, kind: str | None = None, after: Number = 0) -> Response:
    with store.asked() as connection:
        of = answers.one_run(connection, run=run)
        lines = answers.findings(
            connection, run=run, kind=() if kind is None else (kind,), after=min(after, 1 << 30), most=_MOST + 1
        )
    return _list(request, "findings", lines, lambda line: line["number"], of=of)


@pages.get("/report")
def show_report(store: Store, request: Request, run: Number) -> Response:
    """Show the report of a run in a frame, which stays under the console's own head and can lead nowhere else."""
    with store.asked() as connection:
        answers.report(connection, run=run)
    return page(request, "report", run=run)


@pages.get("/report.html")
async def answer_report(store: Store, request: Request, run: Number) -> Response:
    """Answer the report of a run as ``coordinator reconcile`` has made it. It runs its own scripts, and belongs to no
    site: it reaches neither the session nor another page. With a window of its own it could pass for the console.
    """
    if request.headers.get("Sec-Fetch-Dest") == "document":
        raise Refused(HTTPStatus.FORBIDDEN, f"a report is shown in a page of the console: {link('report', run=run)}")

    def read() -> bytes:
        with store.asked() as connection:
            return answers.report(connection, run=run)

    packed = await run_in_threadpool(read)
    _let_last(request)
    return Response(packed, media_type="text/html", headers=_OF_A_REPORT)


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


def _let_last(request: Request) -> None:
    """Let an answer take as long as a slow line takes for it."""
    if not request.state.last():
        raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "others download, and watch; try again later")


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
