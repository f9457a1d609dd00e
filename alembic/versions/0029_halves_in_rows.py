"""The halves of most checkable transactions are in their rows, and have none of their own (H2)."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"

#: What differs in the functions and views where halves can be in the rows of their transactions: this, and before.
_DIFFERENT = {
    "{of_each}": (
        """
           coalesce(cardinality(x.half_ids), 0) + (select count(*) from coordinator.pending p where p.txn_id = a.t),""",
        " (select count(*) from coordinator.pending p where p.txn_id = a.t),",
    ),
    "{row}": (
        """
      join coordinator.txn x on x.id = a.t""",
        "",
    ),
    "{winners}": (
        """
    select array_agg(u.t), array_agg(u.h), array_agg(u.e) into owners, halves, entries
      from unnest(owners, halves, entries) u(t, h, e) where u.t = any(committed);""",
        "",
    ),
    "{won}": (
        "",
        " and u.t = any(committed)",
    ),
    "{in_rows}": (
        """
           + (select coalesce(sum(cardinality(t.half_ids)), 0)::int8 from coordinator.txn t where t.address_id = a.id)
          """,
        "",
    ),
    "{beside}": (
        """
    beside as (
      select t.id, u.h, t.address_id, null::timestamptz, null::timestamptz, 4::int2, null::int8,
             null::int4[], u.e
        from unnest(owners, halves, entries) u(t, h, e)
        join coordinator.txn t on t.id = u.t and u.h = any(t.half_ids)
      union all
      select t.id, f.half_id, t.address_id, null, null, 4::int2, null, null, null
        from coordinator.txn t cross join lateral unnest(t.half_ids) f(half_id)
       where t.id = any(others)),""",
        "",
    ),
    "{all}": (
        " union all select * from beside",
        "",
    ),
    "{left}": (
        """ or exists (
      select f.half_id from coordinator.txn t cross join lateral unnest(t.half_ids) f(half_id)
       where t.id = any(committed) and t.id <> all(others) except select unnest(halves))""",
        "",
    ),
    "{posted}": (
        """coalesce(cardinality(t.half_ids), 0)
                   + (select count(*)::int4 from coordinator.pending p where p.txn_id = t.id) end""",
        "(select count(*)::int4 from coordinator.pending p where p.txn_id = t.id) end",
    ),
    "{in_row}": (
        " or t.id is not null",
        "",
    ),
    "{its_row}": (
        """
    left join coordinator.txn t on t.id = h.txn_id and h.id = any(t.half_ids)""",
        "",
    ),
    "{pending}": (
        "coordinator.pending_half",
        "coordinator.pending",
    ),
}

_PENDING_HALF = """
create view coordinator.pending_half as
  select p.txn_id, p.half_id, p.address_id, p.expires_at, p.available_at, p.priority, p.message_group, p.left_out
    from coordinator.pending p
  union all
  select t.id, f.half_id, t.address_id, null, null, 4::int2, null, null
    from coordinator.txn t cross join lateral unnest(t.half_ids) f(half_id)"""

#: Roles that read the table read the view.
_READERS = """
do $$
declare
  reader text;
begin
  for reader in
      select case a.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end
        from pg_class c cross join aclexplode(c.relacl) a
       where c.oid = 'coordinator.pending'::regclass and a.privilege_type = 'SELECT' and a.grantee <> c.relowner loop
    execute format('grant select on coordinator.pending_half to %s', reader);
  end loop;
end $$"""

_REPLACED = (
    """
create or replace function coordinator.decide_all(
  txns uuid[], decisions text[], reasons text[], instance int4, owners uuid[], halves int8[], entries int8[],
  keeper int4, shared boolean default false)
returns table (txn_id uuid, won boolean) language plpgsql as $$
#variable_conflict use_column
declare
  here uuid[];
  first uuid[];
  committed uuid[];
  others uuid[];
  retires boolean;
  since timestamptz;
  turn boolean;
  due timestamptz;
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
  since := clock_timestamp();
  turn := not shared or pg_try_advisory_xact_lock(7165068069439501417);
  due := clock_timestamp();
  with added as (
    insert into coordinator.op (id, decision, txn_id, reason, posted, half_ids, group_ids, instance_id, decided_at)
    select a.t, a.d, a.t, nullif(a.r, ''),{of_each}
           c.half_ids, c.group_ids, instance, due
      from unnest(txns, decisions, reasons) a(t, d, r){row}
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
          select distinct p.address_id from {pending} p where p.txn_id = any(committed) order by 1) posted
        left join lateral (
          select a.id from coordinator.address a where a.id = posted.address_id for key share) a on true
       where a.id is null) then
      raise exception 'an address that is posted to is gone' using errcode = 'CO003';
    end if;
    others := array(select unnest(committed) except select unnest(owners));{winners}
    with known as (
      delete from coordinator.pending p using unnest(owners, halves, entries) u(t, h, e)
       where p.txn_id = u.t and p.half_id = u.h{won} returning p.*, u.e as entry_id),
    rest as (
      delete from coordinator.pending p where p.txn_id = any(others) returning p.*, null::int8 as entry_id),{beside}
    gone as (select * from known union all select * from rest{all}),
    delivered as (
      insert into coordinator.entry (group_id, id, half_id, expires_at, available_at, priority, message_group)
      select g.id, coalesce(m.entry_id, m.half_id), m.half_id, m.expires_at,
             case when m.entry_id is null then greatest(m.available_at, due) else m.available_at end,
             m.priority, case m.message_group when 1 then coalesce(m.entry_id, m.half_id) else m.message_group end
        from gone m join coordinator.consumer_group g on g.address_id = m.address_id
       where g.id <> all(coalesce(m.left_out, '{}')) for key share of g)
    insert into coordinator.op (id, decision, reason, half_ids, group_ids, instance_id, decided_at)
    select encode(set_byte(overlay(uuid_send(gen_random_uuid()) placing
             substring(int8send((extract(epoch from clock_timestamp()) * 1000)::int8) from 3) from 1 for 6), 6, 112),
             'hex')::uuid,
           'accept', 'no-local', array_fill(m.half_id, array[cardinality(m.left_out)]), m.left_out, instance, due
      from gone m where m.left_out is not null;
    if exists (select from coordinator.pending p where p.txn_id = any(committed)){left} then
      raise exception 'halves were left out of a commit' using errcode = 'data_exception';
    end if;
    if others <> '{}' and turn then
      perform pg_notify('coordinator_due', case when shared
        then ((extract(epoch from since) - 946684800) * 1000000)::int8::text else '' end);
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
end $$""",
    r"""
create or replace function coordinator.exhaust(
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
    from {pending} p where p.txn_id = exhaust.txn;
  if kind is null or cardinality(halves) > cardinality(ids) or not origins <@ addresses then
    return false;
  end if;
  if not coordinator.decide(exhaust.txn, 'rollback', 'check-exhausted', instance) then
    return false;
  end if;
  insert into coordinator.half (id, txn_id, address_id, message)
  select c.id, null, target, coordinator.told(
           h.message,
           substring(s.annotations from 10) || coordinator.amqp_sized(163, 'x-opt-original-id') || '\x81'
             || int8send(c.half_id),
           (coordinator.amqp_number(s.annotations, 5) / 2)::int4 + 1)
    from unnest(ids, halves, origins) c(id, half_id, address_id)
    join unnest(addresses, annotations) s(address_id, annotations) on s.address_id = c.address_id
    join coordinator.half h on h.id = c.half_id;
  insert into coordinator.entry (group_id, id, half_id, available_at, message_group)
  select g.id, c.id, c.id, now(), case kind when 'fifo' then c.id end
    from unnest(ids, halves) c(id, half_id)
    cross join (select id from coordinator.consumer_group where address_id = target for key share) g
   where exists (select from coordinator.half h where h.id = c.half_id);
  perform pg_notify('coordinator_due', '');
  return true;
end $$""",
    """
create or replace view coordinator.outcome as
  select id as txn_id, decision as outcome, reason, posted, coalesce(cardinality(half_ids), 0) as retired,
         decided_at, instance_id
    from coordinator.op where decision in ('commit', 'rollback')
  union all
  select t.id, 'undecided', null,
         case when t.producer_group is null then t.posted
              else {posted},
         case when t.producer_group is null then t.retired
              else (select count(*)::int4 from coordinator.pending_retirement r where r.txn_id = t.id) end,
         null, t.instance_id
    from coordinator.txn t where not exists (select from coordinator.op o where o.id = t.id)""",
    """
create or replace view coordinator.addresses as
  select a.name as address, a.routing, a.kind, a.origin, c.groups,
         (select count(*) from coordinator.pending p where p.address_id = a.id){in_rows} as pending,
         c.ready, c.inflight, c.scheduled, c.failed, a.created_at, a.id as address_id
    from coordinator.address a
    cross join lateral (
      select count(*) as groups, coalesce(sum(g.ready), 0)::int8 as ready,
             coalesce(sum(g.inflight), 0)::int8 as inflight, coalesce(sum(g.scheduled), 0)::int8 as scheduled,
             coalesce(sum(g.failed), 0)::int8 as failed
        from coordinator.groups g where g.address_id = a.id) c""",
    """
create or replace view coordinator.undecided as
  select t.id as txn_id, now() - t.declared_at as age, t.owner, t.producer_group,
         case when t.producer_group is null then t.posted
              else {posted} as posted,
         case when t.producer_group is null then t.retired
              else (select count(*)::int4 from coordinator.pending_retirement r where r.txn_id = t.id) end as retired,
         array(select distinct a.name from {pending} p join coordinator.address a on a.id = p.address_id
                where p.txn_id = t.id order by a.name) as addresses,
         t.declared_at, t.timeout_at, t.checks, t.next_check_at, t.instance_id
    from coordinator.txn t where not exists (select from coordinator.op o where o.id = t.id)""",
    """
create or replace view coordinator.messages as
  with ended as (
    select distinct on (u.half_id, u.group_id) u.half_id, u.group_id,
           case when o.decision in ('commit', 'accept') then 'acked' when o.decision = 'expire' then 'expired'
                when o.decision = 'dead-letter' then 'dead-lettered' else 'purged' end as state
      from coordinator.op o cross join lateral unnest(o.half_ids, o.group_ids) u(half_id, group_id)
     where o.decision in ('commit', 'accept', 'expire', 'dead-letter', 'purge')
     order by u.half_id, u.group_id, o.decided_at desc)
  select h.id as half_id, coalesce(a.name, r.name) as address, g.name as consumer_group,
         case when p.half_id is not null{in_row} then 'pending'
              when d.decision = 'rollback' then 'rolled-back'
              when h.txn_id is not null and d.id is null then 'unknown'
              else coalesce(e.state, n.state, 'no-entry') end as state,
         h.txn_id, h.posted_at, d.decided_at, octet_length(h.message) as octets
    from coordinator.half h
    left join coordinator.address a on a.id = h.address_id
    left join coordinator.removed_address r on r.id = h.address_id
    left join coordinator.pending p on p.txn_id = h.txn_id and p.half_id = h.id{its_row}
    left join coordinator.op d on d.id = h.txn_id
    left join coordinator.consumer_group g
      on g.address_id = h.address_id and (h.txn_id is null or d.decision = 'commit')
    left join coordinator.entries e on e.group_id = g.id and e.half_id = h.id
    left join ended n on n.group_id = g.id and n.half_id = h.id""",
)


def _replace(which: int) -> None:
    """``which``: of the two texts of each difference."""
    for statement in _REPLACED:
        sql = statement
        for name, texts in _DIFFERENT.items():
            sql = sql.replace(name, texts[which])
        op.execute(sql)


def upgrade() -> None:
    op.add_column("txn", sa.Column("half_ids", ARRAY(sa.BigInteger)), schema=SCHEMA)
    op.add_column("txn", sa.Column("address_id", sa.Integer), schema=SCHEMA)
    op.create_index(
        "txn_address_id_idx", "txn", ["address_id"], schema=SCHEMA, postgresql_where=sa.text("address_id is not null")
    )
    op.execute(_PENDING_HALF)
    op.execute(_READERS)
    _replace(0)


def downgrade() -> None:
    # or what is decided or posted while this waits for it is copied as it was before, or not at all
    op.execute("lock table coordinator.txn, coordinator.pending in access exclusive mode")
    op.execute(
        """
insert into coordinator.pending (txn_id, half_id, address_id)
select t.id, f.half_id, t.address_id from coordinator.txn t cross join lateral unnest(t.half_ids) f(half_id)"""
    )
    _replace(1)
    op.execute("drop view coordinator.pending_half")
    op.drop_index("txn_address_id_idx", "txn", schema=SCHEMA)
    op.drop_column("txn", "half_ids", schema=SCHEMA)
    op.drop_column("txn", "address_id", schema=SCHEMA)
