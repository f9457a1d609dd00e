"""What an attach says of its source and target, and the engine does not show (part 3, section 3.5.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from coordinator.outcomes import ACCEPTED, RELEASED, Kind, Outcome
from links import states
from links.performatives import Performative, starts_of
from store.codec.encoding import DecodeError, encode_boolean, encode_list, scalar

if TYPE_CHECKING:
    from store.spool import Octets

_SOURCE, _TARGET = 5, 6
_DEFAULT_OUTCOME = 8
_FIELDS_OF_MODIFIED = 2
_NULL = b"\x40"
_BY_CODE = {code: kind for kind, code in states.CODE.items()}


class Termini(NamedTuple):
    """``source`` and ``target``: whether there is one. ``default_outcome``: of the source; None: it names none."""

    source: bool
    target: bool
    default_outcome: Outcome | None


def asked(attach: Performative) -> Termini:
    """:raises DecodeError: the default-outcome is none of the four."""
    fields = attach.fields(_SOURCE, _DEFAULT_OUTCOME + 1)
    outcome = None
    if len(fields) > _DEFAULT_OUTCOME:
        outcome = _outcome(attach.octets, fields[_DEFAULT_OUTCOME])
    return Termini(attach.has(_SOURCE), attach.has(_TARGET), outcome)


def _outcome(octets: Octets, at: int) -> Outcome | None:
    if octets[at : at + 1] == _NULL:
        return None
    kind = None
    if octets[at : at + 1] == b"\x00":
        code, after = scalar(octets, at + 1)
        kind = _BY_CODE.get(code) if type(code) is int else None
    if kind is None:
        raise DecodeError("the default-outcome of a source is accepted, rejected, released or modified")
    if kind is Kind.MODIFIED:
        said = [scalar(octets, each)[0] is True for each in starts_of(octets, after, _FIELDS_OF_MODIFIED)]
        failed, undeliverable = (*said, False, False)[:2]
        return Outcome(kind, delivery_failed=failed, undeliverable_here=undeliverable)
    if kind is Kind.REJECTED:
        return Outcome(kind, error="rejected: the default-outcome of its source")
    return ACCEPTED if kind is Kind.ACCEPTED else RELEASED


def encoded(outcome: Outcome) -> bytes:
    """As an answer says it: annotations of a modified, and the error of a rejected, are not granted."""
    fields = []
    if outcome.kind is Kind.MODIFIED:
        fields = [encode_boolean(outcome.delivery_failed), encode_boolean(outcome.undeliverable_here)]
    return b"\x00\x53" + bytes((states.CODE[outcome.kind],)) + (encode_list(fields) if fields else b"\x45")
