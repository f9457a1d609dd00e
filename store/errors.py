"""Translate the driver's errors into those of the store, without SQL text and values.

::

    StoreError
    ├── DatabaseUrlInvalid  no connection can ever be made by this URL
    ├── StoreUnavailable   the database is away, closing or full: nothing is known to have been done; try again
    ├── SchemaMismatch     the schema is not the one that this version knows
    ├── AlreadyDecided     the transaction has its op already; first decision wins (H5)
    ├── NotUndecided       no undecided transaction is known by that id
    ├── CannotCommit       a plain transaction can be committed by its client only
    ├── NotLeased          an entry to be retired is not, or no longer, leased to this instance
    ├── Fenced             other instances have given this one up; it writes nothing any more
    ├── AddressGone        an address that was posted to is removed
    ├── GroupsChanged      a queue has groups beside the default one, of which the writer did not know
    ├── AppendOnly         an attempt to change a half, an op or a row of the audit
    ├── AddressExists      an address of that name is there
    ├── UserExists         a user of that name is there
    ├── Contended          a deadlock or a serialization failure: a repetition may succeed
    │   └── Locked         another held a lock for longer than a statement waits
    ├── Elsewhere          a statement that names its days met a half of another
    ├── Conflict           another constraint is violated
    │   └── NoPartition    the store has no partition for the day of a row
    └── StoreFault         anything else; a fault of this program
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date

import psycopg
from sqlalchemy.exc import DBAPIError


class StoreError(Exception):
    """The base of the store's errors. ``sqlstate``: PostgreSQL's five characters, if it has reported any."""

    def __init__(self, message: str, *, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class DatabaseUrlInvalid(StoreError):
    """The database URL is invalid. Its text is not repeated, because it may contain a password."""


class StoreUnavailable(StoreError):
    """The database is away, starting, closing, full, or refuses the log-in."""


class SchemaMismatch(StoreError):
    """The schema is older or newer than this version, or does not exist."""


class AlreadyDecided(StoreError):
    """The transaction has an op."""


class NotUndecided(StoreError):
    """No undecided transaction has that id."""


class CannotCommit(StoreError):
    """The transaction is a plain one: only its client can commit it."""


class CannotCheck(StoreError):
    """The transaction is a plain one, which is never sent to a checker."""


class NotLeased(StoreError):
    """A retirement names an entry that is not leased to its instance."""


class Fenced(StoreError):
    """Another instance has given this one up; it writes nothing any more."""


class AddressGone(StoreError):
    """An address that was posted to has been removed."""


class GroupsChanged(StoreError):
    """A queue has groups besides the default one that the writer did not know: its entries must be a fan-out."""


class AppendOnly(StoreError):
    """Halves, ops and rows of the audit are never updated or deleted."""


class AddressExists(StoreError):
    """An address of that name exists already."""


class UserExists(StoreError):
    """A user of that name exists already."""


class PostedBefore(StoreError):
    """The store has a message of this producer under this delivery-tag (P22)."""


class Contended(StoreError):
    """PostgreSQL has undone the statement because of concurrent work; a repetition may succeed."""


class Locked(Contended):
    """Another SQL transaction locks a row, or a table, for longer than a statement waits."""


class Conflict(StoreError):
    """A constraint is violated."""


class NoPartition(Conflict):
    """The day of a row has no partition: it was not created yet, or retention has dropped it."""


class Elsewhere(StoreError):
    """A statement that reads the partitions of some days needs a half of another, ``day``."""

    def __init__(self, day: date) -> None:
        super().__init__(f"a half of {day.isoformat()} was met", sqlstate="CO003")
        self.day = day


class StoreInTrouble(StoreUnavailable):
    """The server is up and could not execute the statement, which had no effect. A repetition may succeed, or never."""


class StoreFault(StoreError):
    """An unexpected error."""


class NoAnswer(psycopg.OperationalError):
    """Raised in the driver when this process has waited long enough for the server."""


class OldPrimary(psycopg.OperationalError):
    """Raised in the driver when another server has replaced the connected one (:mod:`store.session`)."""


#: ``op_pkey``, and the name of the same key in a partition: ``op_20260131_pkey``.
_OP_KEY = re.compile(r"op_(?:\w+_)?pkey")
_ADDRESS_NAME_KEY = "address_name_key"
_USER_KEY = "user_account_pkey"

LACKS_PERMISSION = "42501"
#: The SQLSTATE when the server, its database or the role may have no more connections.
NONE_LEFT = "53300"
ONLY_READS = "25006"
_NO_SESSION = "prepared statements are another session's: a pooler in front of the server has to be in session mode"

_STATES: dict[str, tuple[type[StoreError], str]] = {
    "CO001": (NotLeased, "an entry is not leased to this instance any more"),
    "CO002": (Fenced, "this instance was given up by another"),
    "CO003": (AddressGone, "an address that was posted to is removed"),
    "CO004": (GroupsChanged, "a queue has groups that the writer did not know of"),
    "CO005": (AlreadyDecided, "the transaction is decided already"),
    "CO012": (PostedBefore, "a message was posted before under its delivery-tag"),
    "23001": (AppendOnly, "halves, ops and rows of the audit are append-only"),
    "3D000": (StoreUnavailable, "there is no database of that name"),
    "28P01": (StoreUnavailable, "the database refuses the password"),
    "28000": (StoreUnavailable, "the database refuses the log-in"),
    LACKS_PERMISSION: (StoreUnavailable, "the database's role lacks a permission"),
    "3F000": (SchemaMismatch, "the schema coordinator is not there; run: coordinator migrate"),
    "42P01": (SchemaMismatch, "a table is not there; run: coordinator migrate"),
    "42703": (SchemaMismatch, "a column is not there; run: coordinator migrate"),
    "42883": (SchemaMismatch, "a function is not there; run: coordinator migrate"),
    "53100": (StoreUnavailable, "the database's disk is full"),
    NONE_LEFT: (StoreUnavailable, "the database server has no connection left: max_connections"),
    "57P01": (StoreUnavailable, "the database is closing"),
    "57P02": (StoreUnavailable, "the database has crashed and is restarting"),
    "57P03": (StoreUnavailable, "the database is starting or closing"),
    ONLY_READS: (StoreUnavailable, "the database only reads: a standby, or a role or database set to read only"),
    "26000": (StoreUnavailable, _NO_SESSION),
    "42P05": (StoreUnavailable, _NO_SESSION),
    "40001": (Contended, "undone: serialization failure"),
    "40P01": (Contended, "undone: deadlock"),
    "55P03": (Locked, "another session holds a lock for too long"),
    "57014": (Contended, "undone: the statement was cancelled, or took longer than it may"),
}
_CLASSES: dict[str, tuple[type[StoreError], str]] = {
    "08": (StoreUnavailable, "the connection to the database is lost"),
    "23": (Conflict, "a constraint is violated"),
    "28": (StoreUnavailable, "the database refuses the log-in"),
    "53": (StoreInTrouble, "the database is out of resources"),
    "57": (StoreUnavailable, "the database is closing"),
    "58": (StoreInTrouble, "the database has trouble with its files"),
    "XX": (StoreInTrouble, "the database has an internal error"),
}


def from_sqlstate(sqlstate: str | None, constraint: str | None = None) -> StoreError:
    """Return the error for a SQLSTATE and a constraint's name; without SQLSTATE the connection is lost."""
    if not sqlstate:
        return StoreUnavailable("the connection to the database is lost")
    if sqlstate == "23505" and constraint is not None:
        if _OP_KEY.fullmatch(constraint):
            return AlreadyDecided("the transaction is decided already", sqlstate=sqlstate)
        if constraint == _ADDRESS_NAME_KEY:
            return AddressExists("an address of that name is there already", sqlstate=sqlstate)
        if constraint == _USER_KEY:
            return UserExists("a user of that name is there already", sqlstate=sqlstate)
    if sqlstate == "23514" and constraint is None:  # a check of ours, not one of a column type
        return NoPartition(f"the store has no partition for the day of a row (SQLSTATE {sqlstate})", sqlstate=sqlstate)
    if sqlstate == "CO003" and constraint is not None:
        return Elsewhere(date.fromisoformat(constraint))
    known = _STATES.get(sqlstate) or _CLASSES.get(sqlstate[:2])
    if known is None:
        return StoreFault(f"the database reports an error, SQLSTATE {sqlstate}", sqlstate=sqlstate)
    kind, message = known
    if kind is Conflict and constraint is not None:
        message = f"the constraint {constraint} is violated"
    return kind(f"{message} (SQLSTATE {sqlstate})", sqlstate=sqlstate)


def error_of(result: psycopg.pq.abc.PGresult) -> StoreError:
    """Return the error of a failed result of libpq."""
    field = result.error_field
    state = field(psycopg.pq.DiagnosticField.SQLSTATE) or b""
    constraint = field(psycopg.pq.DiagnosticField.CONSTRAINT_NAME) or b""
    if state.decode() == LACKS_PERMISSION:
        # the only text of the server that is repeated: no field has the name, and it is that of a table or function
        said = field(psycopg.pq.DiagnosticField.MESSAGE_PRIMARY) or b""
        if found := re.fullmatch(r"permission denied for (\w+ \w+)", said.decode(errors="replace")):
            lacks = f"the database's role lacks a permission for {found[1]} (SQLSTATE {LACKS_PERMISSION})"
            return StoreUnavailable(lacks, sqlstate=LACKS_PERMISSION)
    return from_sqlstate(state.decode(), constraint.decode() or None)


def translate(error: BaseException) -> StoreError:
    """Return the store's error for ``error`` of psycopg or SQLAlchemy."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, psycopg.Error):
        if cause.sqlstate is None:
            return _without_sqlstate(cause)
        return from_sqlstate(cause.sqlstate, cause.diag.constraint_name)
    return StoreFault(f"an error of the database's driver: {type(cause).__name__}")


def _without_sqlstate(error: psycopg.Error) -> StoreError:
    """Return the store's error for one of libpq or psycopg that is not an answer of the server."""
    if isinstance(error, NoAnswer | OldPrimary):
        return StoreUnavailable(str(error))
    if isinstance(error, psycopg.errors.ConnectionTimeout):
        return StoreUnavailable("no answer in time")
    if isinstance(error, psycopg.OperationalError):
        return not_connected(str(error))
    return StoreFault(f"an error of the database's driver: {type(error).__name__}")


#: Texts of libpq for a value that it does not accept, before it connects; the group is the parameter's name.
_NOT_TAKEN = (
    r'invalid "?(\w+)"? value: ',
    r'invalid integer value ".*" for connection option "(\w+)"',
    r'weak (\w+) ".*" may not be used',
)

#: Texts of libpq when it cannot connect, their meaning, and the SQLSTATE if the server has given one.
_NOT_CONNECTED: tuple[tuple[str, str, str | None], ...] = (
    # of several hosts, those that can be reached matter most
    (
        r"session is (not )?read-only|server is (not )?in hot standby mode",
        "no server is there of the kind that target_session_attrs asks for",
        None,
    ),
    (r"could not translate host name|failed to resolve host", "there is no host of that name", None),
    (r"connection refused", "Connection refused", None),
    (r"no such file or directory", "No such file or directory", None),
    (r"no route to host|network is unreachable", "no route to that host", None),
    (r"timeout expired|timed out", "no answer in time", None),
    (r"no password supplied", "the database asks for a password, and none is given", "28P01"),
    (r"password authentication failed", "the database refuses the password, or knows no such user", "28P01"),
    (r"no pg_hba.conf entry", "the database refuses the log-in: no line of its pg_hba.conf allows it", "28000"),
    (
        r"pg_hba.conf rejects",
        "the database refuses the log-in: a line of its pg_hba.conf rejects it",
        "28000",
    ),
    (r"is not permitted to log in", "the database refuses the log-in: the user may not log in", "28000"),
    (r"authentication failed", "the database refuses the log-in", "28000"),
    (r'role ".*" does not exist', "the database knows no such user", "28000"),
    (r'database ".*" does not exist', "there is no database of that name", "3D000"),
    (r"too many connections for role", "the user may have no more connections: its CONNECTION LIMIT", NONE_LEFT),
    (
        r"too many connections for database",
        "the database may have no more connections: its CONNECTION LIMIT",
        NONE_LEFT,
    ),
    (
        r"too many clients|connection slots are",
        "the database server has no connection left: max_connections",
        NONE_LEFT,
    ),
    (r"the database system is", "the database is starting or closing", "57P03"),
    (r"server does not support SSL|certificate|SSL error", "no TLS connection is possible as sslmode asks for", None),
    (r"FATAL: ", "the database refuses the connection; its log says why", None),
    (r"^connection (failed|is bad|to server)", "no connection can be made", None),
)


def not_connected(said: str) -> StoreError:
    """Return the error for a text of libpq, which reports no SQLSTATE while it connects.

    The text may contain names and values, and is not repeated.
    """
    for words in _NOT_TAKEN:
        if found := re.search(words, said):
            given = f"the database URL, or the environment, gives {found[1]}"
            return DatabaseUrlInvalid(f"{given} a value that it cannot have")
    if re.search(r"could not match \d+ (port numbers|host names)", said):
        return DatabaseUrlInvalid("the database URL needs one port for all its hosts, or one for each")
    for words, meaning, sqlstate in _NOT_CONNECTED:
        if re.search(words, said, re.IGNORECASE):
            return StoreUnavailable(f"{meaning} (SQLSTATE {sqlstate})" if sqlstate else meaning, sqlstate=sqlstate)
    return StoreUnavailable("the connection to the database is lost")


@contextmanager
def boundary() -> Iterator[None]:
    """Turn driver errors that leave the block into a :class:`StoreError`, without the driver's text."""
    try:
        yield
    except (psycopg.Error, DBAPIError) as error:
        raise translate(error) from None
