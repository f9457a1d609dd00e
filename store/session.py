"""What each session of ours sets, whatever the server, its database, the role or the environment says."""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from store.schema import AS_READ

#: Parameters of libpq by which either end of a connection notices that the other is cut off.
KEEPALIVE = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 15000}
#: Limits that would end a session which waits for work, or work that takes long. A server may be too old to have one.
_NO_LIMITS = ("idle_session_timeout", "transaction_timeout")
#: A transaction that is serializable may be undone by any other, and one that is deferrable may wait for all others.
#: The one in which these stand is serializable by the database's default, too, which a standby refuses.
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
#: Of a worker's connections. The server ends its process when our end of the connection is gone, even while that
#: process waits for a lock: it may hold locks, and takes one of the server's connections. Limits of the role or the
#: database for statements and locks do not apply.
OF_WORKERS = (
    "set client_connection_check_interval = '5s'; "
    + "".join(f"set tcp_{name.removeprefix('tcp_')} = {value}; " for name, value in KEEPALIVE.items())
    + "set statement_timeout = 0; set lock_timeout = 0; set jit = off; "
    + SETTINGS
)


# The hosts of a database URL.


def in_turn(conninfo: str) -> list[str]:
    """``conninfo`` for each of several attempts in a row: each begins with another of its hosts. libpq itself asks no
    other one where the first takes the connection, or never answers.
    """
    given = conninfo_to_dict(conninfo)
    lists = {name: str(given.get(name) or "").split(",") for name in ("host", "hostaddr", "port")}
    several = {name: each for name, each in lists.items() if len(each) > 1}
    turns = max(map(len, lists.values()))
    return [
        make_conninfo(conninfo, **{name: ",".join(each[turn:] + each[:turn]) for name, each in several.items()})
        for turn in range(turns)
    ]
