"""The server's process behind a connection, as the server itself says it.

What libpq says of it is a number that a pooler between the two makes up. The time at which a process began tells it
from a later one with the same number.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from psycopg import pq

from store.questions.columns import int4, int8

#: When a process of ``pg_stat_activity`` began, in microseconds; 0: the role may not see it.
BEGAN: Final = "coalesce((extract(epoch from backend_start) * 1000000)::int8, 0)"
ASK: Final = f"select pid, {BEGAN} from pg_stat_get_activity(pg_backend_pid())"


def without_place(name: str) -> str:
    """SQL: the name of a session, which the expression ``name`` gives, without its client's place, which PgBouncer adds
    (``application_name_add_host``).
    """
    return f"split_part({name}, ' - ', 1)"


NAME: Final = without_place("application_name")


class Backend(NamedTuple):
    """``began``: microseconds since 1970; 0: not known."""

    pid: int
    began: int

    @property
    def parameters(self) -> list[bytes]:
        """Its two parts as an int4 and an int8, binary."""
        return [int4(self.pid), int8(self.began)]


#: No connection has been made yet.
NONE = Backend(0, 0)


def read(answer: pq.abc.PGresult) -> Backend:
    """The answer to :data:`ASK`, which is in text."""
    return Backend(int(answer.get_value(0, 0) or 0), int(answer.get_value(0, 1) or 0))


def read_all(answer: pq.abc.PGresult) -> set[Backend]:
    """Rows of a pid and :data:`BEGAN`, binary."""
    of = int.from_bytes
    return {
        Backend(of(answer.get_value(row, 0) or b"", "big"), of(answer.get_value(row, 1) or b"", "big"))
        for row in range(answer.ntuples)
    }
