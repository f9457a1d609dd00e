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

from coordinator import answers
from coordinator.http.problems import Refused, refused
from store import health, migrations
from store.audit import Action, Wanted
from store.database import Patience, reading
from store.errors import StoreError

if TYPE_CHECKING:
    from sqlalchemy import Connection

ROOT = "/api/v1"

_Value = TypeVar("_Value")
#: Requests that ask the store at one time; so many connections more than the workers' the database has to have.
_MOST_ASKING = 2
#: Seconds that a request waits until others have asked.
_TURN_SECONDS = 5.0
_PATIENCE = Patience(connect_seconds=5, statement_seconds=5.0, lock_seconds=2.0, answer_seconds=8.0)

Time = Annotated[str | None, Query(description="2026-03-01, 2026-03-01T12:00Z, or 24h (ago).")]
After = Annotated[str | None, Query(description="What follows this key alone: that of the last one of a page.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="So many at most.")]


class Asking:
    """Lets few requests ask the store at one time."""

    def __init__(self, url: str, least_bytes: int) -> None:
        """``least_bytes``: the setting limits.disk_free_bytes."""
        self.least_bytes = least_bytes
        self._url = url
        self._turns = threading.BoundedSemaphore(_MOST_ASKING)

    @contextmanager
    def asked(self) -> Iterator[Connection]:
        """Yield a connection that only reads.

        :raises Refused: the store is away, takes too long, or does not have what the block asks for.
        """
        if not self._turns.acquire(timeout=_TURN_SECONDS):
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "other requests ask the store; try again later")
        try:
            with reading(self._url, application_name="coordinator api", patience=_PATIENCE) as connection:
                migrations.check(connection)
                yield connection
        except (answers.Unknown, answers.Malformed, StoreError) as error:
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


@routes.get("/messages/{message}", summary="coordinator message show --no-archive")
def show_message(store: Store, message: str) -> Response:
    wanted = _read(answers.half_id_of, message)
    with store.asked() as connection:
        return answer(answers.message(connection, wanted).plain())


@routes.get("/dead-letters", summary="coordinator dead-letters list")
def list_dead_letters(store: Store, request: Request, after: After = None, limit: Limit = 100) -> Response:
    with store.asked() as connection:
        lines = answers.all_dead_letters(connection, after=after, most=limit + 1)
    return _page(request, lines, limit, lambda line: str(line["name"]))


@routes.get("/check", summary="coordinator check")
def check(store: Store, fewest_free: Annotated[int, Query(ge=0, le=100)] = 10) -> Response:
    with store.asked() as connection:
        found = health.read(connection)
    return answer(answers.checked(found, fewest_free=fewest_free, least_bytes=store.least_bytes))


@routes.get("/audit", summary="coordinator audit")
def audit(
    store: Store,
    since: Time = None,
    until: Time = None,
    who: str | None = None,
    what: Action | None = None,
    limit: Limit = 100,
) -> Response:
    read = partial(answers.moment, now=datetime.now(UTC))
    first, last = (None if each is None else _read(read, each) for each in (since, until))
    wanted = Wanted(since=first, until=last, who=who, action=what)
    with store.asked() as connection:
        return answer(answers.audited(connection, wanted, limit))


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
        query = {**request.query_params, "after": key(lines[limit - 1])}
        page.headers["Link"] = f'<{request.url.path}?{urlencode(query)}>; rel="next"'
    return page


def answer(value: Any) -> Response:
    """Answer with ``value`` as JSON."""
    return Response(json.dumps(value, default=answers.plain), media_type="application/json")
