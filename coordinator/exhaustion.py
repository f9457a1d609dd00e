"""What no checker has answered, however often it was asked: rolled back, and its messages kept aside (rule H10).

Every instance looks, with or without checkers. One SQL transaction decides and copies, so that a crash leaves either
all or nothing of it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from coordinator.address.addresses import UNANSWERED
from coordinator.address.letters import CHECK_COUNT, ORIGINAL_ADDRESS, PRODUCER_GROUP, TXN_ID
from store.codec.encoding import encode_binary, encode_map, encode_string, encode_symbol, encode_uint
from store.commit.terms import BEFORE
from store.errors import StoreError
from store.questions import checks as questions

if TYPE_CHECKING:
    from coordinator.address.directory import Directory
    from coordinator.address.nodes import Address
    from coordinator.errors import Refusal
    from coordinator.instance import Instance
    from store.questions.checks import Exhausted, Late

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 1.0
_AT_ONCE = 20
#: between looks at all of the past, for what was written more than a minute late
_WHOLE_SECONDS = 600.0


class Exhaustion:
    def __init__(self, instance: Instance, directory: Directory) -> None:
        self._instance = instance
        self._directory = directory
        #: those that were found, without the one that is under way
        self._found: list[Exhausted] = []
        #: how long to wait after the last of them
        self._wait = _LOOK_SECONDS
        #: where to look: rows of those decided before stay there while a snapshot is held (H12)
        self._low = BEFORE
        self._whole_at = time.monotonic() + _WHOLE_SECONDS

    def look(self) -> None:
        instance = self._instance
        if instance.disk_low:  # copies take room
            instance.loop.call_later(_LOOK_SECONDS, self.look)
        else:
            now = time.monotonic()
            if now >= self._whole_at:
                self._low, self._whole_at = BEFORE, now + _WHOLE_SECONDS
            questions.find_exhausted(instance.queries, _AT_ONCE, self._low, self._looked)

    def _looked(self, answer: Late | StoreError) -> None:
        if not isinstance(answer, StoreError):
            self._low = answer.low
        if isinstance(answer, StoreError) or not answer.found:
            self._instance.loop.call_later(_LOOK_SECONDS, self.look)
            return
        self._found = answer.found
        self._wait = 0.0 if len(answer.found) == _AT_ONCE else _LOOK_SECONDS
        self._directory.resolve(UNANSWERED, self._resolved, origin="dead-letter")

    def _resolved(self, address: Address | Refusal) -> None:
        if isinstance(address, Exception):
            log.error("no address for what no checker has answered", error=str(address))
            self._found = []
            self._instance.loop.call_later(_LOOK_SECONDS, self.look)
        else:
            self._next(address)

    def _next(self, address: Address) -> None:
        """One after the other, so that one that fails stops no other (H11)."""
        if not self._found:
            self._instance.loop.call_later(self._wait, self.look)
            return
        exhausted = self._found.pop(0)
        instance = self._instance
        ids = [instance.ids.next() for _ in range(sum(exhausted.halves.values()))]
        annotations = {each: _story(exhausted, name) for each, name in exhausted.names.items()}

        def done(answer: bool | StoreError) -> None:
            txn = exhausted.txn_id.hex()
            if isinstance(answer, StoreError):
                log.error("what no checker has answered cannot be set aside", txn=txn, error=str(answer))
                questions.postpone(instance.queries, exhausted.txn_id)
            elif answer:
                log.warning("rolled back: no checker has answered", txn=txn, group=exhausted.group, halves=len(ids))
            else:  # perhaps the address was removed
                self._wait = _LOOK_SECONDS
                self._directory.changed(UNANSWERED)
            self._next(address)

        questions.exhaust(instance.queries, exhausted.txn_id, ids, address.id, annotations, instance.instance_id, done)


def _story(exhausted: Exhausted, address: str) -> bytes:
    """The annotations that say what a copy was posted in, and where to."""
    return encode_map(
        [
            encode_symbol(ORIGINAL_ADDRESS) + encode_string(address),
            encode_symbol(PRODUCER_GROUP) + encode_string(exhausted.group),
            encode_symbol(TXN_ID) + encode_binary(exhausted.txn_id),
            encode_symbol(CHECK_COUNT) + encode_uint(exhausted.checks),
        ]
    )
