"""The outcomes of a delivery (part 3, section 3.4)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    #: by identity, as a table of each delivery's way has them as keys: Enum's own takes the hash of the name
    __hash__ = object.__hash__

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    RELEASED = "released"
    MODIFIED = "modified"


class Outcome(NamedTuple):
    kind: Kind
    #: rejected: condition and description, for the dead letter
    error: str = ""
    #: modified
    delivery_failed: bool = False
    undeliverable_here: bool = False
    annotations: bytes = b""
    #: not said by the consumer: its link has ended (D5)
    vanished: bool = False
    #: which its client may have seen, though it has not failed
    seen: bool = False
    #: set when its rows are written: the reason why the message moves to the dead letters, or else from when on it may
    #: be delivered again, in microseconds since 2000; 0: at once
    dead: str = ""
    retry_at: int = 0


def without_annotations(outcome: Outcome) -> Outcome:
    return outcome._replace(annotations=b"") if outcome.annotations else outcome


def as_said(outcome: Outcome) -> Outcome:
    """As its consumer gave it, without what becomes of the message."""
    return outcome._replace(dead="", retry_at=0) if outcome.dead or outcome.retry_at else outcome


ACCEPTED = Outcome(Kind.ACCEPTED)
RELEASED = Outcome(Kind.RELEASED)
#: The default outcome of a source that names none: it applies to deliveries that their peer settled in a transaction
#: that rolled back (T28).
FAILED = Outcome(Kind.MODIFIED, delivery_failed=True)
#: Of a delivery whose link has ended: it comes back before what is newer, without a wait (D5). It has failed:
LOST = Outcome(Kind.MODIFIED, delivery_failed=True, vanished=True)
#: its client may have seen it, and it has not failed: one attempt more, which is stored with the next change of its row
RETURNED = Outcome(Kind.RELEASED, vanished=True, seen=True)
#: it was never transferred: it is as it was before
UNTRANSFERRED = Outcome(Kind.RELEASED, vanished=True)
