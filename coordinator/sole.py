"""Sole connections: a container may claim to have one connection only (rule P15; AMQP Enforcing Connection Uniqueness
1.0).

A claim names a user and a container-id: another user's container of the same id is a different one (S3). It is a row in
the store, so that it holds over all instances. A connection that finds the claim taken notifies the holder and queries
again, until the claim is free or the holder has shown that it is alive.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Protocol

from coordinator.errors import Condition, Refusal
from store.errors import StoreError
from store.questions import sole_connections as questions
from store.recovery import STALE_SECONDS

if TYPE_CHECKING:
    from coordinator.instance import Instance

_FIRST_WAIT_SECONDS = 0.02
_LONGEST_WAIT_SECONDS = 0.5
#: How long the other instances take to declare a dead instance dead, which frees its claims.
_PATIENCE_SECONDS = STALE_SECONDS + 2.0


class Claimant(Protocol):
    """The connection that a claim is for."""

    def answered(self, refusal: Refusal | None) -> None:
        """Handle the answer, once: None if the connection has the claim, else the refusal."""

    def called(self) -> None:
        """Handle the request of another connection of the container for the claim that this one has."""


class Claim:
    """Claims a container for one connection. ``number``: the connection's in this process. ``user``: the user of its
    login; None: it has none. ``close_existing``: the policy it wants."""

    def __init__(
        self,
        instance: Instance,
        sole_connections: SoleConnections,
        holder: Claimant,
        number: int,
        user: str | None,
        container: str,
        *,
        close_existing: bool,
    ) -> None:
        self._instance = instance
        self._sole_connections = sole_connections
        self._holder = holder
        self._number = number
        self._close_existing = close_existing
        self._container = container
        self._key = questions.Holder(_digest(user, container), instance.instance_id, number)
        self._begun = time.monotonic()
        self._asked_at = ""
        self._wait = _FIRST_WAIT_SECONDS
        self._released = False
        self._query()

    def _query(self) -> None:
        if self._released:
            return
        questions.claim(
            self._instance.queries,
            self._key,
            self._container,
            close_existing=self._close_existing,
            asked_at=self._asked_at,
            answered=self._answered,
        )

    def _answered(self, answer: questions.Answer | StoreError) -> None:
        if self._released:
            return
        if isinstance(answer, StoreError):
            refusal = Refusal(Condition.INTERNAL_ERROR, "the store cannot say whether the container is connected")
            self._holder.answered(refusal)
            return
        self._asked_at = self._asked_at or answer.asked_at
        if answer.own:
            self._holder.answered(None)
        elif answer.seen or time.monotonic() - self._begun > _PATIENCE_SECONDS:
            refusal = Refusal(
                Condition.INVALID_FIELD, "the container is connected already, and asked to have one connection alone"
            )
            self._holder.answered(refusal)
        else:
            self._instance.loop.call_later(self._wait, self._query)
            self._wait = min(2 * self._wait, _LONGEST_WAIT_SECONDS)

    def called(self) -> None:
        self._holder.called()

    def renew(self) -> None:
        """Keep the claim, as the connection is alive, so that the other connection is refused."""
        if not self._released:
            questions.renew(self._instance.queries, self._key)

    def release(self) -> None:
        """Free the claim of a connection that has ended or was refused. The store answers in order, so that a claim
        under way is answered before.
        """
        self._released = True
        self._sole_connections.forget(self._number)
        questions.release(self._instance.queries, self._key)


class SoleConnections:
    """Keeps the claims of this instance's connections."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._claims: dict[int, Claim] = {}

    def claim(self, holder: Claimant, number: int, user: str | None, container: str, *, close_existing: bool) -> Claim:
        claim = Claim(self._instance, self, holder, number, user, container, close_existing=close_existing)
        self._claims[number] = claim
        return claim

    def forget(self, number: int) -> None:
        self._claims.pop(number, None)

    def called(self, payload: str) -> None:
        """Handle a NOTIFY that a connection of some instance found a claim taken; ``payload`` names the claim."""
        instance, _, number = payload.partition(" ")
        if int(instance) == self._instance.instance_id:
            claim = self._claims.get(int(number))
            if claim is not None:
                claim.called()


def _digest(user: str | None, container: str) -> bytes:
    user = user or ""
    return hashlib.sha256(f"{len(user)} {user} {container}".encode()).digest()
