"""The view ``addresses`` counts undecided halves of all addresses at once.

It looked for those of each address apart: with many undecided at few of a thousand addresses, each look read all of
them.
"""

from __future__ import annotations

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

_ADDRESSES = """
create or replace view coordinator.addresses as
  select a.name as address, a.routing, a.kind, a.origin, c.groups, {pending} as pending,
         c.ready, c.inflight, c.scheduled, c.failed, a.created_at, a.id as address_id
    from coordinator.address a{joined}
    cross join lateral (
      select count(*) as groups, coalesce(sum(g.ready), 0)::int8 as ready,
             coalesce(sum(g.inflight), 0)::int8 as inflight, coalesce(sum(g.scheduled), 0)::int8 as scheduled,
             coalesce(sum(g.failed), 0)::int8 as failed
        from coordinator.groups g where g.address_id = a.id) c"""

_AT_ONCE = """
    left join (select p.address_id, count(*) as halves from coordinator.pending_half p group by p.address_id) u
      on u.address_id = a.id"""

_APART = """
         (select count(*) from coordinator.pending p where p.address_id = a.id)
           + (select coalesce(sum(cardinality(t.half_ids)), 0)::int8 from coordinator.txn t where t.address_id = a.id)
"""


def upgrade() -> None:
    op.execute(_ADDRESSES.format(pending="coalesce(u.halves, 0)", joined=_AT_ONCE))


def downgrade() -> None:
    op.execute(_ADDRESSES.format(pending=_APART, joined=""))
