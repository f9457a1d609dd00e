"""Which instance holds an entry: by the entry's own lease, or by the range that the holder of its group has read."""

from __future__ import annotations

from sqlalchemy import select

from store import priorities
from store.tables import consumer_group, entry, group_read

#: Entries that the holder of a group reads by range: of normal priority, and not for later.
by_range = (entry.c.priority == priorities.DEFAULT) & entry.c.available_at.is_(None) & entry.c.failed.is_(None)

#: An instance holds the entry: in a window, or on its way to a consumer.
held = (entry.c.lease != 0) | (
    by_range
    & select(consumer_group.c.id)
    .where(
        consumer_group.c.id == entry.c.group_id,
        group_read.c.group_id == consumer_group.c.id,
        group_read.c.instance_id == consumer_group.c.holder,
        entry.c.id <= group_read.c.read_through,
    )
    .exists()
)
