"""Write the heartbeat of an instance, on a connection of its own: no other query delays it, and each beat has a time
limit.

A database connection may neither answer nor close: a firewall forgot it, or a proxy hangs. The heartbeat's connection
is dropped after :data:`LIMIT_SECONDS`. For the others time alone proves nothing, as a commit may wait for a slow disk.
So when a query is overdue, the heartbeat queries whether the server is running it. If it is not, twice in a row,
the connection is dropped and made anew, and its owner determines whether the query took effect.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence

import structlog
from psycopg import pq

from store import arrays
from store.clock import CLOCK, reading
from store.errors import StoreError
from store.libpq import BEGAN, Connection, read_backends
from store.loop import Loop
from store.recovery import STALE_SECONDS
from store.tables import SCHEMA

log = structlog.get_logger(__name__)

BEAT_SECONDS = 2.0
#: a beat writes one row by its key: an answer that takes longer is not expected any more
LIMIT_SECONDS = 3.0
#: age of a query at which the heartbeat checks whether the server is running it
OVERDUE_SECONDS = 5.0
#: time without a beat after which other instances may give this one up before the next beat
RISK_SECONDS = STALE_SECONDS - LIMIT_SECONDS

#: the most that the clock of the database may differ from ours, beyond the duration of the beat, without a word in the
#: log: delays, expiries and retries go by the database's (:mod:`store.clock`)
CLOCK_SECONDS = 2.0

_TURN_SECONDS = 0.25
_FLOAT4 = struct.Struct(">f").pack

#: parameters: instance, how long its batch has waited, why, and how far its clock is ahead. Selects whether it still
#: counts as alive (1 or 0), how many others do, and the time of the database in microseconds since 1970
_BEAT = f"""with beat as (
      insert into {SCHEMA}.heartbeat (instance_id, commit_waits_seconds, commit_refused_with, clock_ahead_seconds)
      select id, $2::float4, $3::text, $4::float4 from {SCHEMA}.instance where id = $1::int4 and ended_at is null
      on conflict (instance_id) do update
        set beaten_at = now(), commit_waits_seconds = excluded.commit_waits_seconds,
            commit_refused_with = excluded.commit_refused_with, clock_ahead_seconds = excluded.clock_ahead_seconds
      returning instance_id)
    select (select count(*) from beat),
           (select count(*) from {SCHEMA}.instance where ended_at is null and id <> $1::int4),
           (extract(epoch from clock_timestamp()) * 1000000)::int8"""

#: parameter: server processes. Selects those that run a query; one that waits for its client's octets does not
_AT_WORK = f"""select pid, {BEGAN} from pg_stat_activity
     where pid = any($1::int4[]) and state = 'active' and wait_event_type is distinct from 'Client'"""


class Heartbeat:
    """Writes the instance's heartbeat, and drops ``watched`` connections whose query the server does not run.

    ``waits()`` returns how many seconds the batch under way has waited, and the SQLSTATE of its last refusal, or an
    empty string; each beat writes both. ``beaten(alive, peers)`` is called after each beat: whether this instance still
    counts as alive, and how many others live.
    """

    def __init__(
        self,
        loop: Loop,
        url: str,
        instance_id: int,
        *,
        watched: Sequence[Connection],
        waits: Callable[[], tuple[float, str]],
        beaten: Callable[[bool, int], None],
    ) -> None:
        self._loop = loop
        self._instance = instance_id.to_bytes(4, "big")
        self._waits = waits
        self._watched = watched
        self._on_beat = beaten
        self._connection = Connection(loop, url, f"heartbeat {instance_id}", "", self, connect_seconds=LIMIT_SECONDS)
        #: a wait of more than a beat that the last beat has written: when it ends, the next beat is at once
        self._long_wait = 0.0
        self._due = 0.0
        self._asked_at = 0.0
        self._last = time.monotonic()
        self._warned = False
        #: when the last beat was sent, by our clocks
        self._asked_by_clocks = reading()
        self._clock_differs = False
        #: seconds measured by the last beat; None: there was no beat
        self._clock_ahead: float | None = None
        #: queries of the watched connections that the server was not running at the last check
        self._idle_questions: set[tuple[Connection, int]] = set()

    def start(self) -> None:
        self._last = time.monotonic()
        self._connection.start()
        self._turn()

    def close(self) -> None:
        self._connection.close()

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def age(self) -> float:
        """Return the seconds since the start of the last beat that is known to be in the store."""
        return time.monotonic() - self._last

    def now(self) -> None:
        """Beat at once or, if a beat is under way, right after it."""
        self._due = 0.0
        self._beat()

    def _turn(self) -> None:
        self._loop.call_later(_TURN_SECONDS, self._turn)
        for each in (self._connection, *self._watched):
            each.drop_if_left_behind()
        if self._connection.overdue(LIMIT_SECONDS):
            self._connection.drop(f"no answer to the heartbeat within {LIMIT_SECONDS:g} s")
        elif time.monotonic() >= self._due or self._waits()[0] < self._long_wait:
            self._beat()
        if self.age > RISK_SECONDS and not self._warned:
            self._warned = True
            log.error("no heartbeat gets through: other instances may give this one up", seconds=round(self.age, 1))

    def _beat(self) -> None:
        if self._connection.idle:
            self._asked_by_clocks = reading()
            self._asked_at = self._asked_by_clocks.steady
            self._due = self._asked_at + BEAT_SECONDS
            waits, why = self._waits()
            self._long_wait = waits if waits >= BEAT_SECONDS else 0.0
            ahead = None if self._clock_ahead is None else _FLOAT4(self._clock_ahead)
            parameters = [self._instance, _FLOAT4(waits), why.encode(), ahead]
            self._connection.execute(b"beat", _BEAT, parameters, self._beaten)

    def _beaten(self, answer: list[pq.abc.PGresult] | StoreError) -> None:
        if isinstance(answer, StoreError):
            log.error("heartbeat refused", error=str(answer))
            return
        alive, peers, clock = (int.from_bytes(answer[-1].get_value(0, column) or b"", "big") for column in range(3))
        self._last = self._asked_at
        self._warned = False
        self._compare_clocks(clock / 1e6)
        self._on_beat(bool(alive), peers)
        if time.monotonic() >= self._due:
            self._beat()
        else:
            self._check_others()

    def _compare_clocks(self, database: float) -> None:
        """Measure the difference of the clocks; log once that they differ, and when they no longer do."""
        # The database has read its clock between these two readings of ours.
        ahead = self._clock_ahead = CLOCK.compare(self._asked_by_clocks, database, reading())
        differs = abs(ahead) > CLOCK_SECONDS
        if differs and not self._clock_differs:
            log.error(
                "the clock of this machine is not that of the database, by which messages are delayed and expire: what"
                " is asked for by a time of day may be early or late; keep both by NTP",
                seconds_ahead=round(ahead, 1),
            )
        elif self._clock_differs and not differs:
            log.info("the clock of this machine is that of the database again")
        self._clock_differs = differs

    # -- the other connections

    def _check_others(self) -> None:
        late = [(each, number) for each in self._watched if (number := each.overdue(OVERDUE_SECONDS))]
        if not late:
            self._idle_questions.clear()
        elif self._connection.idle:
            pids = [each.backend.pid for each, _ in late]
            self._connection.execute(b"at_work", _AT_WORK, [arrays.int4(pids)], lambda found: self._found(late, found))

    def _found(self, late: list[tuple[Connection, int]], answer: list[pq.abc.PGresult] | StoreError) -> None:
        if isinstance(answer, StoreError):
            log.error("cannot see what the server is at work on", error=str(answer))
            return
        at_work = read_backends(answer[-1])
        before = self._idle_questions
        self._idle_questions = {(each, number) for each, number in late if each.backend not in at_work}
        for each, number in self._idle_questions & before:
            if each.overdue(OVERDUE_SECONDS) == number:
                each.drop("no answer, and the server is not at work on one")

    # -- the connection's owner

    def connected(self) -> None:
        self._beat()

    def lost(self) -> None:
        pass

    def notified(self, channel: str, payload: str) -> None:
        pass
