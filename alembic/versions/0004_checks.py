"""Checks: transactions that are due are found by index, and those that were checked often enough are set aside.

What an index and a function mean is said in ``store/tables.py``; a test compares the catalogs of the two.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"


def upgrade() -> None:
    op.drop_index("txn_producer_group_idx", "txn", schema=SCHEMA)
    op.create_index(
        "txn_next_check_at_idx",
        "txn",
        ["producer_group", "next_check_at"],
        schema=SCHEMA,
        postgresql_where=sa.text("next_check_at is not null"),
    )
    op.create_index(
        "txn_exhausted_idx",
        "txn",
        ["next_check_at"],
        schema=SCHEMA,
        postgresql_where=sa.text("checks >= most_checks"),
    )
    op.execute(
        """
create function coordinator.exhaust(
  txn uuid, ids int8[], target int4, addresses int4[], annotations bytea[], instance int4)
returns boolean language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  kind text;
  halves int8[];
  origins int4[];
begin
  perform from coordinator.txn t
    where t.id = exhaust.txn and t.checks >= t.most_checks and t.next_check_at <= now() for update skip locked;
  if not found then
    return false;
  end if;
  select a.kind into kind from coordinator.address a where a.id = target for key share;
  select array_agg(p.half_id order by p.half_id), array_agg(p.address_id order by p.half_id) into halves, origins
    from coordinator.pending p where p.txn_id = exhaust.txn;
  if kind is null or cardinality(halves) > cardinality(ids) or not origins <@ addresses then
    return false;
  end if;
  if not coordinator.decide(exhaust.txn, 'rollback', 'check-exhausted', instance) then
    return false;
  end if;
  insert into coordinator.half (id, txn_id, address_id, message)
  select c.id, null, target, h.message
    from unnest(ids, halves) c(id, half_id) join coordinator.half h on h.id = c.half_id;
  insert into coordinator.entry (group_id, id, half_id, available_at, message_group, annotations)
  select g.id, c.id, c.id, now(), case kind when 'fifo' then c.id end, s.annotations
    from unnest(ids, halves, origins) c(id, half_id, address_id)
    join unnest(addresses, annotations) s(address_id, annotations) on s.address_id = c.address_id
    cross join (select id from coordinator.consumer_group where address_id = target for key share) g
   where exists (select from coordinator.half h where h.id = c.half_id);
  perform pg_notify('coordinator_due', '');
  return true;
end $$"""
    )


def downgrade() -> None:
    op.execute("drop function coordinator.exhaust(uuid, int8[], int4, int4[], bytea[], int4)")
    op.drop_index("txn_exhausted_idx", "txn", schema=SCHEMA)
    op.drop_index("txn_next_check_at_idx", "txn", schema=SCHEMA)
    op.create_index(
        "txn_producer_group_idx",
        "txn",
        ["producer_group", "next_check_at"],
        schema=SCHEMA,
        postgresql_where=sa.text("producer_group is not null"),
    )
