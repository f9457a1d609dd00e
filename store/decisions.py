"""The outcome of a transaction that this instance does not hold (T11).

The question decides: a transaction without an op gets one at once, ``rollback`` for the reason ``asked``, and the first
decision wins. A commit that another instance has under way is in the index of ops already; the question waits for it,
on a connection of its own, so that nothing else waits. The wait is bounded: a question without an answer in time is
told to ask again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import structlog
from psycopg import pq

from store.errors import Contended, StoreError, StoreUnavailable
from store.libpq import Connection
from store.loop import Loop
from store.tables import SCHEMA

log = structlog.get_logger(__name__)

#: The reason of a rollback that a question has decided.
ASKED = "asked"
#: In place of a decision: the transaction is checkable, and has none.
UNDECIDED = "undecided"
#: Questions that may wait for their turn; further ones are refused.
MOST_WAITING = 10_000
#: A client whose question waits longer is told to ask again.
LONGEST_WAIT_SECONDS = 10.0
#: Between checks for questions that have waited too long.
_LOOK_SECONDS = 1.0

#: The wait for a commit of another instance is cut into pieces, so that other questions get their turns.
_SETUP = "set synchronous_commit = on; set lock_timeout = '200ms'"

#: Whether decisions as old as a txn-id are still kept. Retention writes that date before it drops any.
_KEPT = f"""not exists (select from {SCHEMA}.retention where table_name = 'op' and kept_from >
    (to_timestamp(('x' || substr(replace($1::uuid::text, '-', ''), 1, 12))::bit(48)::bigint / 1000.0)
     at time zone 'utc')::date)"""

#: parameters: txn-id, instance. Decides the transaction, unless it is decided
_DECIDE = f"""insert into {SCHEMA}.op (id, decision, txn_id, reason, posted, instance_id)
    select $1::uuid, 'rollback', $1::uuid, '{ASKED}',
           coalesce((select posted from {SCHEMA}.txn where id = $1::uuid), 0), $2::int4
     where {_KEPT} and not exists (select from {SCHEMA}.txn where id = $1::uuid and producer_group is not null)
        on conflict do nothing"""

#: parameters: txn-id, decision, reason, instance. Decides a checkable transaction, unless it is decided
_DECIDE_AS = f"""select {SCHEMA}.decide($1::uuid, $2::text, $3::text, $4::int4) where {_KEPT}"""

#: parameter: txn-id. A decision can be seen before the disk or the standby has it; this statement commits after it.
_READ = f"""with behind as materialized (select pg_logical_emit_message(true, 'coordinator', ''))
    select o.decision, coalesce(o.reason, ''),
           ' at ' || to_char(o.decided_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
           || coalesce(' by instance ' || o.instance_id, ' by an operator')
      from {SCHEMA}.op o, behind
     where o.id = $1::uuid and o.decision in ('commit', 'rollback') and {_KEPT}
    union all
    select '{UNDECIDED}', t.producer_group, '' from {SCHEMA}.txn t
     where t.id = $1::uuid and t.producer_group is not null
       and not exists (select from {SCHEMA}.op o where o.id = t.id)"""


@dataclass(frozen=True)
class Decision:
    """``commit`` or ``rollback``, and why; ``by``: when and by what, as a clause for a text."""

    decision: str
    reason: str
    by: str = field(default="", compare=False)


class Undecided(NamedTuple):
    """A checkable transaction, and its producer group: a question does not decide it."""

    group: str


#: Called with the decision; None: the transaction is older than decisions are kept.
Found = Callable[[Decision | StoreError | None], None]
Asked = Callable[[Decision | Undecided | StoreError | None], None]


class _Question:
    """``decide``: the statement that decides, unless there is a decision, and its parameters."""

    __slots__ = ("decide", "found", "since", "txn_id")

    def __init__(self, txn_id: bytes, found: Asked, decide: tuple[bytes, str, Sequence[bytes]]) -> None:
        self.txn_id = txn_id
        self.found = found
        self.decide = decide
        self.since = time.monotonic()


class Decisions:
    """Asks, one question after the other."""

    def __init__(self, loop: Loop, url: str, instance_id: int) -> None:
        self.connection = Connection(loop, url, f"decisions {instance_id}", _SETUP, self)
        self._loop = loop
        self._instance = instance_id.to_bytes(4, "big")
        #: the first is under way, where there is a connection
        self._waiting: dict[_Question, None] = {}
        self._looks = False

    def start(self) -> None:
        self.connection.start()

    def close(self) -> None:
        self.connection.close()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def ask(self, txn_id: bytes, found: Asked) -> None:
        """``txn_id``: one that this store has made. A plain transaction without a decision is rolled back."""
        self._take(_Question(txn_id, found, (b"decide", _DECIDE, [txn_id, self._instance])))

    def decide(self, txn_id: bytes, decision: str, reason: str, found: Found) -> None:
        """Decide a checkable transaction: ``commit`` or ``rollback``. ``found`` gets the decision that stands, this one
        or one that was first; AddressGone: it cannot be committed.
        """
        parameters = [txn_id, decision.encode(), reason.encode(), self._instance]

        def answered(answer: Decision | Undecided | StoreError | None) -> None:
            found(None if isinstance(answer, Undecided) else answer)

        self._take(_Question(txn_id, answered, (b"decide_as", _DECIDE_AS, parameters)))

    def _take(self, question: _Question) -> None:
        if len(self._waiting) >= MOST_WAITING:
            question.found(StoreUnavailable("too many questions wait"))
            return
        self._waiting[question] = None
        if not self._looks:
            self._looks = True
            self._loop.call_later(_LOOK_SECONDS, self._look)
        self._kick()

    def _look(self) -> None:
        """Answer questions that have waited too long. One that is under way may still decide its transaction."""
        latest = time.monotonic() - LONGEST_WAIT_SECONDS
        late = [question for question in self._waiting if question.since < latest]
        for question in late:
            del self._waiting[question]
        self._looks = bool(self._waiting)
        if self._looks:
            self._loop.call_later(_LOOK_SECONDS, self._look)
        if late:
            log.error("questions about outcomes were not answered in time", questions=len(late))
        for question in late:
            question.found(StoreUnavailable(f"no answer within {LONGEST_WAIT_SECONDS:g} s"))

    def _kick(self) -> None:
        if self._waiting and self.connection.idle:
            question = next(iter(self._waiting))
            self.connection.execute(*question.decide, partial(self._decided, question))

    def _decided(self, question: _Question, answer: list[pq.abc.PGresult] | StoreError) -> None:
        if question not in self._waiting:
            self._kick()
        elif isinstance(answer, Contended):
            self._waiting[question] = self._waiting.pop(question)
            self._kick()
        elif isinstance(answer, StoreError):
            self._answer(question, answer)
        else:
            self.connection.execute(b"read", _READ, [question.txn_id], partial(self._read, question))

    def _read(self, question: _Question, answer: list[pq.abc.PGresult] | StoreError) -> None:
        if question not in self._waiting:
            self._kick()
        elif isinstance(answer, StoreError):
            self._answer(question, answer)
        elif answer[-1].ntuples:
            decision, reason, by = ((answer[-1].get_value(0, column) or b"").decode() for column in range(3))
            found = Undecided(reason) if decision == UNDECIDED else Decision(decision, reason, by)
            self._answer(question, found)
        else:
            self._answer(question, None)

    def _answer(self, question: _Question, answer: Decision | Undecided | StoreError | None) -> None:
        del self._waiting[question]
        if isinstance(answer, StoreError):
            log.error("cannot ask for the outcome of a transaction", error=str(answer))
        self._kick()
        question.found(answer)

    # -- the connection's owner: a question whose reply was lost is asked again, which decides nothing twice

    def connected(self) -> None:
        self._kick()

    def lost(self) -> None:
        pass

    def notified(self, channel: str, payload: str) -> None:
        pass
