"""The API answers what commands answer with ``--json``, under the same names: ``/api/v1/`` and what they are called.

What is here only reads, on connections of its own that can change nothing, few at a time and each statement within a
limit; :mod:`coordinator.http.acting` changes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request, Response

from coordinator import answers, message_ids
from coordinator.http.problems import KNOWN, Refused, refused
from coordinator.operations import ROOT
from store import health, migrations
from store.audit import Action
from store.database import Patience, reading

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from coordinator.timeline import Timeline

_Value = TypeVar("_Value")
#: Requests that ask the store at one time; so many connections more than the workers' the database has to have.
_MOST_ASKING = 2
#: Seconds that a request waits until others have asked; and one whose answer has begun, and would break off.
_TURN_SECONDS = 5.0
_PATIENT_TURN_SECONDS = 60.0
#: how long messages are searched; with one statement more it is within the time of a request
_SEARCH_SECONDS = 4.0
_PATIENCE = Patience(connect_seconds=5, statement_seconds=5.0, lock_seconds=2.0, answer_seconds=8.0)

Time = Annotated[str | None, Query(description="2026-03-01, 2026-03-01T12:00Z, or 24h (ago).")]
Since = Annotated[str, Query(description="As until; the shorter the time, the less is read.")]
After = Annotated[str | None, Query(description="What follows this key alone: that of the last one of a page.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="So many at most.")]


class Asking:
    """Lets few requests ask the store at one time."""

    def __init__(self, url: str, least_bytes: int, data_dir: Path | None) -> None:
        """``least_bytes``: the setting limits.disk_free_bytes. ``data_dir``: as of :func:`store.health.read`."""
        self._least_bytes = least_bytes
        self._data_dir = data_dir
        self._url = url
        self._turns = threading.BoundedSemaphore(_MOST_ASKING)

    def checked(self, fewest_free: int) -> answers.Answer:
        """Return :func:`coordinator.answers.checked`. ``fewest_free``: percent of the disk.

        :raises Refused: as :meth:`asked`.
        """
        with self.asked() as connection:
            found = health.read(connection, self._data_dir)
        return answers.checked(found, fewest_free=fewest_free, least_bytes=self._least_bytes)

    @contextmanager
    def asked(self, *, patient: bool = False) -> Iterator[Connection]:
        """Yield a connection that only reads. ``patient``: it is for an answer that has begun, and waits longer.

        :raises Refused: the store is away, takes too long, or does not have what the block asks for.
        """
        if not self._turns.acquire(timeout=_PATIENT_TURN_SECONDS if patient else _TURN_SECONDS):
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "other requests ask the store; try again later")
        try:
            with reading(self._url, application_name="coordinator api", patience=_PATIENCE) as connection:
                migrations.check(connection)
                yield connection
        except KNOWN as error:
            raise refused(error) from None
        finally:
            self._turns.release()


async def _asking(request: Request) -> Asking:
    return cast("Asking", request.app.state.asking)


Store = Annotated[Asking, Depends(_asking)]

#: The application has its store in ``state.asking``.
routes = APIRouter(prefix=ROOT)


@routes.get("/addresses", summary="coordinator address list")
def list_addresses(store: Store, request: Request, after: After = None, limit: Limit = 100) -> Response:
    with store.asked() as connection:
        lines = answers.all_addresses(connection, after=after, most=limit + 1)
    return _page(request, lines, limit, lambda line: str(line["name"]))


# A name may have a slash.
@routes.get("/addresses/{name:path}", summary="coordinator address show")
def show_address(store: Store, name: str) -> Response:
    with store.asked() as connection:
        return answer(answers.one_address(connection, name))


@routes.get("/groups", summary="coordinator group list")
def list_groups(
    store: Store, request: Request, address: str | None = None, after: After = None, limit: Limit = 100
) -> Response:
    with store.asked() as connection:
        lines = answers.all_groups(connection, address, after=after, most=limit + 1)
    return _page(request, lines, limit, answers.group_key)


@routes.get("/transactions", summary="coordinator transaction list")
def list_transactions(store: Store, request: Request, after: After = None, limit: Limit = 100) -> Response:
    above = None if after is None else _read(answers.txn_id_of, after)
    with store.asked() as connection:
        lines = answers.all_undecided(connection, after=above, most=limit + 1)
    return _page(request, lines, limit, lambda line: str(line["txn_id"]))


@routes.get("/transactions/{txn_id}", summary="coordinator transaction show --no-archive")
def show_transaction(store: Store, txn_id: str, limit: Limit = 100) -> Response:
    wanted = _read(answers.txn_id_of, txn_id)
    with store.asked() as connection:
        return answer(answers.transaction(connection, wanted, limit).plain())


@routes.get("/messages", summary="coordinator message show --since --no-archive")
def find_messages(store: Store, message_id: str, since: Since = "1h", until: Time = None) -> Response:
    return answer([each.plain() for each in having_message_id(store, message_id, since, until)])


def having_message_id(store: Asking, message_id: str, since: str, until: str | None) -> list[Timeline]:
    """Return the lives of the messages that were posted in this time, as a person has written it.

    :raises Refused: there is none, what is written is wrong, or the store takes too long.
    """
    now = datetime.now(UTC)
    first, last = (_read(partial(answers.moment, now=now), each) for each in (since, until or "0s"))
    with store.asked() as connection:
        return message_ids.messages(connection, message_id=message_id, since=first, until=last, seconds=_SEARCH_SECONDS)


@routes.get("/messages/{half_id}", summary="coordinator message show --no-archive")
def show_message(store: Store, half_id: str) -> Response:
    wanted = _read(answers.half_id_of, half_id)
    with store.asked() as connection:
        return answer(answers.message(connection, wanted).plain())


@routes.get("/dead-letters", summary="coordinator dead-letters list")
def list_dead_letters(store: Store, request: Request, after: After = None, limit: Limit = 100) -> Response:
    with store.asked() as connection:
        lines = answers.all_dead_letters(connection, after=after, most=limit + 1)
    return _page(request, lines, limit, lambda line: str(line["name"]))


@routes.get("/schedules", summary="coordinator schedule list")
def list_schedules(store: Store, request: Request, after: After = None, limit: Limit = 100) -> Response:
    with store.asked() as connection:
        lines = answers.all_schedules(connection, after=after, most=limit + 1)
    return _page(request, lines, limit, answers.group_key)


@routes.get("/schedules/{name:path}", summary="coordinator schedule show")
def show_schedule(store: Store, request: Request, name: str, after: After = None, limit: Limit = 100) -> Response:
    with store.asked() as connection:
        lines = answers.scheduled(connection, name, after=after, most=limit + 1)
    return _page(request, lines, limit, answers.due_key)


@routes.get("/check", summary="coordinator check")
def check(store: Store, fewest_free: Annotated[int, Query(ge=0, le=100)] = 10) -> Response:
    return answer(store.checked(fewest_free))


@routes.get("/audit", summary="coordinator audit")
def audit(
    store: Store,
    request: Request,
    since: Time = None,
    until: Time = None,
    who: str | None = None,
    what: Action | None = None,
    before: Annotated[int | None, Query(ge=1, lt=1 << 63, description="What comes before the row of this id.")] = None,
    limit: Limit = 100,
) -> Response:
    read = partial(answers.moment, now=datetime.now(UTC))
    first, last = (None if each is None else _read(read, each) for each in (since, until))
    with store.asked() as connection:
        lines = answers.audited(connection, since=first, until=last, who=who, what=what, before=before, most=limit + 1)
    page = answer(lines[-limit:])
    if len(lines) > limit:
        page.headers["Link"] = _link(request, "prev", before=lines[1]["id"])
    return page


@routes.get("/connections", summary="coordinator connection list")
def list_connections(
    store: Store,
    request: Request,
    user: str | None = None,
    closed: bool = False,
    after: After = None,
    limit: Limit = 100,
) -> Response:
    with store.asked() as connection:
        lines = answers.all_connections(connection, user=user, closed=closed, after=after, most=limit + 1)
    return answer(lines[:limit]) if closed else _page(request, lines, limit, answers.connection_key)


@routes.get("/connections/{connection_id}", summary="coordinator connection show")
def show_connection(store: Store, connection_id: str) -> Response:
    with store.asked() as connection:
        return answer(answers.one_connection(connection, connection_id=connection_id))


@routes.get("/findings", summary="coordinator findings list")
def list_runs(store: Store) -> Response:
    with store.asked() as connection:
        return answer(answers.all_runs(connection))


@routes.get("/findings/{run}", summary="coordinator findings list, one of them")
def show_run(store: Store, run: int) -> Response:
    with store.asked() as connection:
        return answer(answers.one_run(connection, run=run))


@routes.get("/findings/{run}/findings", summary="coordinator findings show")
def show_findings(
    store: Store,
    request: Request,
    run: int,
    kind: Annotated[list[str] | None, Query()] = None,
    after: Annotated[int, Query(ge=0, lt=1 << 31, description="What follows the finding of this number.")] = 0,
    limit: Limit = 100,
) -> Response:
    with store.asked() as connection:
        lines = answers.findings(connection, run=run, kind=kind or (), after=after, most=limit + 1)
    return _page(request, lines, limit, lambda line: str(line["number"]))


# What follows is for operators alone.


async def _operator(request: Request) -> None:
    if request.state.operator is None:
        reads_by = request.state.reads_by
        raise Refused(HTTPStatus.FORBIDDEN, f"{reads_by} is not for this, expected a token of metrics.operators")


FOR_OPERATORS = [Depends(_operator)]


@routes.get("/dead-letters/{name:path}", summary="coordinator dead-letters show", dependencies=FOR_OPERATORS)
def show_dead_letters(
    store: Store,
    request: Request,
    name: str,
    whole: Annotated[bool, Query(description="With each message, in base64.")] = False,
    after: Annotated[int, Query(ge=0, lt=1 << 63, description="As the header Link has it.")] = 0,
    limit: Limit = 100,
) -> Response:
    with store.asked() as connection:
        lines = answers.letters(connection, name, after=after, most=limit, whole=whole)
    entries = [line.pop("entry") for line in lines]
    page = answer(lines)
    if len(lines) == limit or (whole and lines):
        page.headers["Link"] = _link(request, "next", after=entries[-1])
    return page


@routes.get("/users", summary="coordinator user list", dependencies=FOR_OPERATORS)
def list_users(store: Store, request: Request, after: After = None, limit: Limit = 100) -> Response:
    with store.asked() as connection:
        lines = answers.all_users(connection, after=after, most=limit + 1)
    return _page(request, lines, limit, lambda line: str(line["name"]))


@routes.get("/permissions", summary="coordinator permission list", dependencies=FOR_OPERATORS)
def list_permissions(store: Store, verb: str | None = None, name: str | None = None) -> Response:
    with store.asked() as connection:
        return answer(answers.all_permissions(connection, verb=verb, name=name))


def _read(read: Callable[[str], _Value], text: str) -> _Value:
    try:
        return read(text)
    except answers.Malformed as error:
        raise refused(error) from None


def _page(
    request: Request, lines: Sequence[answers.Answer], limit: int, key: Callable[[answers.Answer], str]
) -> Response:
    """Answer the first ``limit`` of ``lines``; if there are more, the header ``Link`` has the next page (RFC 8288)."""
    page = answer(lines[:limit])
    if len(lines) > limit:
        page.headers["Link"] = _link(request, "next", after=key(lines[limit - 1]))
    return page


def _link(request: Request, relation: str, **key: object) -> str:
    """Return a header ``Link``: the same request with another key."""
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in key]
    return f'<{request.url.path}?{urlencode([*kept, *key.items()])}>; rel="{relation}"'


def answer(value: Any) -> Response:
    """Answer with ``value`` as JSON."""
    return Response(json.dumps(value, default=answers.plain), media_type="application/json")
