"""Define the settings of our sessions, independent of the server, its database, the role and the environment."""

from __future__ import annotations

import mmap
import struct
from typing import NamedTuple

from store.errors import ONLY_READS, from_sqlstate
from store.schema import AS_READ

#: Parameters of libpq by which either end of a connection detects that the other is cut off.
KEEPALIVE = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 15000}
#: Limits that would end a session which waits for work, or work that takes long. A server may be too old to have one.
_NO_LIMITS = ("idle_session_timeout", "transaction_timeout")
#: A serializable transaction may be undone by any other, and a deferrable one may wait for all others. The transaction
#: of these statements itself may be serializable by the database's default, which a standby refuses.
_TRANSACTIONS = (
    "set transaction isolation level read committed; "
    "set default_transaction_isolation = 'read committed'; set default_transaction_deferrable = off; "
)
SETTINGS = (
    AS_READ
    + _TRANSACTIONS
    + "".join(
        f"select case when current_setting('{name}', true) is not null then set_config('{name}', '0', false) end; "
        for name in _NO_LIMITS
    )
)
#: The settings of a worker's connections. The server ends its process when our end of the connection is closed, even
#: while that process waits for a lock: it may hold locks, and uses one of the server's connections. Limits of the role
#: or the database for statements and locks do not apply.
OF_WORKERS = (
    "set client_connection_check_interval = '5s'; "
    + "".join(f"set tcp_{name.removeprefix('tcp_')} = {value}; " for name, value in KEEPALIVE.items())
    + "set statement_timeout = 0; set lock_timeout = 0; set jit = off; "
    + SETTINGS
)


# Detects a server of the store that another one has replaced.
#
# A primary that was lost, and returns beside the standby that replaced it, accepts connections and writes as
# before; but its data are those of an abandoned past. A promotion begins a new timeline, with a higher number, so a
# server on a lower timeline than another is such a server.
#
# The highest timeline is in memory that a process shares with its forks, so that all processes of a service know it.

#: replaces the timeline of a standby
_STANDBY = "0"
#: Selects the server's system and timeline, as text. Empty: they are not known, as an administrator has revoked the
#: functions from this role, or the server has other storage than PostgreSQL's own.
ASK = f"""do $$ begin
    perform set_config('coordinator.timeline', system_identifier || ' ' || case when pg_is_in_recovery()
        then '{_STANDBY}' else left(pg_walfile_name(pg_current_wal_lsn()), 8) end, false) from pg_control_system();
  exception when insufficient_privilege or feature_not_supported or undefined_function then
    perform set_config('coordinator.timeline', '', false);
  end $$; select current_setting('coordinator.timeline')"""

_NOTE = struct.Struct("qI")


class Timeline(NamedTuple):
    """A server's timeline.

    ``system``: the id that all servers copied from one share; only their timelines can be compared. ``number``: 0 for a
    standby.
    """

    system: int
    number: int


def read(answer: bytes | str) -> Timeline | None:
    """Read the answer to :data:`ASK`; None: the server does not report it."""
    if not answer:
        return None
    system, number = answer.split()
    return Timeline(int(system), int(number, 16))


class SeenTimelines:
    """Remembers the highest timeline of the last system that this process, or one that shares its memory, has seen."""

    def __init__(self) -> None:
        #: created at its first use: by the supervisor, before it forks
        self._memory: mmap.mmap | None = None

    def above(self, at: Timeline | None) -> int:
        """Return the higher timeline of another server, if there is one; else 0, and ``at`` is remembered."""
        if at is None or not at.number:
            return 0
        if self._memory is None:
            self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        seen = Timeline(*_NOTE.unpack_from(self._memory))
        if seen.system != at.system or seen.number < at.number:
            _NOTE.pack_into(self._memory, 0, *at)
            return 0
        return seen.number if seen.number > at.number else 0


SEEN = SeenTimelines()


def unfit(at: Timeline | None, host: str, port: int | str) -> str:
    """Return why the service cannot use the server of a new connection; empty: it can."""
    if at is not None and not at.number:
        return str(from_sqlstate(ONLY_READS))
    return old_primary(at, host, port)


def old_primary(at: Timeline | None, host: str, port: int | str) -> str:
    """Return a message about a server that another has replaced; empty: no other is known."""
    above = SEEN.above(at)
    if at is None or not above:
        return ""
    return f"{host}:{port} is an old primary, on timeline {at.number}, and another server was seen on {above}: stop it"
