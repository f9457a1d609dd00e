"""Look up entries by a list of keys, for commands and maintenance, whose sessions have the planner's own settings.

Their statements may be planned as if there were no entries: the table was vacuumed while it was empty, and entries were
added since. A plan that compares each entry with each key then seems as cheap as one that looks up each key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import BigInteger, ColumnElement, FromClause, Integer, TableValuedAlias, any_, cast, func, text
from sqlalchemy.dialects.postgresql import ARRAY, array

from store.tables import entry

#: For the rest of an SQL transaction: rows are looked up by key, and read in the order of an index, not sorted first.
BY_KEY: Final = text("set local enable_seqscan = off; set local enable_bitmapscan = off; set local jit = off")

_INTEGERS: Final = ARRAY(Integer)
_NUMBERS: Final = ARRAY(BigInteger)


def keys_of(keys: Sequence[tuple[int, int]]) -> TableValuedAlias:
    """Return a table of these groups and ids of entries, as ``group_id`` and ``id``."""
    groups, ids = cast([group for group, _ in keys], _INTEGERS), cast([number for _, number in keys], _NUMBERS)
    return func.unnest(groups, ids).table_valued("group_id", "id").render_derived()


def listed(keys: FromClause) -> ColumnElement[bool]:
    """Return the condition that an entry has a ``group_id`` and ``id`` of these.

    With :data:`BY_KEY` set, each key of the list is looked up. See ``_LISTED`` of :mod:`store.commit.parts` for the
    array.
    """
    return (entry.c.group_id == any_(array([keys.c.group_id]))) & (entry.c.id == keys.c.id)
