"""Retirements in checkable transactions: the transaction holds their entries, and its decision applies them.

What a table and a function mean is said in ``store/tables.py``; a test compares the catalogs of the two.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"
_VACUUM_BY_COUNT = {
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_threshold": "100000",
    "autovacuum_analyze_scale_factor": "0",
    "autovacuum_analyze_threshold": "100000",
}
_RETIRE = """
create function coordinator.retire(txns uuid[], committed uuid[], instance int4, keeper int4)
returns void language plpgsql as $$
declare
  held_here uuid[] := array(
    select distinct r.txn_id from coordinator.pending_retirement r
     where r.txn_id = any(txns) and r.holder is not null);
  notice text;
begin
  with gone as (
    delete from coordinator.pending_retirement r where r.txn_id = any(committed) returning r.*),
  accepted as (
    delete from coordinator.entry e using gone r
     where r.decision = 'accept' and e.group_id = r.group_id and e.id = r.entry_id and e.lease = -1
    returning r.txn_id, r.half_id, r.group_id, r.entry_id),
  back as (
    update coordinator.entry e
       set lease = case when r.decision = 'release' then coalesce(keeper, 0) else 0 end, attempts = r.attempts,
           acquired = true, failed = r.failed, annotations = r.annotations,
           available_at = case when r.wait_ms > 0 then now() + r.wait_ms * interval '1 ms' end
      from gone r
     where r.decision <> 'accept' and e.group_id = r.group_id and e.id = r.entry_id and e.lease = -1
    returning r.txn_id, r.decision, r.reason, r.half_id, r.group_id),
  told as (
    insert into coordinator.op (id, decision, txn_id, reason, half_ids, group_ids, instance_id)
    select encode(set_byte(overlay(uuid_send(gen_random_uuid()) placing
             substring(int8send((extract(epoch from clock_timestamp()) * 1000)::int8) from 3) from 1 for 6), 6, 112),
             'hex')::uuid, b.decision, b.txn_id, b.reason, array[b.half_id], array[b.group_id], instance
      from back b where b.decision <> 'release'
    union all
    select encode(set_byte(overlay(uuid_send(gen_random_uuid()) placing
             substring(int8send((extract(epoch from clock_timestamp()) * 1000)::int8) from 3) from 1 for 6), 6, 112),
             'hex')::uuid, 'accept', a.txn_id, null, array_agg(a.half_id order by a.group_id, a.entry_id),
           array_agg(a.group_id order by a.group_id, a.entry_id), instance
      from accepted a join coordinator.txn t on t.id = a.txn_id
     where t.declared_at <= now() - interval '1 day' group by a.txn_id)
  select string_agg(f.group_id || '>' || to_hex(f.lowest), ',') into notice from (
    select g.group_id, min(g.entry_id) as lowest from gone g
     where g.decision <> 'accept' or g.message_group is not null group by g.group_id) f;
  if keeper is not null then
    with gone as (
      delete from coordinator.pending_retirement r where r.txn_id = any(txns) returning r.*)
    update coordinator.entry e set lease = keeper from gone r
     where e.group_id = r.group_id and e.id = r.entry_id and e.lease = -1;
    return;
  end if;
  update coordinator.pending_retirement r set rolled_back = true where r.txn_id = any(txns);
  perform coordinator.give_back(txns, instance);
  if notice is not null then
    perform pg_notify('coordinator_ready', case when octet_length(notice) < 8000 then notice else '' end);
  end if;
  perform pg_notify('coordinator_decided', replace(t::text, '-', '')) from unnest(held_here) t;
  perform pg_notify('coordinator_decided', '');
end $$"""
_GIVE_BACK = """
create function coordinator.give_back(txns uuid[], instance int4) returns void language plpgsql as $$
declare
  notice text;
begin
  with gone as (
    delete from coordinator.pending_retirement r
     where r.txn_id = any(txns) and r.rolled_back and r.holder is null returning r.*),
  back as (
    update coordinator.entry e
       set lease = 0, attempts = least(e.attempts::int4 + 1, 32767), acquired = true, failed = r.undo_failed
      from gone r where e.group_id = r.group_id and e.id = r.entry_id and e.lease = -1
    returning r.txn_id, r.half_id, r.group_id),
  told as (
    insert into coordinator.op (id, decision, txn_id, half_ids, group_ids, instance_id)
    select encode(set_byte(overlay(uuid_send(gen_random_uuid()) placing
             substring(int8send((extract(epoch from clock_timestamp()) * 1000)::int8) from 3) from 1 for 6), 6, 112),
             'hex')::uuid, 'modify', b.txn_id, array[b.half_id], array[b.group_id], instance from back b)
  select string_agg(f.group_id || '>' || to_hex(f.lowest), ',') into notice from (
    select g.group_id, min(g.entry_id) as lowest from gone g group by g.group_id) f;
  if notice is not null then
    perform pg_notify('coordinator_ready', case when octet_length(notice) < 8000 then notice else '' end);
    perform pg_notify('coordinator_decided', '');
  end if;
end $$"""
_LET_GO = """
create function coordinator.let_go(instances int4[], txns uuid[]) returns void language plpgsql
set enable_seqscan = off as $$
declare
  undone uuid[];
begin
  perform from coordinator.pending_retirement r
    where r.holder = any(instances) and (txns is null or r.txn_id = any(txns))
    order by r.txn_id, r.group_id, r.entry_id for update;
  with freed as (
    update coordinator.pending_retirement r set holder = null
     where r.holder = any(instances) and (txns is null or r.txn_id = any(txns)) returning r.txn_id, r.rolled_back)
  select array_agg(distinct f.txn_id) into undone from freed f where f.rolled_back;
  if undone is not null then
    perform coordinator.give_back(undone, null);
  end if;
end $$"""
_DECIDE_ALL = """
create function coordinator.decide_all(
  txns uuid[], decisions text[], reasons text[], instance int4, owners uuid[], halves int8[], entries int8[],
  keeper int4)
returns table (txn_id uuid, won boolean) language plpgsql as $$
#variable_conflict use_column
declare
  here uuid[];
  first uuid[];
  committed uuid[];
  others uuid[];
  retires boolean;
begin
  select coalesce(array_agg(found.id), '{}') into here from (
    select t.id from coordinator.txn t where t.id = any(txns) and t.producer_group is not null order by t.id for update
  ) found;
  retires := exists (select from coordinator.pending_retirement r where r.txn_id = any(here));
  if retires then
    perform from coordinator.pending_retirement r where r.txn_id = any(here)
      order by r.txn_id, r.group_id, r.entry_id for update;
    perform from coordinator.entry e
      join coordinator.pending_retirement r on r.group_id = e.group_id and r.entry_id = e.id
      where r.txn_id = any(here) order by e.group_id, e.id for update of e;
  end if;
  with added as (
    insert into coordinator.op (id, decision, txn_id, reason, posted, half_ids, group_ids, instance_id)
    select a.t, a.d, a.t, nullif(a.r, ''), (select count(*) from coordinator.pending p where p.txn_id = a.t),
           c.half_ids, c.group_ids, instance
      from unnest(txns, decisions, reasons) a(t, d, r)
      left join lateral (
        select array_agg(r.half_id order by r.group_id, r.entry_id) as half_ids,
               array_agg(r.group_id order by r.group_id, r.entry_id) as group_ids
          from coordinator.pending_retirement r
          join coordinator.entry e on e.group_id = r.group_id and e.id = r.entry_id and e.lease = -1
          join coordinator.txn t on t.id = r.txn_id and t.declared_at > now() - interval '1 day'
         where retires and a.d = 'commit' and r.txn_id = a.t and r.decision = 'accept') c on true
     where a.t = any(here) order by a.t
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
  if retires then
    perform coordinator.retire(here, committed, instance, keeper);
  end if;
  delete from coordinator.txn t where t.id = any(here);
  return query select a, a = any(first) from unnest(txns) a;
end $$"""
_DECIDE = """
create function coordinator.decide(txn uuid, decision text, reason text, instance int4 default null) returns boolean
language sql set enable_seqscan = off as $$
  select won from coordinator.decide_all(array[txn], array[decision], array[reason], instance, '{}', '{}', '{}',
                                        null)
$$"""
_OUTCOME = """
create view coordinator.outcome as
  select id as txn_id, decision as outcome, reason, posted, coalesce(cardinality(half_ids), 0) as retired,
         decided_at, instance_id
    from coordinator.op where decision in ('commit', 'rollback')
  union all
  select t.id, 'undecided', null,
         case when t.producer_group is null then t.posted
              else (select count(*)::int4 from coordinator.pending p where p.txn_id = t.id) end,
         case when t.producer_group is null then t.retired
              else (select count(*)::int4 from coordinator.pending_retirement r where r.txn_id = t.id) end,
         null, t.instance_id
    from coordinator.txn t where not exists (select from coordinator.op o where o.id = t.id)"""
_UNDECIDED = """
create view coordinator.undecided as
  select t.id as txn_id, now() - t.declared_at as age, t.owner, t.producer_group,
         case when t.producer_group is null then t.posted
              else (select count(*)::int4 from coordinator.pending p where p.txn_id = t.id) end as posted,
         case when t.producer_group is null then t.retired
              else (select count(*)::int4 from coordinator.pending_retirement r where r.txn_id = t.id) end as retired,
         array(select distinct a.name from coordinator.pending p join coordinator.address a on a.id = p.address_id
                where p.txn_id = t.id order by a.name) as addresses,
         t.declared_at, t.timeout_at, t.checks, t.next_check_at, t.instance_id
    from coordinator.txn t where not exists (select from coordinator.op o where o.id = t.id)"""

_DECIDE_ALL_BEFORE = """
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
_DECIDE_BEFORE = """
create function coordinator.decide(txn uuid, decision text, reason text, instance int4 default null) returns boolean
language sql set enable_seqscan = off as $$
  select won from coordinator.decide_all(array[txn], array[decision], array[reason], instance, '{}', '{}', '{}')
$$"""
_OUTCOME_BEFORE = """
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
_UNDECIDED_BEFORE = """
create view coordinator.undecided as
  select t.id as txn_id, now() - t.declared_at as age, t.owner, t.producer_group,
         case when t.producer_group is null then t.posted
              else (select count(*)::int4 from coordinator.pending p where p.txn_id = t.id) end as posted,
         t.retired,
         array(select distinct a.name from coordinator.pending p join coordinator.address a on a.id = p.address_id
                where p.txn_id = t.id order by a.name) as addresses,
         t.declared_at, t.timeout_at, t.checks, t.next_check_at, t.instance_id
    from coordinator.txn t where not exists (select from coordinator.op o where o.id = t.id)"""


def upgrade() -> None:
    op.create_table(
        "pending_retirement",
        sa.Column("txn_id", sa.Uuid, nullable=False),
        sa.Column("group_id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("entry_id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("half_id", sa.BigInteger, nullable=False),
        sa.Column("message_group", sa.BigInteger),
        sa.Column("decision", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("attempts", sa.SmallInteger, nullable=False),
        sa.Column("failed", sa.Text),
        sa.Column("annotations", sa.LargeBinary),
        sa.Column("wait_ms", sa.BigInteger, nullable=False),
        sa.Column("undo_failed", sa.Text),
        sa.Column("holder", sa.Integer),
        sa.Column("rolled_back", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.PrimaryKeyConstraint("txn_id", "group_id", "entry_id", name="pending_retirement_pkey"),
        sa.CheckConstraint(
            "decision in ('accept', 'reject', 'release', 'modify')", name="pending_retirement_decision_check"
        ),
        postgresql_with=_VACUUM_BY_COUNT,
        schema=SCHEMA,
    )
    op.create_index(
        "pending_retirement_message_group_idx",
        "pending_retirement",
        ["group_id", "message_group"],
        schema=SCHEMA,
        postgresql_where=sa.text("message_group is not null"),
    )
    _drop_views()
    op.execute("drop function coordinator.decide(uuid, text, text, int4)")
    op.execute("drop function coordinator.decide_all(uuid[], text[], text[], int4, uuid[], int8[], int8[])")
    for made in (_RETIRE, _GIVE_BACK, _LET_GO, _DECIDE_ALL, _DECIDE, _OUTCOME, _UNDECIDED):
        op.execute(made)


def _drop_views() -> None:
    for view in ("outcome", "undecided"):
        op.execute(f"drop view coordinator.{view}")


def downgrade() -> None:
    """Undecided transactions lose what they have retired: it is delivered again."""
    op.execute("update coordinator.entry set lease = 0 where lease = -1")
    _drop_views()
    op.execute("drop function coordinator.decide(uuid, text, text, int4)")
    op.execute("drop function coordinator.decide_all(uuid[], text[], text[], int4, uuid[], int8[], int8[], int4)")
    op.execute("drop function coordinator.let_go(int4[], uuid[])")
    op.execute("drop function coordinator.give_back(uuid[], int4)")
    op.execute("drop function coordinator.retire(uuid[], uuid[], int4, int4)")
    op.drop_table("pending_retirement", schema=SCHEMA)
    for made in (_DECIDE_ALL_BEFORE, _DECIDE_BEFORE, _OUTCOME_BEFORE, _UNDECIDED_BEFORE):
        op.execute(made)
