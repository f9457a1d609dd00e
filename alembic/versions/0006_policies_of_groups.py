"""Policies that a consumer group has of its own."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"

_GROUPS = """
create or replace view coordinator.groups as
  select a.name as address, g.name as consumer_group, g.instance_id is not null as volatile,
         c.ready, c.inflight, c.scheduled, c.failed, g.created_at, a.id as address_id, g.id as group_id{policies}
    from coordinator.consumer_group g
    join coordinator.address a on a.id = g.address_id
    cross join lateral (
      select count(*) filter (where e.state = 'ready') as ready,
             count(*) filter (where e.state = 'inflight') as inflight,
             count(*) filter (where e.state = 'scheduled') as scheduled,
             count(*) filter (where e.state = 'failed') as failed
        from coordinator.entries e where e.group_id = g.id) c"""
_POLICIES = """,
         coalesce(g.on_expiry, a.on_expiry) as on_expiry, coalesce(g.max_attempts, a.max_attempts) as max_attempts,
         coalesce(g.retry, a.retry) as retry,
         array_remove(array[case when g.on_expiry is not null then 'on_expiry' end,
                            case when g.max_attempts is not null then 'max_attempts' end,
                            case when g.retry is not null then 'retry' end], null) as own_policies"""


def upgrade() -> None:
    op.add_column("consumer_group", sa.Column("on_expiry", sa.Text), schema=SCHEMA)
    op.add_column("consumer_group", sa.Column("max_attempts", sa.SmallInteger), schema=SCHEMA)
    op.add_column("consumer_group", sa.Column("retry", sa.Text), schema=SCHEMA)
    expiry = "on_expiry in ('drop', 'dead-letter')"
    op.create_check_constraint("consumer_group_on_expiry_check", "consumer_group", expiry, schema=SCHEMA)
    op.create_check_constraint(
        "consumer_group_max_attempts_check", "consumer_group", "max_attempts >= 1", schema=SCHEMA
    )
    op.execute(_GROUPS.format(policies=_POLICIES))


def downgrade() -> None:
    op.execute("drop view coordinator.addresses")
    op.execute("drop view coordinator.groups")
    op.execute(_GROUPS.format(policies=""))
    op.execute(_ADDRESSES)
    for column in ("retry", "max_attempts", "on_expiry"):
        op.drop_column("consumer_group", column, schema=SCHEMA)


_ADDRESSES = """
create view coordinator.addresses as
  select a.name as address, a.routing, a.kind, a.origin, c.groups,
         (select count(*) from coordinator.pending p where p.address_id = a.id) as pending,
         c.ready, c.inflight, c.scheduled, c.failed, a.created_at, a.id as address_id
    from coordinator.address a
    cross join lateral (
      select count(*) as groups, coalesce(sum(g.ready), 0)::int8 as ready,
             coalesce(sum(g.inflight), 0)::int8 as inflight, coalesce(sum(g.scheduled), 0)::int8 as scheduled,
             coalesce(sum(g.failed), 0)::int8 as failed
        from coordinator.groups g where g.address_id = a.id) c"""
