"""Read the beginning of a stored message, up to all sections that an operator is told of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection

#: octets of a message that are read at most
_LONGEST_HEAD = 1 << 22


def whole_head(connection: Connection, half_id: int, head: bytes, size: int) -> bytes:
    """Return the sections of a message before its body, as far as its first megabytes have them. ``head``: its first
    octets, of ``size`` in all.
    """
    from store import dead_letters
    from store.codec.message import shows_properties

    while len(head) < min(size, _LONGEST_HEAD) and not shows_properties(head):
        head = dead_letters.message(connection, half_id, 4 * len(head))
    return head
