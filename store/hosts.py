"""The hosts of a database URL."""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict, make_conninfo


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
