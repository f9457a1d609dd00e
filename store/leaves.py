"""Statements that name the partitions of the days they need, so that they cost the same however many days are kept.

A statement over the whole of ``half`` locks and opens every partition each time it runs. An id tells its day: so a
statement names the few days in which it looks. When it meets the half of another day it ends with an error, and is
asked again with that day, too (:mod:`store.asking`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

from store.ids import begin_of, id_at
from store.tables import SCHEMA

#: The message of ``p.half_id``, whatever its day. For ``any`` see :mod:`store.commit.parts`.
OF_ANY_DAY: str = f"select message from {SCHEMA}.half where id = any(array[p.half_id])"

#: A statement of more days than these looks in all partitions.
MOST = 3


def of(sql: str, days: Sequence[date]) -> str:
    """``sql`` with :data:`OF_ANY_DAY` in it, looking in ``days`` only."""
    # The parts of a union that have conditions are planned by themselves, with ``p.half_id`` as a value.
    looks = [f"select message from {SCHEMA}.half_{day:%Y%m%d} where id = p.half_id" for day in days]
    bounds = [(_first(day), _first(day + timedelta(days=1))) for day in days]
    inside = " or ".join(f"p.half_id >= {first} and p.half_id < {last}" for first, last in bounds)
    looks.append(f"select {SCHEMA}.elsewhere(p.half_id) where not ({inside})")
    return sql.replace(OF_ANY_DAY, " union all ".join(looks))


def _first(day: date) -> int:
    return id_at(begin_of(day))
