"""Declare the views of the store that programs read, and parts of them; ``store/sql/views.sql`` defines them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer, Uuid, column, table

from store.commit import terms
from store.schema import SCHEMA

#: The state of an entry ``e`` (H18), where ``r.through`` is how far the holder of its group has read: as the view
#: ``entries`` has it.
STATE = f"""case when e.failed is not null then 'failed'
              when e.lease <> 0 or e.priority = {terms.DEFAULT} and e.available_at is null and e.id <= r.through
              then 'inflight'
              when e.available_at > now() then 'scheduled'
              else 'ready' end"""
#: ``r``, for a group ``g``.
THROUGH = f"""left join lateral (select max(n.read_through) as through from {SCHEMA}.group_read n
                        where n.group_id = g.id and n.instance_id = g.holder) r on true"""

pending_half = table(
    "pending_half",
    column("txn_id", Uuid),
    column("half_id", BigInteger),
    column("address_id", Integer),
    schema=SCHEMA,
)
