"""Questions about entries: holding a group, reading and leasing what is in it, and its messages piece by piece.

``group`` and ``instance`` are ids of rows; entries are looked for above an id, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from store import arrays, queries
from store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from store.asking import Callback, Queries, Query, Row
    from store.priorities import Rank


def _int4(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _int8(number: int) -> bytes:
    return number.to_bytes(8, "big")


def hold(asked: Queries, group: int, instance: int, held: Callable[[bool], None]) -> None:
    """Have the whole group, where no other instance has anything of it."""
    asked.ask(queries.HOLD, [_int4(group), _int4(instance)], lambda rows: held(isinstance(rows, list) and bool(rows)))


def unread(asked: Queries, group: int, instance: int) -> None:
    """Nothing of a group held whole is in the instance's hands any more."""
    asked.ask(queries.UNREAD, [_int4(group), _int4(instance)], lambda _: None)


def leased(asked: Queries, group: int, instance: int, found: Callable[[list[int]], None]) -> None:
    """The ids of entries that are leased to the instance; none where the store cannot answer."""

    def listed(rows: list[Row] | StoreError) -> None:
        found([] if isinstance(rows, StoreError) else [row[0] for row in rows])

    asked.ask(queries.HELD, [_int4(group), _int4(instance)], listed)


def read(asked: Queries, group: int, above: int, most: int, octets: int, instance: int, found: Callback) -> None:
    """The next entries of a group held whole, at most so many and so many octets of them."""
    _load(asked, queries.READ, group, above, most, octets, instance, found)


def lease(
    asked: Queries, rank: Rank, group: int, above: int, most: int, octets: int, instance: int, found: Callback
) -> None:
    """The same, leased one by one."""
    _load(asked, queries.LEASE[rank], group, above, most, octets, instance, found)


def _load(
    asked: Queries,
    query: Query,
    group: int,
    above: int,
    most: int,
    octets: int,
    instance: int,
    found: Callback,
) -> None:
    asked.ask(query, [_int4(group), _int8(above), _int4(most), _int8(octets), _int4(instance)], found)


def browse(
    asked: Queries, rank: Rank, group: int, behind: tuple[int, int], most: int, octets: int, found: Callback
) -> None:
    """Entries that no instance has, behind one of this priority and id; nothing is taken."""
    priority, entry_id = behind
    parameters = [_int4(group), _int8(entry_id), _int4(most), _int8(octets), priority.to_bytes(2, "big")]
    asked.ask(queries.BROWSE[rank], parameters, found)


def take(asked: Queries, group: int, ids: Sequence[int], instance: int, taken: Callback) -> None:
    """Lease those of the entries that are free still."""
    asked.ask(queries.TAKE, [_int4(group), arrays.int8(ids), _int4(instance)], taken)


def piece(asked: Queries, half_id: int, at: int, size: int, found: Callable[[bytes | None], None]) -> None:
    """Octets of a stored message from an offset on; None where the store has none, or cannot answer."""

    def answered(rows: list[Row] | StoreError) -> None:
        found(rows[0][0] or None if isinstance(rows, list) and rows else None)

    asked.ask(queries.PIECE, [_int8(half_id), _int4(at), _int4(size)], answered)
