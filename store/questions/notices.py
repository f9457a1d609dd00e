"""Notices to the other instances that no change of the store brings with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store.asking import Query, nothing
from store.channels import ARRIVED, LINK, READY

if TYPE_CHECKING:
    from store.asking import Queries

ARRIVE = Query(
    b"arrive",
    f"select pg_notify('{READY}', '{ARRIVED}')",
    nothing,
)

#: parameter: the payload of the notice
ANNOUNCE_LINK = Query(
    b"announce_link",
    f"select pg_notify('{LINK}', $1::text)",
    nothing,
)


def arrive(asked: Queries) -> None:
    """This instance has begun."""
    asked.ask(ARRIVE, [], lambda _: None)


def announce_link(asked: Queries, text: str) -> None:
    """A link of a lasting subscription is attached; ``text`` says which."""
    asked.ask(ANNOUNCE_LINK, [text.encode()], lambda _: None)
