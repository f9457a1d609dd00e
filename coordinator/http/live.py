"""Live figures: open pages are told by server-sent events what the last look at the store has found. They all share
that look, and what is made of it, so that another page costs the store nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from http import HTTPStatus

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import StreamingResponse

from coordinator.http.charts import charts
from coordinator.http.entrance import Page, admit, session_of
from coordinator.http.pages import ROOT, fragment
from coordinator.http.problems import Refused
from coordinator.process.measuring import Measuring
from store.figures import Figures

#: The pause between two looks for what is new, of each page.
_LOOK_SECONDS = 1.0
#: After so many milliseconds a browser connects again.
_AGAIN_MS = 3000


class Live:
    """Makes of each look at the store what pages show of it."""

    def __init__(self, measuring: Measuring) -> None:
        self._measuring = measuring
        self._seen: Figures | None = None
        self._seen_at = datetime.now(UTC)
        #: what the service lacked then
        self._wanting = ""
        self._event = ""

    def event(self) -> str:
        """Return the event of the last look, the same text until there is another, or the service lacks something else:
        a look that does not end is said, too. Empty: there was none.
        """
        figures, wanting = self._measuring.figures(), "; ".join(self._measuring.wanting())
        if figures is None or (figures is self._seen and wanting == self._wanting):
            return self._event
        if figures is not self._seen:
            self._seen, self._seen_at = figures, datetime.now(UTC)
        self._wanting = wanting
        self._event = f"data: {json.dumps(self._shown(figures, wanting))}\n\n"
        return self._event

    def _shown(self, figures: Figures, wanting: str) -> dict[str, str]:
        """Return HTML by the name of the element that it is in (``data-live``)."""
        undecided, state = figures.undecided, figures.state
        connected = sum(self._measuring.workers.now("connections").values())
        counts = {
            "undecided": figures.all_undecided,
            "unchecked": None if undecided is None else undecided.waiting,
            "letters": figures.all_letters,
            "connected": connected,
            "alive": None if state is None else state.instances_alive,
            "silent": None if state is None else state.instances_silent,
        }
        return {
            **{name: fragment("live", "count_of", count) for name, count in counts.items()},
            "charts": fragment("live", "pictures", charts(self._measuring.recent)),
            "largest": fragment("live", "largest", figures.entries),
            "said": fragment("live", "said", wanting),
            "at": fragment("live", "at", self._seen_at),
        }


#: The application has ``live`` in its ``state``.
events = APIRouter(prefix=ROOT, route_class=Page, include_in_schema=False, dependencies=[Depends(admit)])


@events.get("/events")
async def tell(request: Request) -> Response:
    if not request.state.last():
        raise Refused(
            HTTPStatus.SERVICE_UNAVAILABLE, "too many pages watch; they are told again when others are closed"
        )
    return StreamingResponse(_told(request), media_type="text/event-stream")


async def _told(request: Request) -> AsyncIterator[str]:
    """Yield the events until the session has ended, or the page is closed."""
    live: Live = request.app.state.live
    yield f"retry: {_AGAIN_MS}\n\n"
    told = ""
    while await _admitted(request):
        event = live.event()
        if event is not told:
            yield event
            told = event
        await asyncio.sleep(_LOOK_SECONDS)


async def _admitted(request: Request) -> bool:
    try:
        await admit(request, await session_of(request))
    except Refused:
        return False
    return True
