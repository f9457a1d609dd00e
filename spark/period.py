"""The period of a run: which transactions and messages it judges, and what must be read to judge them.

**The definition.** A transaction belongs to the period in which it was *declared* (the time in its txn-id, a UUIDv7),
and with it all its halves, whenever they were posted. A message posted outside any transaction belongs to the period
in which it was *posted* (the time in its id). So each row says by its own ids which period it is of, a transaction is
never cut in two by an edge, and neighbouring periods judge every message once.

What became of a message of the period may have happened at any later time, up to the snapshot. Ops of deliveries are
therefore read without an upper bound, and from ``MARGIN`` before the period, as an op is never older than its half
except by the difference of two clocks.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from store.ids import EPOCH_MS, LONGEST_UNDECIDED, id_at

#: By how much the clocks of instances and of PostgreSQL may differ without a false finding.
MARGIN: Final = timedelta(days=1)

#: Before it no half can have been made (:mod:`store.ids`).
BEGINNING: Final = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)

#: After it ids have no more room (41 bits of milliseconds).
END: Final = datetime.fromtimestamp((EPOCH_MS + (1 << 41) - 1) // 1000, UTC)


def uuid_at(moment: datetime) -> str:
    """The lowest UUIDv7 that can have been made at ``moment`` (aware), as the store shows it: text in lower case."""
    return str(uuid.UUID(int=int(moment.timestamp() * 1000) << 80))


@dataclass(frozen=True, kw_only=True)
class Period:
    """``since`` <= declared (or posted outside a transaction) < ``until``; both aware.

    ``reach`` is how far before ``since`` messages are read although they are not judged: the longest *grace* of the
    books, as the message of a row in the period may be that much older than ``since``.
    """

    since: datetime = BEGINNING
    until: datetime = END
    reach: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        for name, moment in (("since", self.since), ("until", self.until)):
            if moment.tzinfo is None:
                raise ValueError(f"{name} has no time zone: {moment.isoformat()}")
        if self.since >= self.until:
            raise ValueError(f"since ({self.since.isoformat()}) must be before until ({self.until.isoformat()})")
        if self.reach < timedelta(0):
            raise ValueError(f"reach must not be negative: {self.reach}")
        for name, moment in (("until", self.until), ("since", self.since)):
            if (moment <= BEGINNING) if name == "until" else (moment >= END):
                raise ValueError(
                    f"{name} is {moment.isoformat()}; a store has times from {BEGINNING:%Y-%m-%d} to {END:%Y-%m-%d}"
                )
        object.__setattr__(self, "since", min(max(self.since, BEGINNING), END))
        object.__setattr__(self, "until", min(max(self.until, BEGINNING), END))

    @property
    def read_from(self) -> datetime:
        """What a run reads of halves and ops is complete from then on."""
        return max(BEGINNING + MARGIN, self.since - self.reach) - MARGIN

    @property
    def is_all(self) -> bool:
        """Whether it is all there is."""
        return self.since == BEGINNING and self.until == END

    def judged(self, half_id: str) -> str:
        """SQL beside ``txn_high``: does the message belong to the period?"""
        return f"case when txn_high is null then {self.posted(half_id)} else {self.declared_high('txn_high')} end"

    def posted(self, half_id: str) -> str:
        """SQL: was the message whose id is in ``half_id`` posted in the period?"""
        return f"({half_id} >= {id_at(self.since)} and {half_id} < {id_at(self.until)})"

    def declares(self, txn_id: str) -> bool:
        """Whether the transaction belongs to the period."""
        return uuid_at(self.since) <= txn_id < uuid_at(self.until)

    def declared_high(self, column: str) -> str:
        """SQL: the same by the first 64 bits of the id."""
        since, until = (uuid.UUID(uuid_at(moment)).int >> 64 for moment in (self.since, self.until))
        return f"({column} >= {since} and {column} < {until})"

    def declared(self, column: str) -> str:
        """SQL: does the transaction whose id is in ``column`` belong to the period?"""
        return f"({column} >= '{uuid_at(self.since)}' and {column} < '{uuid_at(self.until)}')"

    def read(self, table: str, *, moments: str = "timestamptz") -> str:
        """SQL: the rows of ``table`` that a run over the period needs; ``true`` where it needs all. ``moments``: the
        name of their type, PostgreSQL's or Spark's.
        """
        lowest = id_at(self.read_from)
        if table == "half":
            # Ids of the period also serve to find ops whose half is nowhere, whatever transaction they were of. A
            # book's messages may come before the period (reach) and after it, up to now.
            if self.reach or self.until == END:
                return f"id >= {lowest}"
            return f"(id >= {lowest} and (id < {id_at(self.until)} or {self.declared('txn_id')}))"
        if table == "entry":
            return f"half_id >= {lowest}"
        if table == "op":
            # The decisions of the period by key; those that retired deliveries by time, for a transaction may retire
            # what was posted after it was declared. How long before is bounded, so days before that are not read.
            lowest_op = uuid_at(self.read_from - LONGEST_UNDECIDED)
            earliest = f"'{self.read_from.isoformat()}'::{moments}"
            decisions = f"(id >= '{uuid_at(self.read_from)}'"
            if not self.reach:
                decisions += f" and id < '{uuid_at(self.until)}'"
            retired = f"(half_ids is not null and decided_at >= {earliest})"
            return f"(id >= '{lowest_op}' and ({decisions}) or {retired}))"
        return "true"
