"""Define the period of a run: which transactions and messages it judges, and what must be read to judge them.

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

#: The most that the clocks of instances and of PostgreSQL may differ without a false finding.
MARGIN: Final = timedelta(days=1)

#: No id of a half is from before this time (:mod:`store.ids`).
BEGINNING: Final = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)

#: The last time that ids can represent (41 bits of milliseconds).
END: Final = datetime.fromtimestamp((EPOCH_MS + (1 << 41) - 1) // 1000, UTC)


def uuid_at(moment: datetime) -> str:
    """Return the lowest UUIDv7 that can have been generated at ``moment`` (aware), as text in lower case."""
    return str(uuid.UUID(int=int(moment.timestamp() * 1000) << 80))


@dataclass(frozen=True, kw_only=True)
class Period:
    """A period: ``since`` <= declared (or posted outside a transaction) < ``until``; both aware.

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
        """Return the time from which on a run reads all halves and ops."""
        return max(BEGINNING + MARGIN, self.since - self.reach) - MARGIN

    @property
    def is_all(self) -> bool:
        """Return whether the period is all time."""
        return self.since == BEGINNING and self.until == END

    def judged(self, half_id: str) -> str:
        """Return SQL, for rows with ``txn_high``: whether the message belongs to the period."""
        return f"case when txn_high is null then {self.posted(half_id)} else {self.declared_high('txn_high')} end"

    def posted(self, half_id: str) -> str:
        """Return SQL: whether the message whose id is in ``half_id`` was posted in the period."""
        return f"({half_id} >= {id_at(self.since)} and {half_id} < {id_at(self.until)})"

    def declares(self, txn_id: str) -> bool:
        """Return whether the transaction belongs to the period."""
        return uuid_at(self.since) <= txn_id < uuid_at(self.until)

    def declared_high(self, column: str) -> str:
        """Return SQL: whether the transaction belongs to the period, by the first 64 bits of its id."""
        since, until = (uuid.UUID(uuid_at(moment)).int >> 64 for moment in (self.since, self.until))
        return f"({column} >= {since} and {column} < {until})"

    def declared(self, column: str) -> str:
        """Return SQL: whether the transaction whose id is in ``column`` belongs to the period."""
        return f"({column} >= '{uuid_at(self.since)}' and {column} < '{uuid_at(self.until)}')"

    def read(self, table: str, *, moments: str = "timestamptz") -> str:
        """Return SQL: the condition of the rows of ``table`` that a run over the period needs; ``true`` for all rows.

        ``moments``: the name of the timestamp type, PostgreSQL's or Spark's.
        """
        lowest = id_at(self.read_from)
        if table == "half":
            # Ids of the period also serve to find ops whose half does not exist, whatever their transaction. A
            # book's messages may be posted before the period (reach) and after it, up to now.
            if self.reach or self.until == END:
                return f"id >= {lowest}"
            return f"(id >= {lowest} and (id < {id_at(self.until)} or {self.declared('txn_id')}))"
        if table == "entry":
            return f"half_id >= {lowest}"
        if table == "op":
            # The decisions of the period by key; those that retired deliveries by time, as a transaction may retire
            # messages posted after its declare. The time between is bounded, so earlier days are not read.
            lowest_op = uuid_at(self.read_from - LONGEST_UNDECIDED)
            earliest = f"'{self.read_from.isoformat()}'::{moments}"
            decisions = f"(id >= '{uuid_at(self.read_from)}'"
            if not self.reach:
                decisions += f" and id < '{uuid_at(self.until)}'"
            retired = f"(half_ids is not null and decided_at >= {earliest})"
            return f"(id >= '{lowest_op}' and ({decisions}) or {retired}))"
        return "true"
