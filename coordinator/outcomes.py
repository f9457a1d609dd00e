"""Outcomes say what becomes of a delivery (part 3, section 3.4)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """The outcomes of a delivery (part 3, section 3.4)."""

    #: by identity, for the table that each delivery looks up: Enum's own hash is that of the name
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
    #: the service has decided it, as the link has ended (D5)
    vanished: bool = False
    #: the client may have seen the message, though it has not failed
    seen: bool = False
    #: set when its rows are written: the reason why the message moves to the dead letters; else when it may be
    #: delivered
    #: again, in microseconds since 2000; 0: at once
    dead: str = ""
    retry_at: int = 0


def without_annotations(outcome: Outcome) -> Outcome:
    return outcome._replace(annotations=b"") if outcome.annotations else outcome


def as_said(outcome: Outcome) -> Outcome:
    """Return the outcome that the consumer sent, without its effect on the message."""
    return outcome._replace(dead="", retry_at=0) if outcome.dead or outcome.retry_at else outcome


ACCEPTED = Outcome(Kind.ACCEPTED)
RELEASED = Outcome(Kind.RELEASED)
#: The default outcome of a source that names none: it applies to deliveries that their peer settled in a transaction
#: that rolled back (T28).
FAILED = Outcome(Kind.MODIFIED, delivery_failed=True)
#: The outcome of a delivery whose link has ended, which returns before newer ones, without a wait (D5); it has failed.
LOST = Outcome(Kind.MODIFIED, delivery_failed=True, vanished=True)
#: The same, but not failed: the client may have seen it. One attempt more is stored with the next change of its row.
RETURNED = Outcome(Kind.RELEASED, vanished=True, seen=True)
#: The same, but never transferred: the entry is unchanged.
UNTRANSFERRED = Outcome(Kind.RELEASED, vanished=True)
