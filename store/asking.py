"""Run a worker's queries of the store, one after the other, on a connection of their own.

Callbacks receive the answers, in order. A query whose connection was lost is run again if that does no harm
(``Query.again``), once the server process that was running it has ended: otherwise it could take effect after later
queries. A query that was refused and must take effect (``Query.must``) is run again, too.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

import structlog
from psycopg import pq
from psycopg.adapt import Transformer

from store.channels import ADDRESS, CONNECTION, DECIDED, DUE, LINK, PERMISSION, READY, SHARE, SOLE, USER
from store.errors import Contended, Elsewhere, StoreError, StoreInTrouble, StoreUnavailable
from store.ids import begin_of, id_at, moment_of
from store.libpq import NO_BACKEND, Connection, LostBackend
from store.loop import Backoff, Loop, TimeShare
from store.tables import SCHEMA

# Statements that name the partitions of the days they need, so that they cost the same however many days are kept.
#
# A statement over the whole of ``half`` locks and opens every partition each time it runs. An id contains its day: so a
# statement names the few days that it reads. When it needs the half of another day it ends with an error, and is run
# again with that day, too (:mod:`store.asking`).

#: Selects the message of ``p.half_id``, whatever its day. For ``any`` see :mod:`store.commit.parts`.
FROM_ALL_PARTITIONS: str = f"select message from {SCHEMA}.half where id = any(array[p.half_id])"

#: A query that needs more days than these reads all partitions, or only the latest day that it needs.
MOST_DAYS = 3


def of_days(sql: str, days: Sequence[date]) -> str:
    """Return ``sql``, which contains :data:`FROM_ALL_PARTITIONS`, changed to read the partitions of ``days`` only."""
    # The parts of a union that have conditions are planned by themselves, with ``p.half_id`` as a value.
    looks = [f"select message from {SCHEMA}.half_{day:%Y%m%d} where id = p.half_id" for day in days]
    bounds = [(_first(day), _first(day + timedelta(days=1))) for day in days]
    inside = " or ".join(f"p.half_id >= {first} and p.half_id < {last}" for first, last in bounds)
    looks.append(f"select {SCHEMA}.elsewhere(p.half_id) where not ({inside})")
    return sql.replace(FROM_ALL_PARTITIONS, " union all ".join(looks))


def _first(day: date) -> int:
    return id_at(begin_of(day))


# Queries that must take effect, and were refused for a temporary reason, are run again after growing pauses.
#
# Other queries run meanwhile, except those of the same line: otherwise a message group that is given up, and then
# claimed anew, would be given up once more.

PAUSES = Backoff(first=0.1, longest=30.0)
#: The most queries that pause; a further one that is refused is not run again.
MOST_PAUSING = 10_000
#: How often the log repeats that a query is refused.
LOG_AGAIN_SECONDS = 30.0


class RetryQueue:
    """Holds refused queries that must take effect, and the queries behind them, until they are run again.

    ``again`` is called with the queries to be run now, in this order, before all that wait.
    """

    def __init__(self, loop: Loop, again: Callable[[deque[Waiting]], None]) -> None:
        self._loop = loop
        self._again = again
        self._pausing = 0
        #: by line and first parameter: the query that pauses, and those behind it
        self._lines: dict[tuple[str, bytes | None], deque[Waiting]] = {}
        #: by name of the query: when its refusal was last logged, and how often it was refused since
        self._said: dict[bytes, tuple[float, int]] = {}

    @property
    def waiting(self) -> int:
        return self._pausing + sum(len(line) - 1 for line in self._lines.values())

    def behind(self, asked: Waiting) -> bool:
        """Whether the query is behind one of its line that pauses; then it is queued, to run after that one."""
        line = self._lines.get(_line(asked)) if self._lines else None
        if line is None:
            return False
        line.append(asked)
        return True

    def refused(self, asked: Waiting, error: StoreError) -> bool:
        """Whether the refused query is run again; then its pause begins."""
        if not asked.query.must or not isinstance(error, Contended | StoreInTrouble) or self._pausing >= MOST_PAUSING:
            return False
        asked = asked._replace(refusals=asked.refusals + 1)
        pause = PAUSES.after(asked.refusals)
        self._log_refusal(asked, error, pause)
        self._pausing += 1
        line = deque([asked])
        if asked.query.line:
            self._lines[_line(asked)] = line
        self._loop.call_later(pause, lambda: self._over(line))
        return True

    def _over(self, line: deque[Waiting]) -> None:
        self._pausing -= 1
        self._lines.pop(_line(line[0]), None)
        self._again(line)

    def _log_refusal(self, asked: Waiting, error: StoreError, pause: float) -> None:
        """Log a refusal: the first of its name at once, then one each :data:`LOG_AGAIN_SECONDS`."""
        name = asked.query.name
        said_at, times = self._said.get(name, (0.0, 0))
        now, times = time.monotonic(), times + 1
        if not said_at or now - said_at >= LOG_AGAIN_SECONDS:
            log.warning("query refused", query=name.decode(), error=str(error), again_in=pause, times=times)
            said_at, times = now, 0
        self._said[name] = said_at, times


def _line(asked: Waiting) -> tuple[str, bytes | None]:
    return asked.query.line, asked.parameters[0] if asked.parameters else None


log = structlog.get_logger(__name__)

#: Values as psycopg loads them: int, str, bool, bytes, None. Queries cast values of other types.
Row = tuple[Any, ...]
T = TypeVar("T")


def nothing(_: list[Row]) -> None:
    """Return None: the ``answer`` of a query that returns no rows."""


@dataclass(frozen=True, slots=True)
class Query(Generic[T]):
    """A prepared query: ``sql`` with binary parameters ``$1``…; ``answer`` converts its rows to the answer."""

    name: bytes
    sql: str
    answer: Callable[[list[Row]], T]
    #: Whether it may be run again after its connection was lost. Otherwise the answer is StoreUnavailable, given
    #: once the query can no longer take effect.
    again: bool = True
    #: Whether it reads messages for one client that browses them: however many such queries wait, others precede them
    #: most of the time.
    aside: bool = False
    #: Whether it must take effect: refused for a temporary reason, it is run again until it is answered.
    must: bool = False
    #: Queries of one line with the same first parameter wait for the one of them that is to be run again.
    line: str = ""

    @property
    def by_day(self) -> bool:
        """Whether it reads messages, so that it can be restricted to the partitions of a few days."""
        return FROM_ALL_PARTITIONS in self.sql


#: Subjects whose days are remembered, and for how long.
MOST_SUBJECTS = 10_000
REMEMBERED_SECONDS = 600.0
#: Statements of days that are kept prepared.
MOST_STATEMENTS = 100
HALF_ID_OCTETS = 8
_NO_TABLE = "42P01"

#: A connection plans a statement once, perhaps before the tables were ever analysed. Plans that read and sort a whole
#: group (bitmap, hash) seem cheap then, and would be kept.
SETUP = (
    "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_bitmapscan = off; "
    "set enable_hashjoin = off; set enable_mergejoin = off; set work_mem = '32MB'; "
    f"listen {READY}; listen {ADDRESS}; listen {SOLE}; listen {LINK}; listen {DUE}; "
    f"listen {DECIDED}; listen {USER}; listen {PERMISSION}; listen {CONNECTION}; listen {SHARE}"
)


class Days:
    """Remembers the days that have the messages of a query's subject (a group, or one half)."""

    def __init__(self) -> None:
        #: by subject: its days (empty: all), and until when they are remembered
        self._known: OrderedDict[bytes | None, tuple[tuple[date, ...], float]] = OrderedDict()
        self._sql: dict[tuple[bytes, tuple[date, ...]], tuple[bytes, str]] = {}
        #: how often the query under way was sent
        self._asked = 0

    @property
    def full(self) -> bool:
        """Whether too many statements are prepared; most of them are for past days and no longer needed."""
        return len(self._sql) >= MOST_STATEMENTS

    def clear(self) -> None:
        self._sql.clear()

    def statement(self, query: Query[Any], subject: bytes | None) -> tuple[bytes, str]:
        """Return the query's name and SQL for the days of ``subject``."""
        self._asked += 1
        days = self._of(subject)
        if not days:
            return query.name, query.sql
        found = self._sql.get((query.name, days))
        if found is None:
            name = b"_".join([query.name, *(f"{day:%Y%m%d}".encode() for day in days)])
            found = self._sql[query.name, days] = (name, of_days(query.sql, days))
        return found

    def _of(self, subject: bytes | None) -> tuple[date, ...]:
        known = self._known.get(subject)
        if known is not None and time.monotonic() < known[1]:
            return known[0]
        if subject is not None and len(subject) == HALF_ID_OCTETS:
            return (moment_of(int.from_bytes(subject, "big")).date(),)
        return (datetime.now(UTC).date(),)

    def answered(self) -> None:
        self._asked = 0

    def other(self, subject: bytes | None, error: StoreError) -> bool:
        """Whether to run the query again for other days: a day was missing, or has no partition any more."""
        days = self._of(subject)
        if isinstance(error, Elsewhere) and self._asked < 2 * MOST_DAYS:
            # In a backlog of many days the search has moved on: earlier days are not needed any more.
            days = tuple(sorted({*days, error.day})) if len(days) < MOST_DAYS else (error.day,)
        elif days and self._asked <= 2 * MOST_DAYS and (isinstance(error, Elsewhere) or error.sqlstate == _NO_TABLE):
            days = ()
        else:
            return False
        self._known[subject] = days, time.monotonic() + REMEMBERED_SECONDS
        if len(self._known) > MOST_SUBJECTS:
            self._known.popitem(last=False)
        return True


#: the time of the queries aside, while others wait
ASIDE = TimeShare(parts=8)


class Waiting(NamedTuple):
    """A query to run, with its parameters, the callback for its answer, and the number of its refusals."""

    query: Query[Any]
    parameters: Sequence[bytes | None]
    callback: Callable[[Any], None]
    refusals: int = 0


class Queries:
    """Runs queries one after the other on one connection, and receives the notices of other instances.

    ``notified(channel, payload)`` is called with each notice, ``connected()`` at each new connection (notices may have
    been missed).
    """

    def __init__(
        self,
        loop: Loop,
        url: str,
        instance_id: int,
        notified: Callable[[str, str], None],
        connected: Callable[[], None],
    ) -> None:
        self._loop = loop
        #: queries that wait, in order; those aside in a line of their own
        self._waiting: deque[Waiting] = deque()
        self._aside: deque[Waiting] = deque()
        #: the query under way, or to be sent again
        self._now: Waiting | None = None
        self._begun = 0.0
        #: when the next query of the line aside may be run, while others wait
        self._aside_from = 0.0
        self._busy = False
        self._backend = NO_BACKEND
        #: True if a query was under way when the connection was lost: its server process may still be running it
        self._doubtful = False
        #: callbacks of queries that are not run again
        self._in_doubt: list[Callable[[Any], None]] = []
        self._notified = notified
        self._on_connected = connected
        self._days = Days()
        self._repeating = RetryQueue(loop, self._ask_again)
        self._connection = Connection(loop, url, f"queries {instance_id}", SETUP, self)
        self._lost_backend = LostBackend(loop, self._connection)

    def start(self) -> None:
        self._connection.start()

    def close(self) -> None:
        self._connection.close()

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._aside) + (self._now is not None) + self._repeating.waiting

    def ask(
        self, query: Query[T], parameters: Sequence[bytes | None], callback: Callable[[T | StoreError], None]
    ) -> None:
        (self._aside if query.aside else self._waiting).append(Waiting(query, parameters, callback))
        self._kick()

    def _ask_again(self, line: deque[Waiting]) -> None:
        self._waiting.extendleft(reversed(line))
        self._kick()

    def _next(self) -> Waiting | None:
        """Choose the next query. Those aside get their share of the time (:data:`ASIDE`), or what the others leave."""
        while self._now is None and (self._waiting or self._aside):
            aside = self._aside and (not self._waiting or time.monotonic() >= self._aside_from)
            asked = (self._aside if aside else self._waiting).popleft()
            if not self._repeating.behind(asked):
                self._now = asked
                self._begun = time.monotonic()
        return self._now

    def _kick(self) -> None:
        if self._busy or self._doubtful or not self._connection.idle:
            return
        asked = self._next()
        if asked is not None:
            self._busy = True
            self._backend = self._connection.backend
            if self._days.full:
                self._connection.execute(b"deallocate", "deallocate all", (), self._deallocated)
                return
            query, parameters = asked.query, asked.parameters
            name, sql = self._days.statement(query, parameters[0]) if query.by_day else (query.name, query.sql)
            self._connection.execute(name, sql, parameters, self._answered)

    def _deallocated(self, _: object) -> None:
        self._connection.forget_statements()
        self._days.clear()
        self._busy = False
        self._kick()

    def _answered(self, answer: list[pq.abc.PGresult] | StoreError) -> None:
        self._busy = False
        assert self._now is not None
        asked = self._now
        query, parameters, callback, _ = asked
        if isinstance(answer, StoreError) and query.by_day and self._days.other(parameters[0], answer):
            self._kick()
            return
        self._days.answered()
        self._now = None
        if query.aside:
            self._aside_from = ASIDE.after(self._begun)
        if isinstance(answer, StoreError):
            if self._repeating.refused(asked, answer):
                self._kick()
                return
            log.error("query refused", query=query.name.decode(), error=str(answer))
            self._kick()
            self._call(callback, answer)
            return
        result = answer[-1]
        loader = Transformer()
        loader.set_pgresult(result)
        rows: list[Row] = loader.load_rows(0, result.ntuples, tuple)
        self._kick()
        try:
            callback(query.answer(rows))
        except Exception:  # noqa: BLE001 - whatever it is, it is the asker's
            self._loop.contain(callback)

    def _call(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call the callback; an exception in it affects no other query."""
        try:
            callback(*arguments)
        except Exception:  # noqa: BLE001 - whatever it is, it is the asker's
            self._loop.contain(callback)

    def connected(self) -> None:
        if self._doubtful:
            self._lost_backend.terminate(self._backend, self._settled)
        else:
            self._settled()

    def _settled(self) -> None:
        self._doubtful = False
        in_doubt, self._in_doubt = self._in_doubt, []
        self._call(self._on_connected)
        self._kick()
        for callback in in_doubt:
            self._call(callback, StoreUnavailable("the connection was lost while the question was under way"))

    def lost(self) -> None:
        if self._busy:
            self._busy = False
            self._doubtful = True
            assert self._now is not None
            if not self._now.query.again:
                self._in_doubt.append(self._now.callback)
                self._now = None

    def notified(self, channel: str, payload: str) -> None:
        self._call(self._notified, channel, payload)
