"""Views that a person reads, and the decisions of transactions in the order in which they were written.

What a view means is said in ``store/tables.py``; a test compares the catalogs of the two.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"
_VIEWS = (
    """
create view coordinator.entries as
  select a.name as address, g.name as consumer_group, e.id as entry_id, e.half_id,
         case when e.failed is not null then 'failed'
              when e.lease <> 0 or e.priority = 4 and e.available_at is null and e.id <= r.through
              then 'inflight'
              when e.available_at > now() then 'scheduled'
              else 'ready' end as state,
         e.attempts, e.priority, e.available_at, e.expires_at, e.failed as failed_for, a.id as address_id,
         g.id as group_id
    from coordinator.consumer_group g
    join coordinator.address a on a.id = g.address_id
    left join lateral (select max(n.read_through) as through from coordinator.group_read n
                        where n.group_id = g.id and n.instance_id = g.holder) r on true
    join coordinator.entry e on e.group_id = g.id""",
    """
create view coordinator.groups as
  select a.name as address, g.name as consumer_group, g.instance_id is not null as volatile,
         c.ready, c.inflight, c.scheduled, c.failed, g.created_at, a.id as address_id, g.id as group_id
    from coordinator.consumer_group g
    join coordinator.address a on a.id = g.address_id
    cross join lateral (
      select count(*) filter (where e.state = 'ready') as ready,
             count(*) filter (where e.state = 'inflight') as inflight,
             count(*) filter (where e.state = 'scheduled') as scheduled,
             count(*) filter (where e.state = 'failed') as failed
        from coordinator.entries e where e.group_id = g.id) c""",
    """
create view coordinator.addresses as
  select a.name as address, a.routing, a.kind, a.origin, c.groups,
         (select count(*) from coordinator.pending p where p.address_id = a.id) as pending,
         c.ready, c.inflight, c.scheduled, c.failed, a.created_at, a.id as address_id
    from coordinator.address a
    cross join lateral (
      select count(*) as groups, coalesce(sum(g.ready), 0)::int8 as ready,
             coalesce(sum(g.inflight), 0)::int8 as inflight, coalesce(sum(g.scheduled), 0)::int8 as scheduled,
             coalesce(sum(g.failed), 0)::int8 as failed
        from coordinator.groups g where g.address_id = a.id) c""",
    """
create view coordinator.undecided as
  select t.id as txn_id, now() - t.declared_at as age, t.owner, t.producer_group,
         case when t.producer_group is null then t.posted
              else (select count(*)::int4 from coordinator.pending p where p.txn_id = t.id) end as posted,
         t.retired,
         array(select distinct a.name from coordinator.pending p join coordinator.address a on a.id = p.address_id
                where p.txn_id = t.id order by a.name) as addresses,
         t.declared_at, t.timeout_at, t.checks, t.next_check_at, t.instance_id
    from coordinator.txn t where not exists (select from coordinator.op o where o.id = t.id)""",
    """
create view coordinator.messages as
  with ended as (
    select u.half_id, u.group_id,
           case when o.decision in ('commit', 'accept') then 'acked' when o.decision = 'expire' then 'expired'
                when o.decision = 'dead-letter' then 'dead-lettered' else 'purged' end as state
      from coordinator.op o cross join lateral unnest(o.half_ids, o.group_ids) u(half_id, group_id)
     where o.decision in ('commit', 'accept', 'expire', 'dead-letter', 'purge'))
  select h.id as half_id, coalesce(a.name, r.name) as address, g.name as consumer_group,
         case when p.half_id is not null then 'pending'
              when d.decision = 'rollback' then 'rolled-back'
              when h.txn_id is not null and d.id is null then 'unknown'
              else coalesce(e.state, n.state, 'no-entry') end as state,
         h.txn_id, h.posted_at, d.decided_at, octet_length(h.message) as octets
    from coordinator.half h
    left join coordinator.address a on a.id = h.address_id
    left join coordinator.removed_address r on r.id = h.address_id
    left join coordinator.pending p on p.txn_id = h.txn_id and p.half_id = h.id
    left join coordinator.op d on d.id = h.txn_id
    left join coordinator.consumer_group g
      on g.address_id = h.address_id and (h.txn_id is null or d.decision = 'commit')
    left join coordinator.entries e on e.group_id = g.id and e.half_id = h.id
    left join ended n on n.group_id = g.id and n.half_id = h.id""",
)


def upgrade() -> None:
    op.create_index(
        "op_written_xid_idx",
        "op",
        [sa.text("((written_xid::text)::bigint)")],
        schema=SCHEMA,
        postgresql_using="brin",
        postgresql_with={"pages_per_range": "64", "autosummarize": "on"},
        postgresql_where=sa.text("posted is not null"),
    )
    for view in _VIEWS:
        op.execute(view)


def downgrade() -> None:
    for name in ("messages", "undecided", "addresses", "groups", "entries"):
        op.execute(f"drop view coordinator.{name}")
    op.drop_index("op_written_xid_idx", "op", schema=SCHEMA)
