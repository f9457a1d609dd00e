"""Send notices to the other instances that accompany no change of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store import arrays
from store.asking import Query, nothing
from store.channels import ARRIVED, LINK, READY

if TYPE_CHECKING:
    from collections.abc import Callable

    from store.asking import Queries

ARRIVE = Query(
    b"arrive",
    f"select pg_notify('{READY}', '{ARRIVED}')",
    nothing,
)

#: parameter: the payloads of the notices
ANNOUNCE_LINKS = Query(
    b"announce_links",
    f"select pg_notify('{LINK}', t) from unnest($1::text[]) u(t)",
    nothing,
)


def arrive(asked: Queries) -> None:
    """Notify the other instances that this one has started."""
    asked.ask(ARRIVE, [], lambda _: None)


def announce_links(asked: Queries, texts: list[str], told: Callable[[], None]) -> None:
    """Notify the other instances that links are attached; each text names one."""
    asked.ask(ANNOUNCE_LINKS, [arrays.text([text.encode() for text in texts])], lambda _: told())
