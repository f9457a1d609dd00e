"""Keep one non-blocking connection to PostgreSQL in the loop, which reconnects by itself.

It uses libpq through :mod:`psycopg.pq`, and never blocks. One query is under way at a time. Its owner receives the
results, or is called when the connection was lost: then it is unknown whether the query took effect.
"""

from __future__ import annotations

import fcntl
import select
import struct
import termios
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import structlog
from psycopg import OperationalError, conninfo, pq

from store import session
from store.errors import NONE_LEFT, StoreError, StoreInTrouble, StoreUnavailable, error_of, not_connected
from store.hosts import Hosts
from store.loop import Backoff, Loop
from store.session import KEEPALIVE, OF_WORKERS, SEEN, Timeline, unfit

# The server process behind a connection, as the server itself reports it.
#
# The process id that libpq reports may be invented by a pooler between the two. The start time distinguishes a process
# from a later one with the same id.

#: When a process of ``pg_stat_activity`` began, in microseconds; 0: the role may not see it.
BEGAN: Final = "coalesce((extract(epoch from backend_start) * 1000000)::int8, 0)"
ASK_BACKEND: Final = f"select pid, {BEGAN} from pg_stat_get_activity(pg_backend_pid())"


def without_place(name: str) -> str:
    """Return SQL for a session's name without its client's host, which PgBouncer adds (``application_name_add_host``).

    ``name``: the SQL expression of the whole name.
    """
    return f"split_part({name}, ' - ', 1)"


SESSION_NAME: Final = without_place("application_name")


class Backend(NamedTuple):
    """A server process. ``began``: microseconds since 1970; 0: not known."""

    pid: int
    began: int

    @property
    def parameters(self) -> list[bytes]:
        """Return pid and start as binary parameters, int4 and int8."""
        return [int4(self.pid), int8(self.began)]


#: No connection has been made yet.
NO_BACKEND = Backend(0, 0)


def read_backend(answer: pq.abc.PGresult) -> Backend:
    """Read the answer to :data:`ASK_BACKEND`, which is in text format."""
    return Backend(int(answer.get_value(0, 0) or 0), int(answer.get_value(0, 1) or 0))


def read_backends(answer: pq.abc.PGresult) -> set[Backend]:
    """Read rows of a pid and :data:`BEGAN`, in binary format."""
    of = int.from_bytes
    return {
        Backend(of(answer.get_value(row, 0) or b"", "big"), of(answer.get_value(row, 1) or b"", "big"))
        for row in range(answer.ntuples)
    }


log = structlog.get_logger(__name__)

RETRY = Backoff(first=0.05, longest=1.0)
# The loss of a connection that lived this long counts as a first failure: the next attempt follows soon.
STEADY_SECONDS = 5.0
CONNECT_SECONDS = 10.0
#: A host that has not even accepted a connection after this long is dark: the kernel has asked it twice.
DARK_SECONDS = 1.5
#: How often the log repeats that the database is still away.
LOG_AGAIN_SECONDS = 30.0

_READ = select.EPOLLIN
_BOTH = select.EPOLLIN | select.EPOLLOUT
#: The function of PostgreSQL that reports this warning. Its text is translated, and other warnings, such as those about
#: transaction ids running out, have the same SQLSTATE.
_WAIT_FOR_STANDBY = b"SyncRepWaitForLSN"
#: The status of an attempt whose host has not accepted a connection.
_DARK: Final = pq.ConnStatus.STARTED
_GOOD = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.SINGLE_TUPLE, pq.ExecStatus.EMPTY_QUERY)

# Single parameters in PostgreSQL's binary format; for arrays see :mod:`store.arrays`.


def boolean(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def int2(number: int) -> bytes:
    return number.to_bytes(2, "big", signed=True)


def int4(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)


def int8(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


class Owner(Protocol):
    """The user of a connection, whom it calls at its events."""

    def connected(self) -> None:
        """Called when the connection is up, set up and idle."""

    def lost(self) -> None:
        """Called when it is lost: the outcome of a query under way is unknown. A new connection is being made."""

    def notified(self, channel: str, payload: str) -> None: ...


Answer = Callable[[list[pq.abc.PGresult] | StoreError], None]


class Connection:
    """Runs one query at a time on a connection to PostgreSQL, and reconnects when it is lost.

    ``setup``: SQL (several statements) that is run once on each new connection before its use.
    """

    def __init__(
        self, loop: Loop, url: str, name: str, setup: str, owner: Owner, *, connect_seconds: float = CONNECT_SECONDS
    ) -> None:
        self._connect_seconds = connect_seconds
        self._loop = loop
        self._name = name
        self._setup = f"{OF_WORKERS}{setup}; {ASK_BACKEND}; {session.ASK}".encode()
        self._owner = owner
        given = conninfo.make_conninfo(url, application_name=f"coordinator {name}", client_encoding="utf8", **KEEPALIVE)
        self._hosts = Hosts(given)
        #: attempts since the connection was up, and when those at one host after the other began
        self._attempts = 0
        self._round_began = 0.0
        self._pg: pq.abc.PGconn | None = None
        self._fd = -1
        self._events = 0
        self._step: Callable[[int], None] = self._poll
        #: failures in a row, and connections so far
        self._failures = 0
        self._number = 0
        self._up_since = 0.0
        #: by host: the failure that was logged last, and when
        self._logged: dict[str, tuple[str, float]] = {}
        #: True until the log reports that the connection is up again
        self._away_logged = False
        #: since when the server refuses this connection as it has none left; 0: it is up, or away for another reason
        self._none_left_since = 0.0
        self._answer: Answer | None = None
        self._results: list[pq.abc.PGresult] = []
        self._failure: StoreError | None = None
        #: True if the server has warned that the query under way did not wait for the standby
        self._unreplicated = False
        #: the server's timeline when the connection was made; None: it is not known
        self._at: Timeline | None = None
        #: the server process; after a loss, that of the lost connection until a new one is up
        self.backend = NO_BACKEND
        self._closed = False
        self._prepared: set[bytes] = set()
        #: when the query under way was sent, or more of it was last seen to be transmitted; and the queries so far
        self._sent_at = 0.0
        self._sent = 0
        #: octets of the query under way that the kernel had not transmitted at the last check
        self._unsent = 0
        self.up = False
        #: True if the last connection ended because the server is closing, or accepts no connections for now
        self.server_ended = False
        #: the SQLSTATE of the last query, where that ended the connection; empty: it has none, or did not
        self.refused_with = ""

    # -- making the connection

    def start(self) -> None:
        if self._closed:
            return
        self._number += 1
        number = self._number
        if self._attempts % len(self._hosts) == 0:
            self._round_began = time.monotonic()
        pg = pq.PGconn.connect_start(self._hosts.choose().encode())
        self._attempts += 1
        self._pg = pg
        self._prepared.clear()
        if pg.status == pq.ConnStatus.BAD:
            self._not_made(pg)
            return
        pg.nonblocking = 1
        pg.notice_handler = self._noticed
        self._step = self._poll
        self._watch(pg.socket, _BOTH)
        self._loop.call_later(DARK_SECONDS, lambda: self._too_slow(number, DARK_SECONDS, _DARK))
        self._loop.call_later(self._connect_seconds, lambda: self._too_slow(number, self._connect_seconds))

    def _too_slow(self, number: int, seconds: float, *only: pq.ConnStatus) -> None:
        """Give up the attempt ``number``, which has lasted for ``seconds``, if it is still ``only`` so far."""
        if self.up or number != self._number or self._pg is None:
            return
        if not only or self._pg.status in only:
            self._gone(f"no connection within {seconds:g} s")

    def _watch(self, fd: int, events: int) -> None:
        # libpq may change its socket between polls (several hosts, TLS refused)
        if self._fd != fd:
            self._unwatch()
            self._loop.watch(fd, events, self._event)
            self._fd = fd
        elif events != self._events:
            self._loop.change(fd, events)
        self._events = events

    def _unwatch(self) -> None:
        if self._fd >= 0:
            self._loop.forget(self._fd)
            self._fd = -1

    def _event(self, events: int) -> None:
        try:
            self._step(events)
        except Exception:  # noqa: BLE001 - a defect of ours; the outcome of the query is in doubt
            self._loop.contain(self._step)
            if self._pg is not None:
                self._gone("an internal error")

    def _poll(self, events: int) -> None:
        pg = self._pg
        assert pg is not None
        status = pg.connect_poll()
        if status == pq.PollingStatus.OK:
            self._watch(pg.socket, _READ)
            self._step = self._io
            self._answer = self._set_up
            try:
                pg.send_query(self._setup)
            except OperationalError as error:
                self._gone(str(error))
                return
            self._flush()
        elif status == pq.PollingStatus.FAILED:
            self._not_made(pg)
        else:
            # the old socket may be closed, and its descriptor used by another: always register anew
            self._unwatch()
            self._watch(pg.socket, _READ if status == pq.PollingStatus.READING else select.EPOLLOUT)

    def _set_up(self, answer: list[pq.abc.PGresult] | StoreError) -> None:
        if isinstance(answer, StoreError):
            self._gone(str(answer))
            return
        assert self._pg is not None
        self._at = session.read(answer[-1].get_value(0, 0) or b"")
        if why := unfit(self._at, self._pg.host.decode(), self._pg.port.decode()):
            self._gone(why)
            return
        self.backend = read_backend(answer[-3])
        self._attempts = 0
        self._hosts.answered()
        if self._away_logged:
            self._away_logged = False
            log.info("database connected", connection=self._name, failures=self._failures)
        self._up_since = time.monotonic()
        self._none_left_since = 0.0
        self.up = True
        self._owner.connected()

    def _not_made(self, pg: pq.abc.PGconn) -> None:
        # the whole text: psycopg's own version leaves out the server's FATAL
        error = not_connected(pg.error_message.decode(errors="replace"))
        if error.sqlstate != NONE_LEFT:
            self._none_left_since = 0.0
        elif not self._none_left_since:
            self._none_left_since = time.monotonic()
        self._gone(str(error))

    def none_left(self, seconds: float) -> bool:
        """Whether the server has had no connection left for this one for at least ``seconds``."""
        return self._none_left_since > 0 and time.monotonic() - self._none_left_since >= seconds

    def _gone(self, why: str, *, silent: bool = False) -> None:
        was_up = self.up
        self.up = False
        self._unwatch()
        if self._pg is not None:
            self._pg.finish()
            self._pg = None
        self._results = []
        self._failure = None
        self._unreplicated = False
        self._answer = None
        if self._closed:
            return
        if was_up and time.monotonic() - self._up_since >= STEADY_SECONDS:
            self._failures = 0
            self._logged.clear()
        self._failures += 1
        self._log_failure(why.strip().partition("\n")[0])
        if silent or not was_up:
            self._hosts.give_up()
        self._loop.call_later(self._pause(), self.start)
        if was_up:
            self._owner.lost()

    def _pause(self) -> float:
        """Return the pause before the next attempt: there is none until each host was tried."""
        if self._attempts % len(self._hosts) or self._hosts.overtaken():
            return 0.0
        rounds = -(-self._failures // len(self._hosts))
        return max(0.0, RETRY.after(rounds) - (time.monotonic() - self._round_began if self._attempts else 0.0))

    def _log_failure(self, why: str) -> None:
        """Log a failure if it is the first, if its host's reason has changed, and each :data:`LOG_AGAIN_SECONDS`."""
        now, host = time.monotonic(), self._hosts.current
        logged, at = self._logged.get(host, ("", 0.0))
        if why != logged or now - at >= LOG_AGAIN_SECONDS:
            self._logged[host] = why, now
            self._away_logged = True
            log.warning("database away", connection=self._name, host=host, why=why, failures=self._failures)

    def close(self) -> None:
        self._closed = True
        self.up = False
        self._unwatch()
        if self._pg is not None:
            self._pg.finish()
            self._pg = None

    # -- one query at a time

    def forget_statements(self) -> None:
        """Called when the server has deallocated all prepared statements: they are prepared anew."""
        self._prepared.clear()

    @property
    def idle(self) -> bool:
        return self.up and self._answer is None

    def overdue(self, seconds: float) -> int:
        """Return the number of the query that has no answer ``seconds`` after its last octets were transmitted.

        0: no query is overdue. A query that takes long to transmit is not.
        """
        if not self.up or self._answer is None or time.monotonic() - self._sent_at <= seconds:
            return 0
        unsent = self._unsent_octets()
        if unsent and unsent != self._unsent:
            self._unsent = unsent
            self._sent_at = time.monotonic()
            return 0
        return self._sent

    def _unsent_octets(self) -> int:
        """Return how many octets in the kernel's buffer the server's side has not acknowledged."""
        size: int
        (size,) = struct.unpack("i", fcntl.ioctl(self._fd, termios.TIOCOUTQ, bytes(4)))
        return size

    def drop(self, why: str) -> None:
        """Drop the connection for want of an answer, and make a new one, to another host if there is one.

        The outcome of a query under way is unknown.
        """
        if self.up:
            self._gone(why, silent=True)

    def drop_if_left_behind(self) -> bool:
        """Drop the connection if another server has replaced its server meanwhile. Whether it was dropped.

        An attempt to connect is given up if another host has answered since it began.
        """
        if not self.up and self._pg is not None and self._hosts.overtaken():
            self._gone("another host has answered meanwhile")
        above = SEEN.above(self._at) if self.up else 0
        if above:
            self.server_ended = True
            self._gone(f"another server has taken over, on timeline {above}")
        return bool(above)

    def execute(self, name: bytes, sql: str, parameters: Sequence[bytes | None], answer: Answer) -> None:
        """Run the statement ``name``, prepared first if necessary; parameters and results are binary."""
        pg = self._pg
        assert pg is not None
        assert self._answer is None
        self.server_ended, self.refused_with = False, ""
        self._sent += 1
        self._sent_at = time.monotonic()
        self._unsent = 0
        try:
            if name in self._prepared:
                self._answer = answer
                pg.send_query_prepared(name, parameters, [1] * len(parameters), 1)
            else:
                self._answer = lambda got: self._after_prepare(got, name, sql, parameters, answer)
                pg.send_prepare(name, sql.encode())
        except OperationalError as error:
            self._gone(str(error))
            return
        self._flush()

    def _after_prepare(
        self,
        got: list[pq.abc.PGresult] | StoreError,
        name: bytes,
        sql: str,
        parameters: Sequence[bytes | None],
        answer: Answer,
    ) -> None:
        if isinstance(got, StoreError):
            answer(got)
        else:
            self._prepared.add(name)
            self.execute(name, sql, parameters, answer)

    def _flush(self) -> None:
        pg = self._pg
        assert pg is not None
        try:
            rest = pg.flush()
        except OperationalError as error:
            self._gone(str(error))
            return
        events = _BOTH if rest else _READ
        if events != self._events:
            self._watch(self._fd, events)

    def _io(self, events: int) -> None:
        pg = self._pg
        assert pg is not None
        try:
            if events & select.EPOLLOUT:
                self._sent_at = time.monotonic()
                self._flush()
                if self._pg is None:
                    return
            if events & ~select.EPOLLOUT:
                pg.consume_input()
            while self._answer is not None and not pg.is_busy():
                result = pg.get_result()
                if result is None:
                    self._finish_query()
                    if self._pg is not pg:
                        return
                elif result.status in _GOOD:
                    self._results.append(result)
                elif pg.status == pq.ConnStatus.BAD:
                    self._gone(pg.get_error_message())
                    return
                else:
                    self._failure = error_of(result)
            if self.up:
                while (notify := pg.notifies()) is not None:
                    self._owner.notified(notify.relname.decode(), notify.extra.decode())
        except OperationalError as error:
            self._gone(str(error))

    def _noticed(self, notice: pq.abc.PGresult) -> None:
        if notice.error_field(pq.DiagnosticField.SOURCE_FUNCTION) == _WAIT_FOR_STANDBY:
            self._unreplicated = True

    def _finish_query(self) -> None:
        answer = self._answer
        failure = self._failure
        results = self._results
        self._answer = None
        self._failure = None
        self._results = []
        assert answer is not None
        unreplicated, self._unreplicated = self._unreplicated, False
        if unreplicated and self.up:
            # The outcome is in doubt, as if the connection were lost.
            self._gone("committed, but the wait for the standby was cancelled: perhaps not replicated")
            return
        if self.drop_if_left_behind():
            return
        if isinstance(failure, StoreUnavailable) and not isinstance(failure, StoreInTrouble):
            # The server is shutting down, full, or read-only: the query is not the reason, so try again later.
            self.server_ended, self.refused_with = True, failure.sqlstate or ""
            self._gone(str(failure))
            return
        answer(failure if failure is not None else results)


# A server process whose reply was lost may still be running: its effect is known only once it has ended.

_OUR_NAME = without_place("current_setting('application_name')")
_TERMINATE = (
    "select count(pg_terminate_backend(pid)) from pg_stat_activity "
    f"where pid = $1::int4 and {BEGAN} = $2::int8 and pid <> pg_backend_pid() "
    f"and {SESSION_NAME} = {_OUR_NAME}"
)

LOOK_AGAIN_SECONDS = 0.05
_TERMINATE_AGAIN_SECONDS = 1.0


class LostBackend:
    """Terminates the server process of a lost ``connection``, by the new one."""

    def __init__(self, loop: Loop, connection: Connection) -> None:
        self._loop = loop
        self._connection = connection
        # Counts attempts: if the new connection is lost, too, results of the earlier attempt are ignored.
        self._attempt = 0

    def terminate(self, old: Backend, ended: Callable[[], None]) -> None:
        """Terminate our process ``old``; ``ended()`` is called once it no longer exists.

        The new connection must be idle, and may not be used for anything else until then. If it is lost meanwhile, call
        this method again.
        """
        self._attempt += 1
        self._try(self._attempt, old, ended)

    def _try(self, attempt: int, old: Backend, ended: Callable[[], None]) -> None:
        if attempt != self._attempt or not self._connection.idle:
            return

        def tried(answer: list[pq.abc.PGresult] | StoreError) -> None:
            if isinstance(answer, StoreError):
                log.error("cannot end the process of a lost connection", error=str(answer))
                wait = _TERMINATE_AGAIN_SECONDS
            elif answer[-1].get_value(0, 0) == bytes(8):
                ended()
                return
            else:
                wait = LOOK_AGAIN_SECONDS
            self._loop.call_later(wait, lambda: self._try(attempt, old, ended))

        self._connection.execute(b"terminate", _TERMINATE, old.parameters, tried)
