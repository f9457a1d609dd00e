"""A client attaches the link of a lasting subscription again, at another instance: the later link stays (P13).

A notice announces each attach. PostgreSQL delivers all notices to all instances in the order of their commits, so all
see the same one last: a notice of another instance that comes after a link's own notice steals the link.
"""

from __future__ import annotations

import hashlib
from itertools import count
from typing import TYPE_CHECKING, Protocol

from coordinator.errors import Condition, Refusal
from store.questions import notices

if TYPE_CHECKING:
    from coordinator.instance import Instance

_STOLEN = Refusal(Condition.STOLEN, "the link was attached again, by way of another process of the service")


class Stealable(Protocol):
    def refuse(self, refusal: Refusal) -> None:
        """Another instance has the link now."""


class _Held:
    __slots__ = ("announced", "link", "number")

    def __init__(self, link: Stealable, number: int) -> None:
        self.link = link
        self.number = number
        #: whether its own notice has come
        self.announced = False


class Stealing:
    """The links of this instance that others may steal."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._held: dict[str, _Held] = {}
        self._numbers = count(1)

    def attached(self, user: str | None, container: str, name: str, link: Stealable) -> None:
        held = _Held(link, next(self._numbers))
        digest = _digest(user, container, name)
        self._held[digest] = held
        notices.announce_link(self._instance.queries, f"{self._instance.instance_id} {held.number} {digest}")

    def lost(self, user: str | None, container: str, name: str, link: Stealable) -> None:
        digest = _digest(user, container, name)
        held = self._held.get(digest)
        if held is not None and held.link is link:
            del self._held[digest]

    def notified(self, payload: str) -> None:
        instance, number, digest = payload.split(" ")
        held = self._held.get(digest)
        if held is None:
            return
        if int(instance) == self._instance.instance_id:
            held.announced = held.announced or int(number) == held.number
        elif held.announced:
            held.link.refuse(_STOLEN)


def _digest(user: str | None, container: str, name: str) -> str:
    user = user or ""
    return hashlib.sha256(f"{len(user)} {user} {len(container)} {container} {name}".encode()).hexdigest()
