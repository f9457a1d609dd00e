"""Query, or decide, the outcome of a transaction that this instance does not hold (T11).

The query decides: a transaction without an op gets one at once, ``rollback`` for the reason ``asked``, and the first
decision wins. A commit that another instance has under way is in the index of ops already; the query waits for it,
on a connection of its own, so that nothing else waits. The wait is bounded: a client without an answer in time has to
ask again.

Decisions of checkers, and of clients that reconnect, use the same connection, several in one SQL transaction: 100,000
transactions may be checked at once. Decisions that cannot be made together, as one waits for a lock or cannot be
committed, are made one by one (H11).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple

import structlog
from psycopg import pq

from store import arrays
from store.errors import Contended, StoreError, StoreUnavailable
from store.libpq import Connection
from store.loop import Loop
from store.reasons import APPLICATION, OF_NO_INSTANCE
from store.tables import SCHEMA

log = structlog.get_logger(__name__)

#: In place of a decision: the transaction is checkable, and not decided.
UNDECIDED = "undecided"
#: The most queries that may wait; further ones are refused.
MOST_WAITING = 10_000
#: A query that waits longer is answered with StoreUnavailable: its client has to ask again.
LONGEST_WAIT_SECONDS = 10.0
#: Decisions in one SQL transaction.
MOST_TOGETHER = 50
#: The time between checks for queries that have waited too long.
_LOOK_SECONDS = 1.0

#: The wait for a commit of another instance is cut into pieces, so that other queries get their turns. Plans are made
#: once, for tables of any size.
_SETUP = (
    "set synchronous_commit = on; set lock_timeout = '200ms'; set plan_cache_mode = force_generic_plan; "
    "set enable_seqscan = off; set enable_bitmapscan = off; set enable_hashjoin = off; set enable_mergejoin = off"
)


def _kept(txn_id: str) -> str:
    """Return SQL: whether decisions as old as a txn-id are kept. Retention writes that date before it drops any."""
    return f"""not exists (select from {SCHEMA}.retention where table_name = 'op' and kept_from >
    (to_timestamp(('x' || substr(replace({txn_id}::text, '-', ''), 1, 12))::bit(48)::bigint / 1000.0)
     at time zone 'utc')::date)"""


#: parameters: txn-id, instance. Decides the transaction, unless it is decided already
DECIDE = f"""select {SCHEMA}.ask($1::uuid, $2::int4)
     where {_kept("$1::uuid")} and not exists (select from {SCHEMA}.op o where o.id = $1::uuid)"""

#: parameters: txn-ids, each once, decisions, reasons, instance. Decides checkable transactions, unless they are
#: decided already; returns a row for each that it has decided
_DECIDE_AS = f"""select uuid_send(d.txn_id)
      from (select array_agg(u.t) as txns, array_agg(u.d) as decisions, array_agg(u.r) as reasons
              from unnest($1::uuid[], $2::text[], $3::text[]) u(t, d, r) where {_kept("u.t")}) a,
           {SCHEMA}.decide_all(a.txns, a.decisions, a.reasons, $4::int4, '{{}}', '{{}}', '{{}}', null) d
     where d.won"""

#: parameter: txn-ids. A decision is visible before the disk or the standby has it; this statement commits after it.
_READ = f"""with behind as materialized (select pg_logical_emit_message(true, 'coordinator', '')),
    asked as (select id from behind, unnest($1::uuid[]) a(id) where {_kept("a.id")})
    select uuid_send(o.id), o.decision, coalesce(o.reason, ''),
           ' at ' || to_char(o.decided_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
           || coalesce(' by instance ' || o.instance_id,
                       case when o.reason = '{APPLICATION}' then ' by an application, in SQL'
                            when o.reason = any('{{{",".join(OF_NO_INSTANCE)}}}') then '' else ' by an operator' end)
      from asked a join {SCHEMA}.op o on o.id = a.id where o.decision in ('commit', 'rollback')
    union all
    select uuid_send(t.id), '{UNDECIDED}', t.producer_group, ''
      from asked a join {SCHEMA}.txn t on t.id = a.id
     where t.producer_group is not null and not exists (select from {SCHEMA}.op o where o.id = t.id)"""


@dataclass(frozen=True)
class Decision:
    """A decision: ``commit`` or ``rollback``, and why; ``by``: when and by whom, as a clause for a text."""

    decision: str
    reason: str
    by: str = field(default="", compare=False)


class Undecided(NamedTuple):
    """The answer for an undecided checkable transaction, which a query does not decide: its producer group."""

    group: str


#: Receives the decision; None: the transaction is older than decisions are kept.
Found = Callable[[Decision | StoreError | None], None]
Asked = Callable[[Decision | Undecided | StoreError | None], None]


class _Question:
    """A query that waits. ``wanted``: the decision to make, or None to query it. ``reads``: it decides nothing."""

    __slots__ = ("alone", "found", "reads", "since", "txn_id", "wanted")

    def __init__(self, txn_id: bytes, found: Asked, wanted: Decision | None = None, *, reads: bool = False) -> None:
        self.txn_id = txn_id
        self.found = found
        self.wanted = wanted
        self.reads = reads
        self.since = time.monotonic()
        #: True if it must not be decided together with others any more
        self.alone = False


class Decisions:
    """Queries and decides the outcomes of transactions, on a connection of its own."""

    def __init__(self, loop: Loop, url: str, instance_id: int) -> None:
        self.connection = Connection(loop, url, f"decisions {instance_id}", _SETUP, self)
        self._loop = loop
        self._instance = instance_id.to_bytes(4, "big")
        #: the queries that wait or are under way, in order
        self._waiting: dict[_Question, None] = {}
        self._timer_runs = False
        #: True if the last query waited for a lock in vain
        self._contended = False

    def start(self) -> None:
        self.connection.start()

    def close(self) -> None:
        self.connection.close()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def ask(self, txn_id: bytes, found: Asked) -> None:
        """Query the outcome of a transaction that this store has declared. A plain, undecided one is rolled back."""
        self._add(_Question(txn_id, found))

    def read(self, txn_id: bytes, found: Asked) -> None:
        """Query the outcome of a transaction without deciding it. ``txn_id``: any 16 octets.

        ``found`` gets None if there is no decision, and the transaction is not checkable.
        """
        self._add(_Question(txn_id, found, reads=True))

    def decide(self, txn_id: bytes, decision: str, reason: str, found: Found) -> None:
        """Decide a checkable transaction: ``commit`` or ``rollback``.

        ``found`` gets the decision that stands, this one or one made before; AddressGone: it cannot be committed.
        """

        def answered(answer: Decision | Undecided | StoreError | None) -> None:
            found(None if isinstance(answer, Undecided) else answer)

        self._add(_Question(txn_id, answered, Decision(decision, reason)))

    def _add(self, question: _Question) -> None:
        if len(self._waiting) >= MOST_WAITING:
            question.found(StoreUnavailable("too many questions wait"))
            return
        self._waiting[question] = None
        if not self._timer_runs:
            self._timer_runs = True
            self._loop.call_later(_LOOK_SECONDS, self._expire)
        self._kick()

    def _expire(self) -> None:
        """Answer queries that have waited too long. One that is under way may still decide its transaction."""
        latest = time.monotonic() - LONGEST_WAIT_SECONDS
        late = [question for question in self._waiting if question.since < latest]
        for question in late:
            del self._waiting[question]
        self._timer_runs = bool(self._waiting)
        if self._timer_runs:
            self._loop.call_later(_LOOK_SECONDS, self._expire)
        if late:
            log.error("questions about outcomes were not answered in time", questions=len(late))
        for question in late:
            question.found(StoreUnavailable(f"no answer within {LONGEST_WAIT_SECONDS:g} s"))

    def _kick(self) -> None:
        if not self.connection.idle or not self._waiting:
            return
        together = self._together()
        if together[0].reads:
            self.connection.execute(b"read", _READ, [arrays.uuid([together[0].txn_id])], partial(self._read, together))
            return
        decided = partial(self._decided, together)
        wanted = [question.wanted for question in together if question.wanted is not None]
        if not wanted:
            self.connection.execute(b"decide", DECIDE, [together[0].txn_id, self._instance], decided)
            return
        parameters = [
            arrays.uuid([question.txn_id for question in together]),
            arrays.text([each.decision.encode() for each in wanted]),
            arrays.text([arrays.octets_of(each.reason) for each in wanted]),
            self._instance,
        ]
        self.connection.execute(b"decide_as", _DECIDE_AS, parameters, decided)

    def _together(self) -> list[_Question]:
        """Choose the first query and the decisions behind it that can be made with it, each of another transaction.

        After one that waited for a lock in vain, those not tried yet precede: each locked one takes its 0.2 s.
        """
        line: Iterable[_Question] = self._waiting
        if self._contended and any(not question.alone for question in self._waiting):
            line = (question for question in self._waiting if not question.alone)
        self._contended = False
        found: dict[bytes, _Question] = {}
        for question in islice(line, MOST_TOGETHER):
            fits = question.wanted is not None and not question.alone and question.txn_id not in found
            if found and not fits:
                break
            found[question.txn_id] = question
            if not fits:
                break
        return list(found.values())

    def _decided(self, together: list[_Question], answer: list[pq.abc.PGresult] | StoreError) -> None:
        waiting = [question for question in together if question in self._waiting]
        if isinstance(answer, StoreError):
            self._not_decided(waiting, answer, alone=len(together) == 1)
            return
        result = answer[-1]
        won = {result.get_value(row, 0) for row in range(result.ntuples)}
        rest = [question for question in waiting if question.txn_id not in won]
        if rest:
            asked = arrays.uuid([question.txn_id for question in rest])
            self.connection.execute(b"read", _READ, [asked], partial(self._read, rest))
        self._answer([(question, question.wanted) for question in waiting if question.txn_id in won])

    def _not_decided(self, waiting: list[_Question], error: StoreError, *, alone: bool) -> None:
        if alone and not isinstance(error, Contended):
            self._answer([(question, error) for question in waiting])
            return
        for question in waiting:
            if alone:
                self._waiting[question] = self._waiting.pop(question)
            question.alone = True
        self._contended = alone
        self._kick()

    def _read(self, asked: list[_Question], answer: list[pq.abc.PGresult] | StoreError) -> None:
        found: dict[bytes, Decision | Undecided] = {}
        if not isinstance(answer, StoreError):
            for row in range(answer[-1].ntuples):
                txn_id = answer[-1].get_value(row, 0) or b""
                decision, reason, by = ((answer[-1].get_value(row, column) or b"").decode() for column in (1, 2, 3))
                found[txn_id] = Undecided(reason) if decision == UNDECIDED else Decision(decision, reason, by)
        self._answer(
            [
                (question, answer if isinstance(answer, StoreError) else found.get(question.txn_id))
                for question in asked
                if question in self._waiting
            ]
        )

    def _answer(self, answers: Sequence[tuple[_Question, Decision | Undecided | StoreError | None]]) -> None:
        for question, _ in answers:
            del self._waiting[question]
        self._kick()
        for question, answer in answers:
            if isinstance(answer, StoreError):
                log.error("cannot ask for the outcome of a transaction", error=str(answer))
            try:
                question.found(answer)
            except Exception:  # noqa: BLE001 - any error is the asker's alone
                self._loop.contain(question.found)

    # -- the connection's owner: a query whose reply was lost is run again, which decides nothing twice

    def connected(self) -> None:
        self._kick()

    def lost(self) -> None:
        pass

    def notified(self, channel: str, payload: str) -> None:
        pass
