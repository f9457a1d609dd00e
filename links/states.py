"""This module encodes and decodes delivery states: transactional ones (part 4, sections 4.5.5 and 4.5.8) and outcomes.

Proton 0.40 has no types for ``declared`` and ``transactional-state``: they are lists of fields in a disposition's data.
This is the file to change once Proton has types for them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import structlog

from coordinator.errors import Refusal
from coordinator.outcomes import ACCEPTED, RELEASED, Kind, Outcome
from links import engine
from links.performatives import starts_of
from store.codec.encoding import (
    DecodeError,
    contents,
    decode,
    encode_binary,
    encode_boolean,
    encode_list,
    encode_map,
    encode_string,
    encode_symbol,
    pairs,
    scalar,
    skip,
)
from store.codec.values import Described, Symbol

if TYPE_CHECKING:
    from store.spool import Octets

log = structlog.get_logger(__name__)

_ACCEPTED_DESCRIBED = b"\x00\x53\x24\x45"

#: the most octets of a state that is decoded once for all its deliveries: a txn-id with an outcome without fields
_SHORT = 64

_ACCEPTED = (0x24, "amqp:accepted:list")
_REJECTED = (0x25, "amqp:rejected:list")
_RELEASED = (0x26, "amqp:released:list")
_MODIFIED = (0x27, "amqp:modified:list")
#: octets of a delivery-tag (part 2, section 2.8.7)
LONGEST_TAG = 32
#: ``received`` and ``transactional-state``
_WITHOUT_OUTCOME = (0x23, "amqp:received:list", 0x34, "amqp:transactional-state:list")
#: the key in an error's info that names the delivery (anonymous terminus 1.0, section 2.2)
DELIVERY_TAG = "delivery-tag"
_EMPTY_MAP = encode_map([])
_NULL = b"\x40"
#: delivery-failed and undeliverable-here
_FIELDS_OF_MODIFIED = 2
#: how many characters of a consumer's rejection error are kept
_LONGEST_ERROR = 1000


def declared(txn_id: bytes) -> bytes:
    """Encode the fields of ``declared``, and of a ``transactional-state`` without an outcome; ``txn_id`` has 16
    octets.
    """
    return b"\xc0\x13\x01\xa0\x10" + txn_id


def accepted_in(txn_id: bytes) -> bytes:
    """Encode the fields of ``transactional-state(txn-id, accepted)``."""
    return b"\xc0\x17\x02\xa0\x10" + txn_id + _ACCEPTED_DESCRIBED


def rejected_in(txn_id: bytes, refusal: Refusal, tag: bytes | None) -> bytes:
    """Encode the fields of ``transactional-state(txn-id, rejected(error))``. ``tag``: the tag in the error's info, if
    any.
    """
    fields = [encode_symbol(refusal.condition), encode_string(engine.description_of(refusal.description))]
    if tag is not None:
        fields.append(encode_map([encode_symbol(DELIVERY_TAG) + encode_binary(tag)]))
    error = b"\x00\x53\x1d" + encode_list(fields)
    return encode_list([b"\xa0\x10" + txn_id, b"\x00\x53\x25" + encode_list([error])])


def retired_in(txn_id: bytes, kind: Kind) -> bytes:
    """Encode the fields of ``transactional-state(txn-id, outcome)``, with an outcome of this kind."""
    return b"\xc0\x17\x02\xa0\x10" + txn_id + b"\x00\x53" + bytes((CODE[kind],)) + b"\x45"


def txn_id_of(delivery: engine.Pointer) -> bytes:
    """Return the txn-id of a remote transactional state; empty if it has none."""
    octets = engine.encoded(engine.disposition_data(engine.delivery_remote(delivery)))
    # Proton encodes a list32: a binary of 16 octets is at 11 to 27
    if octets[9:11] == b"\xa0\x10":
        return octets[11:27]
    return _fields(octets)[0]


def retirement_of(delivery: engine.Pointer, fields: bytes | None) -> tuple[bytes, Outcome | None]:
    """Return the txn-id and outcome of a remote transactional state; the outcome is None if it has none. ``fields``:
    the encoded fields, None if not known.
    """
    octets = fields or engine.encoded(engine.disposition_data(engine.delivery_remote(delivery)))
    return _fields(octets) if len(octets) > _SHORT else _short_fields(octets)


@lru_cache(maxsize=64)
def _short_fields(octets: bytes) -> tuple[bytes, Outcome | None]:
    # Proton encodes a list32: a binary of 16 octets is at 11 to 27
    if octets[27:] == _ACCEPTED_DESCRIBED and octets[9:11] == b"\xa0\x10":
        return octets[11:27], ACCEPTED
    return _fields(octets)


def _fields(octets: bytes) -> tuple[bytes, Outcome | None]:
    """Decode the fields of a state.

    :raises DecodeError: the state is malformed.
    """
    fields, _ = decode(octets)
    if type(fields) is not list or not fields or not isinstance(fields[0], bytes):
        raise DecodeError("a transactional-state was expected: a list that begins with a binary txn-id")
    outcome = fields[1] if len(fields) > 1 else None
    if outcome is None:
        return fields[0], None
    if not isinstance(outcome, Described):
        raise DecodeError("the outcome of a transactional-state was expected to be a described list")
    return fields[0], _outcome(octets, outcome)


def _outcome(octets: bytes, described: Described) -> Outcome | None:
    descriptor, value = described
    if type(value) is not list:
        raise DecodeError("the outcome of a transactional-state was expected to be a described list")
    fields = value
    if descriptor in _ACCEPTED:
        return ACCEPTED
    if descriptor in _RELEASED:
        return RELEASED
    if descriptor in _REJECTED:
        return Outcome(Kind.REJECTED, error=_error(fields[0] if fields else None))
    if descriptor in _MODIFIED:
        fields = fields + [None] * (3 - len(fields))
        return Outcome(
            Kind.MODIFIED,
            delivery_failed=fields[0] is True,
            undeliverable_here=fields[1] is True,
            annotations=_annotations(octets) if fields[2] else b"",
        )
    raise DecodeError(f"{descriptor!r} is not an outcome: accepted, rejected, released or modified was expected")


def _error(error: object) -> str:
    value = error.value if isinstance(error, Described) else error
    if not isinstance(value, list) or not value:
        return "rejected"
    condition, description = (each if isinstance(each, str) else "" for each in (*value, "", "")[:2])
    return f"{condition}: {description}"[:_LONGEST_ERROR] if description else condition[:_LONGEST_ERROR] or "rejected"


def _annotations(octets: bytes) -> bytes:
    """Return the octets of the map in ``modified``: the third field of the outcome, which is the state's second
    field.
    """
    at = contents(octets, 0)[0]
    at = skip(octets, at)  # the txn-id
    at = skip(octets, at + 1)  # the descriptor
    at = contents(octets, at)[0]
    at = skip(octets, skip(octets, at))
    return _symbolic(octets, at)


@lru_cache(maxsize=4)  # one disposition gives its state to thousands of deliveries
def _symbolic(octets: bytes, at: int) -> bytes:
    """Return the map at ``at``, with only the pairs that can be decoded and whose keys are symbols (part 3, section
    3.2.10).

    :raises DecodeError: it is not a map.
    """
    there = pairs(octets, at)
    kept = [raw for key, raw in there if isinstance(key, Symbol) and _readable(raw)]
    if len(kept) < len(there):
        log.info("annotations of an outcome are left out: a key is a symbol", left_out=len(there) - len(kept))
    return encode_map(kept)


def _readable(pair: bytes) -> bool:
    try:
        decode(pair, skip(pair, 0))
    except DecodeError:
        return False
    return True


def plain_outcome(delivery: engine.Pointer, state: int) -> Outcome | None:
    """Return the outcome of a remote state outside transactions; None: it is not an outcome (``received``, or no
    state).
    """
    if state == engine.ACCEPTED:
        return ACCEPTED
    if state == engine.RELEASED:
        return RELEASED
    remote = engine.delivery_remote(delivery)
    if state == engine.REJECTED:
        return Outcome(
            Kind.REJECTED,
            error=(engine.condition_of(engine.disposition_condition(remote)) or "rejected")[:_LONGEST_ERROR],
        )
    if state == engine.MODIFIED:
        try:
            annotations = _symbolic(engine.encoded(engine.disposition_annotations(remote)), 0)
        except DecodeError:
            annotations = b""  # missing, or not a map
        return Outcome(
            Kind.MODIFIED,
            delivery_failed=bool(engine.disposition_is_failed(remote)),
            undeliverable_here=bool(engine.disposition_is_undeliverable(remote)),
            annotations=b"" if annotations == _EMPTY_MAP else annotations,
        )
    return None


#: the delivery state of each outcome on the wire
CODE: dict[Kind, int] = {
    Kind.ACCEPTED: engine.ACCEPTED,
    Kind.REJECTED: engine.REJECTED,
    Kind.RELEASED: engine.RELEASED,
    Kind.MODIFIED: engine.MODIFIED,
}
_BY_CODE: dict[int, Kind] = {code: kind for kind, code in CODE.items()}


def default_outcome(octets: Octets, at: int) -> Outcome | None:
    """Decode the default-outcome of a source (part 3, section 3.5.3), the value at ``at``; None: it is null.

    :raises DecodeError: it is not one of the four outcomes.
    """
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


def recovered(octets: bytes, prefix: bytes) -> dict[int, Outcome]:
    """Decode a receiver's map of unsettled deliveries (part 2, section 2.7.3): the outcomes that it has decided on, by
    the ids of the entries. ``prefix``: of the tags of this store (D8); others, and deliveries without a state, partly
    received or in a transaction are left out.

    :raises DecodeError: it is not a map of states by tags.
    """
    found: dict[int, Outcome] = {}
    for tag, pair in pairs(octets, 0):
        if type(tag) is not bytes or len(tag) > LONGEST_TAG:
            raise DecodeError(f"a map of unsettled deliveries has tags of at most {LONGEST_TAG} octets as its keys")
        if not tag.startswith(prefix) or not tag[len(prefix) :].isdigit():
            continue
        state = pair[skip(pair, 0) :]
        if state == _ACCEPTED_DESCRIBED:
            found[int(tag[len(prefix) :])] = ACCEPTED
            continue
        if state == _NULL:
            continue
        if state[:1] != b"\x00":
            raise DecodeError("a map of unsettled deliveries has a value that is no delivery-state")
        if scalar(state, 1)[0] in _WITHOUT_OUTCOME:
            continue
        outcome = _fields(encode_list([encode_binary(b""), state]))[1]
        if outcome is not None:
            found[int(tag[len(prefix) :])] = outcome
    return found


def encoded(outcome: Outcome) -> bytes:
    """Encode an outcome for an answer: annotations of a modified, and the error of a rejected, are omitted."""
    fields = []
    if outcome.kind is Kind.MODIFIED:
        fields = [encode_boolean(outcome.delivery_failed), encode_boolean(outcome.undeliverable_here)]
    return b"\x00\x53" + bytes((CODE[outcome.kind],)) + (encode_list(fields) if fields else b"\x45")
