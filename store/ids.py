"""Generate ids that are unique over instances and restarts, and grow with time.

* Halves and entries: 63 bits: milliseconds since 2024-01-01 UTC (41), the instance's slot (10), a sequence (12).
  One instance's ids only grow; ranges of ids are ranges of time, so partitions by id are partitions by day.
* Transactions and ops: a UUIDv7 (RFC 9562, section 5.7): 48 bits of Unix milliseconds, a counter, and random bits.
  In a txn-id the random bits are its instance and a check with the store's secret: a client can neither guess one
  (which would let it query the outcome) nor invent one for the store to decide. The check covers its user, too:
  the txn-id alone proves whose transaction it is (S3), whatever rows the store has of it.
"""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, timedelta
from hashlib import blake2b
from hmac import compare_digest

from store.clock import CLOCK

EPOCH_MS = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp() * 1000)

_SEQUENCE_BITS = 12
_SLOT_BITS = 10
_TIME_SHIFT = _SEQUENCE_BITS + _SLOT_BITS
_SEQUENCE_MASK = (1 << _SEQUENCE_BITS) - 1
SLOTS = 1 << _SLOT_BITS
#: the slot of ids that administration generates, one process at a time
ADMINISTRATION = SLOTS - 1
#: the slot of ids that the database generates for messages that applications post in SQL (X2); instances have the
#: slots below
OUTBOX = SLOTS - 2

#: The longest time from the declare of a transaction to its decision: it may be a day without work, a day until its
#: timeout, and wait while the store is away.
LONGEST_UNDECIDED = timedelta(days=3)

_CHECK_OCTETS = 5


def id_at(moment: datetime) -> int:
    """Return the lowest half id that can have been generated at ``moment`` (aware)."""
    return (int(moment.timestamp() * 1000) - EPOCH_MS) << _TIME_SHIFT


def begin_of(day: date) -> datetime:
    """Return the first moment of ``day`` (UTC)."""
    return datetime.combine(day, datetime.min.time(), UTC)


def moment_of(half_id: int) -> datetime:
    """Return when ``half_id`` was generated, in milliseconds, by the clock of its instance."""
    return datetime.fromtimestamp(((half_id >> _TIME_SHIFT) + EPOCH_MS) / 1000, UTC)


class HalfIds:
    """Generates the half and entry ids of one instance: each exceeds the one before, even if the clock is set back."""

    __slots__ = ("_last", "_slot")

    def __init__(self, slot: int, above: int = 0) -> None:
        """``slot``: below :data:`SLOTS`; no other living instance has it (:func:`store.recovery.register`).

        ``above``: the highest id in the store at the start, so that a clock set back repeats none.
        """
        if not 0 <= slot < SLOTS:
            raise ValueError(f"slot {slot}: expected 0 to {SLOTS - 1}")
        self._slot = slot << _SEQUENCE_BITS
        self._last = (((above >> _TIME_SHIFT) + 1) << _TIME_SHIFT | self._slot) if above else 0
        self.advance()

    @property
    def last(self) -> int:
        """Return the highest id generated so far, or the lowest for the clock's time if that is higher."""
        return self._last

    def advance(self) -> None:
        """Advance to the time of the clock; once a turn is enough."""
        floor = (int(CLOCK.now() * 1000) - EPOCH_MS) << _TIME_SHIFT | self._slot
        if floor > self._last:
            self._last = floor

    def next(self) -> int:
        value = self._last + 1
        if not value & _SEQUENCE_MASK:  # this millisecond is used up: take ids of the next one, in the same slot
            value = ((self._last >> _TIME_SHIFT) + 1) << _TIME_SHIFT | self._slot
        self._last = value
        return value

    def take(self, count: int) -> list[int]:
        """Return the next ``count`` ids, as from :meth:`next`."""
        first = self._last + 1
        used = first & _SEQUENCE_MASK
        if not used or used + count - 1 > _SEQUENCE_MASK:
            return [self.next() for _ in range(count)]
        self._last += count
        return list(range(first, first + count))


class UuidV7:
    """Generates UUIDv7 as 16 octets; each exceeds the one before."""

    __slots__ = ("_high", "_offset", "_random")

    def __init__(self) -> None:
        self._high = 0
        self._random = b""
        self._offset = 0

    def next(self) -> bytes:
        # 48 bits of time and 12 of counter as one number that only grows
        high = int(CLOCK.now() * 1000) << 12
        if high <= self._high:
            high = self._high + 1
        self._high = high
        offset = self._offset
        if offset == len(self._random):
            self._random = os.urandom(4096)
            offset = 0
        self._offset = offset + 8
        random = int.from_bytes(self._random[offset : offset + 8], "big") >> 2
        return (((high >> 12) << 80) | (0x7 << 76) | ((high & 0xFFF) << 64) | (0x2 << 62) | random).to_bytes(16, "big")


class TxnIds:
    """Generates txn-ids: UUIDv7 as 16 octets, each above the one before.

    In place of random bits they have 22 bits of the instance and 40 of the check. They are unique for ever: an
    instance's times with their counter only grow, and no two instances have the same number.
    """

    __slots__ = ("_high", "_instance", "_keyed")

    def __init__(self, instance_id: int, secret: bytes) -> None:
        self._high = 0
        self._instance = 0x7 << 76 | 0x2 << 62 | (instance_id & 0x3FFFFF) << 40
        self._keyed = blake2b(key=secret, digest_size=_CHECK_OCTETS)

    def next(self, user: str | None = None) -> bytes:
        """Return a new txn-id. ``user``: the id of its owner; None: a client without a login."""
        high = int(CLOCK.now() * 1000) << 12
        if high <= self._high:
            high = self._high + 1
        self._high = high
        plain = ((high >> 12) << 80 | (high & 0xFFF) << 64 | self._instance).to_bytes(16, "big")[:-_CHECK_OCTETS]
        check = self._keyed.copy()
        check.update(plain if user is None else plain + user.encode())
        return plain + check.digest()

    def genuine(self, txn_id: bytes, user: str | None = None) -> bool:
        """Whether this store has generated the txn-id for this user."""
        plain = txn_id[:-_CHECK_OCTETS]
        check = self._keyed.copy()
        check.update(plain if user is None else plain + user.encode())
        return len(txn_id) == 16 and compare_digest(check.digest(), txn_id[-_CHECK_OCTETS:])


#: 9999-01-01: a forged txn-id may contain a later time, which ``datetime`` cannot represent
_LATEST_MS = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp() * 1000)


def declared_at(txn_id: bytes) -> datetime:
    """Return when a txn-id was generated: the first 48 bits of a UUIDv7 are Unix milliseconds."""
    return datetime.fromtimestamp(min(int.from_bytes(txn_id[:6], "big"), _LATEST_MS) / 1000, UTC)


def slot_of(half_id: int) -> int:
    """Return the slot of who generated the id of a half or an entry: of an instance, or :data:`OUTBOX`."""
    return half_id >> _SEQUENCE_BITS & (SLOTS - 1)


def micros_of(txn_id: bytes) -> int:
    """Return when a txn-id was generated, in microseconds of Unix time."""
    return int.from_bytes(txn_id[:6], "big") * 1000
