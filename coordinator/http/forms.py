"""Forms are the acts in the console's pages: a table, and one page for all, which says what would be done, asks for the
rest and the reason, and sends it. It is for the sessions of operators, and works without a script.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from pydantic import SecretStr

from coordinator import acts, changes, previews
from coordinator.address.addresses import GROUP_SEPARATOR
from coordinator.http import underway
from coordinator.http.acting import Acting, arguments, model_of, path_of, place_of
from coordinator.http.api import FOR_OPERATORS, Asking
from coordinator.http.entrance import Page, admit, form_of
from coordinator.http.pages import ROOT, link, moment, page
from coordinator.http.problems import Refused
from coordinator.http.underway import Add, Underway, Work
from coordinator.operations import ACTS, Operation

_Told = TypeVar("_Told")
#: An option of a command, with its value.
_OPTION = re.compile(r"(?<!\S)--([a-z-]*[a-z])( ADDRESS)?")
#: Where a label begins to explain.
_EXPLAINED = re.compile(r" \(|[:;]")
_REASON = "Reason, for the audit"
#: What acts on users and permissions tell.
_OPEN = {
    "open_before": "Clients without a login might do everything before",
    "open_now": "Clients without a login may do everything now",
}


class Form(NamedTuple):
    """``about``: the page of what it is done to, and its parameter there, with the argument that names it. ``labels``:
    of the arguments that a person gives; a page gives the others. ``preview`` says what would be done; ``first``: it is
    asked once the arguments are given, before the act; ``looked_at``: has the arguments that bind the act to the state
    that the page tells of, where its URL has none; ``add``: it goes on in pieces.
    """

    run: Callable[..., Any]
    title: str
    about: tuple[str, str | None, str]
    labels: Mapping[str, str] = {}
    preview: Callable[..., list[str]] | None = None
    first: bool = False
    looked_at: Callable[..., dict[str, str]] | None = None
    add: Add | None = None

    @property
    def operation(self) -> Operation:
        return next(each for each in ACTS if each.run is self.run)

    @property
    def name(self) -> str:
        return self.operation.command.replace(" ", "-")


_ADDRESS = ("address", "name", "name")
_PERMISSION = {
    "verbs": "Verbs, with commas between, or all",
    "pattern": "Pattern: a name, or its beginning and a *",
    "user": "User",
    "role": "Or role",
}
_POLICIES = {"on_expiry": "An expired message: drop or dead-letter", "max_attempts": "Attempts", "retry": "Retries"}
_CHECKS = {
    "check_immunity": "First check after so many seconds",
    "check_interval": "Further checks each so many seconds",
    "check_most": "Checks",
}
_KEPT = {"retention_hours": "Hours that messages are kept"}

FORMS = {
    each.name: each
    for each in (
        Form(acts.resolve, "Decide transaction", ("transaction", "id", "txn_id"),
             {"decision": "Decision"}, previews.of_decision),
        Form(acts.resume, "Check transaction anew", ("transaction", "id", "txn_id"), {}, previews.of_check),
        Form(acts.close, "Close connection", ("connection", "id", "connection_id"), {}, previews.of_close),
        Form(acts.replay, "Replay dead letters", ("letters", "name", "name"),
             {"to": "To this address; empty: to the group that they came from"}, previews.of_replay, True,
             add=underway.replayed),
        Form(acts.purge, "Purge address", _ADDRESS, {}, previews.of_purge, add=underway.purged),
        Form(acts.seek, "Move group", _ADDRESS,
             {"back_to": "Back to a time (2026-11-22T12:00:00Z) or a message: what it had comes again",
              "forth_to": "Or forth to it: what waits before is thrown away",
              "to": "Or to it: the group gets what follows, and no others"}, previews.of_seek, True),
        Form(acts.repair, "Repair what was found", ("findings", "run", "run"), {}, previews.of_repair,
             looked_at=previews.looked_at, add=underway.repaired),
        Form(acts.retire, "Retire message", ("message", "id", "half_id"), {"outcome": "As"}, previews.of_retirement),
        Form(changes.add_address, "Add an address", ("addresses", None, "name"),
             {"name": "Name", "topic": "A topic", "kind": "Kind", **_POLICIES, **_KEPT}),
        Form(changes.set_address, "Change address", _ADDRESS, {"kind": "Kind", **_POLICIES, **_KEPT, **_CHECKS}),
        Form(changes.remove_address, "Remove address", _ADDRESS,
             {"force": "With its messages, which are lost, and its groups"}, previews.of_removal),
        Form(changes.set_group, "Change group", _ADDRESS, _POLICIES),
        Form(changes.pause_group, "Pause group", _ADDRESS, {}, previews.of_pause),
        Form(changes.resume_group, "Resume group", _ADDRESS, {}, previews.of_resumption),
        Form(changes.grant, "Grant a permission", ("permissions", None, "user"), _PERMISSION, previews.of_grant, True),
        Form(changes.revoke, "Revoke a permission", ("permissions", None, "user"), _PERMISSION,
             previews.of_revocation, True),
        Form(changes.add_user, "Add a user", ("users", None, "name"),
             {"name": "Name", "password": "Password", "without_password": "Or none: it logs in by its certificate"},
             previews.of_new_user),
        Form(changes.set_user, "Change user", ("users", None, "name"),
             {"password": "New password", "role": "Or give this role", "without_role": "Or take this role",
              "disable": "Or disable the user", "enable": "Or enable the user"}),
        Form(changes.remove_user, "Remove user", ("users", None, "name"), {}, previews.of_user_removal),
    )
}  # fmt: skip

#: The application has ``underway`` and ``acting`` in its ``state``.
forms = APIRouter(prefix=ROOT, route_class=Page, include_in_schema=False, dependencies=[Depends(admit), *FOR_OPERATORS])


async def _form(do: Annotated[str, Query()]) -> Form:
    found = FORMS.get(do)
    if found is None:
        raise Refused(HTTPStatus.NOT_FOUND, "the console has no such act")
    return found


Wanted = Annotated[Form, Depends(_form)]


@forms.get("/act")
async def show_form(request: Request, form: Wanted) -> Response:
    given = _fixed(request)
    if form.looked_at is not None:
        given = {**await _asked(request, form, given, form.looked_at), **given}
    lines = [] if form.first else await _preview(request, form, given)
    return _page(request, form, given, lines)


@forms.post("/act")
async def act(request: Request, form: Wanted) -> Response:
    written = {name: value for name, value in (await form_of(request, request.state.session)).items() if value}
    looks = written.pop("look", None) is not None
    given = {**_fixed(request), **written}
    try:
        if looks:
            return _page(request, form, given, await _preview(request, form, given), looked=True)
        taken = _taken(form, given)
        work = Work(
            operation=form.operation,
            given=taken,
            operator=request.state.operator.name,
            place=place_of(request, "console"),
            add=form.add,
        )
        works: Underway = request.app.state.underway
        await works.begin(work)
    except Refused as error:
        return _page(request, form, given, [], said=str(error), status=error.status)
    return RedirectResponse(link("done", id=work.id), HTTPStatus.SEE_OTHER)


def _fixed(request: Request) -> dict[str, str]:
    """Return the arguments that the page gives: they are in its URL, which a login leads back to."""
    return {name: value for name, value in request.query_params.items() if name != "do"}


@forms.get("/acts")
async def list_works(request: Request) -> Response:
    works: Underway = request.app.state.underway
    lines = [(_form_of(each), each) for each in works.all()]
    told = [(_title(form, each.given), _worded(form, each.state), each) for form, each in lines]
    return page(request, "acts", lines=told)


def _form_of(work: Work) -> Form:
    return next(each for each in FORMS.values() if each.operation is work.operation)


@forms.get("/done")
async def show_work(request: Request, id: str) -> Response:
    work = _work(request, id)
    form = _form_of(work)
    names = {name: _OPEN.get(name, name.replace("_", " ").capitalize()) for name in work.done if name != "why"}
    done = [(shown, _told(work.done[name])) for name, shown in names.items()]
    return page(
        request,
        "done",
        work=work,
        state=_worded(form, work.state),
        done=done,
        left=[_worded(form, each) for each in work.done.get("why", ())],
        title=_title(form, work.given),
        back=_back(form, work.given),
    )


def _worded(form: Form, said: str) -> str:
    """Return what the store says of an act, with the options of its command as the page calls them."""

    def label(found: re.Match[str]) -> str:
        shown = form.labels.get(found[1].replace("-", "_"))
        return found[1].replace("-", " ") if shown is None else f'"{_EXPLAINED.split(shown)[0]}"'

    return _OPTION.sub(label, said)


def _told(value: object) -> object:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return moment(value) if isinstance(value, datetime) else value


@forms.post("/stop")
async def stop(request: Request) -> Response:
    given = await form_of(request, request.state.session)
    work = _work(request, given.get("id", ""))
    if work.add is not None and work.ended_at is None:
        work.stopped_by = request.state.operator.name
    return RedirectResponse(link("done", id=work.id), HTTPStatus.SEE_OTHER)


def _work(request: Request, id: str) -> Work:
    works: Underway = request.app.state.underway
    work = works.find(id)
    if work is None:
        said = "this act is not known any more, as the service has started anew or others followed; the audit has it"
        raise Refused(HTTPStatus.NOT_FOUND, said)
    return work


async def _preview(request: Request, form: Form, given: Mapping[str, str]) -> list[str]:
    """Return what the act would do; nothing, where no one can say.

    :raises Refused: it would be refused.
    """
    return [] if form.preview is None else await _asked(request, form, given, form.preview)


async def _asked(request: Request, form: Form, given: Mapping[str, str], ask: Callable[..., _Told]) -> _Told:
    """Return what ``ask`` tells of the store, with those arguments of the act that it takes.

    :raises Refused: the act would be refused.
    """
    acting: Acting = request.app.state.acting
    takes = inspect.signature(ask).parameters
    missing = {"reason": "-", "decision": "commit", "outcome": "accepted"}  # what comes last, where it is needed
    fields = model_of(form.operation).model_fields
    stands_in = {name: value for name, value in missing.items() if name in fields and fields[name].is_required()}
    # one that looks at no argument is asked before any is given
    taken = {**_taken(form, {**stands_in, **given}), **acting.service} if len(takes) > 1 else {}
    wanted = {name: value for name, value in taken.items() if name in takes and name not in stands_in.keys() - given}
    store: Asking = request.app.state.asking

    def read() -> _Told:
        with store.asked() as connection:
            return ask(connection, **wanted)

    return await run_in_threadpool(read)


def _taken(form: Form, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of the act that the fields of a form give.

    :raises Refused: they can be none.
    """
    model, path = model_of(form.operation), path_of(form.operation)
    named = {name: given[name] for name in path if name in given}
    if len(named) < len(path):
        raise Refused(HTTPStatus.BAD_REQUEST, f"expected {' and '.join(path)}")
    if any("\0" in each for each in named.values()):
        raise Refused(HTTPStatus.BAD_REQUEST, "expected no NUL character: no name has one")
    others = {name: value for name, value in given.items() if name not in named}
    lists = {name: value.split() for name, value in others.items() if name == "ids"}
    return {**named, **arguments(lambda: model.model_validate({**others, **lists}, strict=False))}


def _page(
    request: Request,
    form: Form,
    given: Mapping[str, str],
    lines: list[str],
    *,
    looked: bool = False,
    said: str | None = None,
    status: HTTPStatus = HTTPStatus.OK,
) -> Response:
    """Return the page of a form. ``looked``: its preview was asked for with what is given, which stays."""
    labels = {} if looked else form.labels
    fields = [_field(form, name, label, given.get(name)) for name, label in labels.items()]
    if looked or not form.first:
        fields.append(_field(form, "reason", _REASON, given.get("reason")))
    shown = {each["name"] for each in fields}
    fixed = {name: value for name, value in given.items() if name not in shown}
    return page(
        request,
        "act",
        status,
        title=_title(form, given),
        button=form.title,
        back=_back(form, given),
        action=link("act", do=form.name, **fixed),
        fields=fields,
        told=[(form.labels[name], value) for name, value in fixed.items() if name in form.labels],
        lines=[_worded(form, each) for each in lines],
        looks=form.first and not looked,
        said=None if said is None else _worded(form, said),
    )


def _field(form: Form, name: str, label: str, value: str | None) -> dict[str, Any]:
    """Return how a page asks for an argument: ``choices`` of a list, none for text; ``box``: it is ticked or not;
    ``secret``: no page shows it again.
    """
    found = model_of(form.operation).model_fields.get(name)  # else it is of the path
    kind = str if found is None else found.annotation
    secret = SecretStr in get_args(kind)
    return {
        "name": name,
        "label": label,
        "secret": secret,
        "value": "" if secret else value or "",
        "choices": get_args(kind) if get_origin(kind) is Literal else (),
        "box": kind is bool,
        "needed": found is None or found.is_required(),
    }


def _title(form: Form, given: Mapping[str, Any]) -> str:
    name = form.about[2]
    return f"{form.title}: {given[name]}" if given.get(name) and name in path_of(form.operation) else form.title


def _back(form: Form, given: Mapping[str, Any]) -> str:
    """Return the link to what the act is done to."""
    where, parameter, name = form.about
    if parameter is None or not given.get(name):
        return link(where if parameter is None else "")
    its = str(given[name])
    return link(where, **{parameter: its.partition(GROUP_SEPARATOR)[0] if where == "address" else its})
