"""Open synchronous connections for everything off the path of a message: SQLAlchemy Core over psycopg."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.pool import NullPool

from store.errors import DatabaseUrlInvalid, NoAnswer, OldPrimary, StoreUnavailable, boundary
from store.hosts import Hosts
from store.session import ASK, KEEPALIVE, SEEN, SETTINGS, Timeline, old_primary, read

#: How long each of several hosts is waited for at first: one may be dark. psycopg waits no shorter.
_FIRST_SECONDS: Final = 2
#: In a session that is to change nothing: whether the database would refuse changes, ``on`` or ``off``.
READS_ALONE: Final = "coordinator.only_reads"
#: How long a command waits for a lock in the SQL transaction that it begins: another's commit may wait for a standby,
#: or an application may keep its SQL transaction open (X2, X3).
LONGEST_WAIT = text("set local lock_timeout = '10s'")
#: For the rest of an SQL transaction: the planner would scan tables that are small, or that it assumes to be small; and
#: it would compile a query, which takes longer than running it.
BY_INDEX = text("set local enable_seqscan = off; set local jit = off")
#: The same where the first of many rows are wanted: it would read, and sort, all of those that it takes for few.
#: Until :data:`AS_PLANNED`.
_OF_ORDER: Final = ("enable_bitmapscan", "enable_seqscan", "enable_sort", "jit")
IN_ORDER = text("; ".join(f"set local {each} = off" for each in _OF_ORDER))
AS_PLANNED = text("; ".join(f"set local {each} = default" for each in _OF_ORDER))


def check_url(url: str) -> str:
    """Return ``url`` if libpq can read it: ``postgresql://user@host:port/database?parameter=value``.

    :raises DatabaseUrlInvalid: it cannot, or a port is none. The message repeats no part of the URL but the name of an
        unknown parameter.
    """
    if not url.startswith(("postgresql://", "postgres://")):
        raise DatabaseUrlInvalid("the database URL must begin with postgresql://")
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        unknown = re.fullmatch(r'invalid URI query parameter: "(\w+)"\s*', str(error))
        # After an @ it may be part of a password whose @ was not escaped.
        if unknown and "@" not in url.partition("?")[2]:
            raise DatabaseUrlInvalid(f"the database URL has a parameter that there is not: {unknown[1]}") from None
        raise _unreadable() from None
    if "@" in _behind_password(url):
        raise _unreadable()
    # one for each host
    if not all(_is_port(each.strip()) for each in str(given.get("port") or "").split(",")):
        raise DatabaseUrlInvalid("the port of the database URL is wrong: expected a number from 1 to 65535")
    return url


def _is_port(text: str) -> bool:
    return not text or (text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 1 << 16)


def _unreadable() -> DatabaseUrlInvalid:
    return DatabaseUrlInvalid(
        "the database URL cannot be read; expected postgresql://user:password@host:port/database, "
        "with %, @ and other special characters written as %25, %40 and so on, in the database's name, too"
    )


def _behind_password(url: str) -> str:
    """Return the part of a URL that libpq reads as hosts, ports and database.

    A @ in it ends a password that has an unescaped @ or /: the text before is part of the password.
    """
    rest = url.partition("://")[2]
    if found := re.match("[^/@]*@", rest):
        rest = rest[found.end() :]
    return rest.partition("?")[0]


def place(url: str) -> str:
    """Return host, port and database of ``url``, for a log, without user and password."""
    parts = conninfo_to_dict(check_url(url))
    host = str(parts.get("host") or parts.get("hostaddr") or "localhost")
    return f"{host}:{parts.get('port') or 5432}/{parts.get('dbname') or parts.get('user') or ''}"


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long this process waits for the database, and the database for the next statement of a transaction: a
    transaction whose client is cut off must not keep its locks. ``statement_seconds`` 0: no limit.
    """

    connect_seconds: int = 10
    statement_seconds: float = 0.0
    lock_seconds: float = 0.0
    #: limit between two statements of a transaction; None: as ``statement_seconds``
    idle_seconds: float | None = None
    #: time without an answer after which the connection is closed; if statements have no limit, only if the server
    #: accepts no new connection either; 0: never
    answer_seconds: float = 0.0


#: For commands whose work has no time limit.
ENDLESS = Patience()
#: For commands whose work is short: they end if another session, or a stopped server, blocks them.
BRIEF = Patience(statement_seconds=25.0, lock_seconds=10.0, idle_seconds=0.0, answer_seconds=30.0)
#: For commands that count all waiting messages, which takes long in a large store.
COUNTING = Patience(lock_seconds=10.0, answer_seconds=15.0)


class _Connection(psycopg.Connection[tuple[object, ...]]):
    """A connection that is closed if the server does not answer.

    Limits of the server do not help if it is stopped, nor do those of the kernel, which acknowledges for it.
    """

    given = ""
    patience = ENDLESS
    #: the server's timeline when the connection was made
    at: Timeline | None = None

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Wait for an answer, within the limits of ``patience``.

        :raises NoAnswer: the limit is over; the connection is closed.
        :raises OldPrimary: another server has replaced its server; the connection is closed.
        """
        answer = self._wait(gen, interval, timeout)
        if SEEN.above(self.at):
            said = old_primary(self.at, self.info.host, self.info.port)
            self.close()
            raise OldPrimary(said)
        return answer

    def _wait(self, gen: PQGen[RV], interval: float, timeout: float | None) -> RV:
        limit = self.patience.answer_seconds
        if timeout is not None or not limit:
            return super().wait(gen, interval, timeout)
        waited = 0.0
        while True:
            try:
                return super().wait(gen, interval, limit)
            except psycopg.errors._WaitTimeout:
                waited += limit
                if self.patience.statement_seconds or not self._takes_another():
                    self.close()
                    done = "a change that it was asked for may still be done"
                    raise NoAnswer(f"the server has not answered for {waited:g} s; {done}") from None

    def _takes_another(self) -> bool:
        """Whether the same server, of those in the URL, accepts another connection."""
        same = make_conninfo(self.given, host=self.info.host, port=self.info.port)
        try:
            psycopg.connect(same, connect_timeout=self.patience.connect_seconds).close()
        except psycopg.errors.ConnectionTimeout:
            return False
        except psycopg.Error:  # an answer, too
            pass
        return True


def engine(url: str, *, application_name: str = "coordinator", patience: Patience = ENDLESS) -> Engine:
    """Return an engine without a pool, as administration uses a connection once. libpq reads the whole ``url``."""
    check_url(url)

    def connect() -> psycopg.Connection[tuple[object, ...]]:
        # despite the database and the environment: with SQL_ASCII the driver returns text as octets
        ours = {"client_encoding": "utf8", "application_name": application_name}
        hosts = Hosts(make_conninfo(url, **ours, **KEEPALIVE))
        if len(hosts) > 1:
            begun = time.monotonic()
            try:
                return _open_one(hosts, patience, _FIRST_SECONDS)
            except psycopg.OperationalError:
                if time.monotonic() - begun < _FIRST_SECONDS:  # each host has answered
                    raise
        return _open_one(hosts, patience, patience.connect_seconds)

    return create_engine("postgresql+psycopg://", creator=connect, poolclass=NullPool)


def _open_one(hosts: Hosts, patience: Patience, seconds: int) -> _Connection:
    """Open a connection to one of ``hosts``; wait for each of them for ``seconds``."""
    *others, last = (make_conninfo(each, connect_timeout=seconds) for each in hosts.in_turn())
    for given in others:
        with suppress(OldPrimary):
            return _open(given, patience, hosts)
    return _open(last, patience, hosts)


def _open(given: str, patience: Patience, hosts: Hosts) -> _Connection:
    """Open and set up a connection.

    :raises OldPrimary: another server has replaced the one that accepts the connection.
    """
    connection = _Connection.connect(given)
    connection.given, connection.patience = given, patience
    # Set even if there is no limit: a role or a database may have limits of its own.
    idle = patience.statement_seconds if patience.idle_seconds is None else patience.idle_seconds
    limits = {
        "statement_timeout": patience.statement_seconds,
        "lock_timeout": patience.lock_seconds,
        "idle_in_transaction_session_timeout": idle,
    }
    setup = SETTINGS + "".join(f"set {name} = '{seconds:g}s'; " for name, seconds in limits.items()) + ASK
    cursor = connection.execute(setup.encode())
    while cursor.nextset():
        pass
    row: Any = cursor.fetchone()
    connection.at = read(row[0])
    connection.commit()
    if connection.at is None or connection.at.number:
        hosts.answered_at(connection.info.host, connection.info.port)
    return connection


@contextmanager
def reading(url: str, *, application_name: str, patience: Patience) -> Iterator[Connection]:
    """Open a connection as :func:`connected`, on which nothing can be changed."""
    with connected(url, application_name=application_name, patience=patience) as connection:
        # first what the database is by itself (store/recovery.py)
        connection.execute(text(f"select set_config('{READS_ALONE}', current_setting('transaction_read_only'), false)"))
        connection.execute(text("set default_transaction_read_only = on"))
        connection.commit()
        yield connection


class Commits:
    """Knows of a connection, from now on, whether a commit was ``begun``; one that has failed may have been done."""

    def __init__(self, connection: Connection) -> None:
        self.begun = False
        event.listen(connection, "commit", self._note)

    def _note(self, _connection: Connection) -> None:
        self.begun = True


@contextmanager
def connected(url: str, *, application_name: str = "coordinator", patience: Patience = ENDLESS) -> Iterator[Connection]:
    """Open one connection for the block; the caller commits. Driver errors become those of :mod:`store.errors`.

    :raises StoreUnavailable: when the database is away, with its host, port and name.
    """
    try:
        with boundary():
            connection = engine(url, application_name=application_name, patience=patience).connect()
    except StoreUnavailable as error:
        raise StoreUnavailable(f"database at {place(url)}: {error}", sqlstate=error.sqlstate) from None
    with boundary(), connection:
        yield connection
