"""Checkable transactions: their halves wait in the store, and one function decides them.

What a table and a function mean is said in ``store/tables.py``; a test compares the catalogs of the two.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"
_VACUUM_BY_COUNT = {
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_threshold": "100000",
    "autovacuum_analyze_scale_factor": "0",
    "autovacuum_analyze_threshold": "100000",
}
_DECIDE_ALL = """
create function coordinator.decide_all(
  txns uuid[], decisions text[], reasons text[], instance int4, owners uuid[], halves int8[], entries int8[])
returns table (txn_id uuid, won boolean) language plpgsql as $$
#variable_conflict use_column
declare
  here uuid[];
  first uuid[];
  committed uuid[];
  others uuid[];
begin
  select coalesce(array_agg(found.id), '{}') into here from (
    select t.id from coordinator.txn t where t.id = any(txns) and t.producer_group is not null order by t.id for update
  ) found;
  with added as (
    insert into coordinator.op (id, decision, txn_id, reason, posted, instance_id)
    select a.t, a.d, a.t, nullif(a.r, ''), (select count(*) from coordinator.pending p where p.txn_id = a.t), instance
      from unnest(txns, decisions, reasons) a(t, d, r) where a.t = any(here) order by a.t
    on conflict do nothing returning id, decision)
  select coalesce(array_agg(id), '{}'), coalesce(array_agg(id) filter (where decision = 'commit'), '{}')
    into first, committed from added;
  if committed <> '{}' then
    if exists (
      select from (
          select distinct p.address_id from coordinator.pending p where p.txn_id = any(committed) order by 1) posted
        left join lateral (
          select a.id from coordinator.address a where a.id = posted.address_id for key share) a on true
       where a.id is null) then
      raise exception 'an address that is posted to is gone' using errcode = 'CO003';
    end if;
    others := array(select unnest(committed) except select unnest(owners));
    with known as (
      delete from coordinator.pending p using unnest(owners, halves, entries) u(t, h, e)
       where p.txn_id = u.t and p.half_id = u.h and u.t = any(committed) returning p.*, u.e as entry_id),
    rest as (
      delete from coordinator.pending p where p.txn_id = any(others) returning p.*, null::int8 as entry_id),
    gone as (select * from known union all select * from rest),
    delivered as (
      insert into coordinator.entry (group_id, id, half_id, expires_at, available_at, priority, message_group)
      select g.id, coalesce(m.entry_id, m.half_id), m.half_id, m.expires_at,
             case when m.entry_id is null then greatest(m.available_at, now()) else m.available_at end,
             m.priority, case m.message_group when 1 then coalesce(m.entry_id, m.half_id) else m.message_group end
        from gone m join coordinator.consumer_group g on g.address_id = m.address_id
       where g.id <> all(coalesce(m.left_out, '{}')) for key share of g)
    insert into coordinator.op (id, decision, reason, half_ids, group_ids, instance_id)
    select encode(set_byte(overlay(uuid_send(gen_random_uuid()) placing
             substring(int8send((extract(epoch from clock_timestamp()) * 1000)::int8) from 3) from 1 for 6), 6, 112),
             'hex')::uuid,
           'accept', 'no-local', array_fill(m.half_id, array[cardinality(m.left_out)]), m.left_out, instance
      from gone m where m.left_out is not null;
    if exists (select from coordinator.pending p where p.txn_id = any(committed)) then
      raise exception 'halves were left out of a commit' using errcode = 'data_exception';
    end if;
    if others <> '{}' then
      perform pg_notify('coordinator_due', '');
    end if;
  end if;
  if cardinality(here) > cardinality(committed) then
    delete from coordinator.pending p where p.txn_id = any(here);
  end if;
  delete from coordinator.txn t where t.id = any(here);
  return query select a, a = any(first) from unnest(txns) a;
end $$"""


def upgrade() -> None:
    _transactions()
    _pending()
    _deciding()
    op.execute("drop view coordinator.outcome")
    op.execute(
        """
create view coordinator.outcome as
  select id as txn_id, decision as outcome, reason, posted, coalesce(cardinality(half_ids), 0) as retired,
         decided_at, instance_id
    from coordinator.op where decision in ('commit', 'rollback')
  union all
  select t.id, 'undecided', null,
         case when t.producer_group is null then t.posted
              else (select count(*)::int4 from coordinator.pending p where p.txn_id = t.id) end,
         t.retired, null, t.instance_id
    from coordinator.txn t where not exists (select from coordinator.op o where o.id = t.id)"""
    )


def _transactions() -> None:
    for column in (
        sa.Column("check_immunity_ms", sa.Integer),
        sa.Column("check_interval_ms", sa.Integer),
        sa.Column("most_checks", sa.SmallInteger),
        sa.Column("connection", sa.BigInteger),
    ):
        op.add_column("txn", column, schema=SCHEMA)
    settings = ", ".join(f"{name} = {value}" for name, value in _VACUUM_BY_COUNT.items())
    op.execute(f"alter table coordinator.txn set ({settings})")
    op.create_index(
        "txn_producer_group_idx",
        "txn",
        ["producer_group", "next_check_at"],
        schema=SCHEMA,
        postgresql_where=sa.text("producer_group is not null"),
    )


def _pending() -> None:
    op.create_table(
        "pending",
        sa.Column("txn_id", sa.Uuid, nullable=False),
        sa.Column("half_id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("address_id", sa.Integer, nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("available_at", sa.DateTime(timezone=True)),
        sa.Column("priority", sa.SmallInteger, nullable=False, server_default="4"),
        sa.Column("message_group", sa.BigInteger),
        sa.Column("left_out", postgresql.ARRAY(sa.Integer)),
        sa.PrimaryKeyConstraint("txn_id", "half_id", name="pending_pkey"),
        postgresql_with=_VACUUM_BY_COUNT,
        schema=SCHEMA,
    )
    op.create_index("pending_address_id_idx", "pending", ["address_id"], schema=SCHEMA)


def _deciding() -> None:
    op.execute(_DECIDE_ALL)
    op.execute(
        """
create function coordinator.decide(txn uuid, decision text, reason text, instance int4 default null) returns boolean
language sql set enable_seqscan = off as $$
  select won from coordinator.decide_all(array[txn], array[decision], array[reason], instance, '{}', '{}', '{}')
$$"""
    )
    op.execute(
        """
create function coordinator.any_decided(txns uuid[], entered bigint) returns boolean language plpgsql as $$
begin
  return exists (
    select from unnest(txns) t(id) where exists (select from coordinator.op o where o.id = t.id));
end $$"""
    )


def downgrade() -> None:
    op.execute("drop view coordinator.outcome")
    op.execute("drop function coordinator.any_decided(uuid[], bigint)")
    op.execute("drop function coordinator.decide(uuid, text, text, int4)")
    op.execute("drop function coordinator.decide_all(uuid[], text[], text[], int4, uuid[], int8[], int8[])")
    op.drop_table("pending", schema=SCHEMA)
    op.drop_index("txn_producer_group_idx", "txn", schema=SCHEMA)
    op.execute(f"alter table coordinator.txn reset ({', '.join(_VACUUM_BY_COUNT)})")
    for column in ("connection", "most_checks", "check_interval_ms", "check_immunity_ms"):
        op.drop_column("txn", column, schema=SCHEMA)
    op.execute(
        """
create view coordinator.outcome as
  select id as txn_id, decision as outcome, reason, posted, coalesce(cardinality(half_ids), 0) as retired,
         decided_at, instance_id
    from coordinator.op where decision in ('commit', 'rollback')
  union all
  select t.id, 'undecided', null, t.posted, t.retired, null, t.instance_id
    from coordinator.txn t where not exists (select from coordinator.op o where o.id = t.id)"""
    )
