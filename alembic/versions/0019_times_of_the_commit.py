"""Times of an application's SQL transaction are those of its commit, however long it was open (X2, X3).

What it has discharged is due from the commit on, and of those that commit at one time one gives the notice, as for
posts. What the functions do is said in ``store/tables.py`` and ``store/application``; a test compares the catalogs.
"""

from __future__ import annotations

from types import ModuleType

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_RETIRE = r"""
create or replace function coordinator.retire(txns uuid[], committed uuid[], instance int4, keeper int4)
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
           available_at = case when r.wait_ms > 0 then clock_timestamp() + r.wait_ms * interval '1 ms' end
      from gone r
     where r.decision <> 'accept' and e.group_id = r.group_id and e.id = r.entry_id and e.lease = -1
    returning r.txn_id, r.decision, r.reason, r.half_id, r.group_id),
  told as (
    insert into coordinator.op (id, decision, txn_id, reason, half_ids, group_ids, instance_id, decided_at)
    select encode(set_byte(overlay(uuid_send(gen_random_uuid()) placing
             substring(int8send((extract(epoch from clock_timestamp()) * 1000)::int8) from 3) from 1 for 6), 6, 112),
             'hex')::uuid, b.decision, b.txn_id, b.reason, array[b.half_id], array[b.group_id],
           instance, clock_timestamp()
      from back b where b.decision <> 'release'
    union all
    select encode(set_byte(overlay(uuid_send(gen_random_uuid()) placing
             substring(int8send((extract(epoch from clock_timestamp()) * 1000)::int8) from 3) from 1 for 6), 6, 112),
             'hex')::uuid, 'accept', a.txn_id, null, array_agg(a.half_id order by a.group_id, a.entry_id),
           array_agg(a.group_id order by a.group_id, a.entry_id), instance, clock_timestamp()
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

_DECIDE_ALL = r"""
create function coordinator.decide_all(
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
    select a.t, a.d, a.t, nullif(a.r, ''), (select count(*) from coordinator.pending p where p.txn_id = a.t),
           c.half_ids, c.group_ids, instance, due
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
    if exists (select from coordinator.pending p where p.txn_id = any(committed)) then
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
end $$"""

_SEND = r"""
create or replace function coordinator.send_outbox() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on set enable_seqscan = off as $$
declare
  posted record;
  half_id int8 := 0;
  due timestamptz;
  first_due constant timestamptz := clock_timestamp();
  turn boolean;
  calls text;
begin
  get diagnostics calls = pg_context;
  if new.put_off = 0 or new.put_off < 100 and exists (
    select from unnest(array[current_query(), calls]) t(text)
     where case when octet_length(t.text) < 10000 then t.text ~* '\mset\s+constraints\M' end) then
    set constraints coordinator.outbox_sent deferred;
    update coordinator.outbox o set put_off = o.put_off + 1 where o.xid = new.xid and o.number = new.number;
    return null;
  end if;
  turn := pg_try_advisory_xact_lock(7165068069439501417) or case when octet_length(current_query()) < 10000
      then current_query() ~* '\mprepare\M' else true end;
  due := clock_timestamp();
  if exists (
    select from (select distinct o.address_id from coordinator.outbox o where o.xid = new.xid order by 1) used
      left join lateral (
        select a.id from coordinator.address a where a.id = used.address_id for key share) a on true
     where a.id is null) then
    raise exception 'coordinator.post: an address was removed after a message was posted to it'
      using errcode = 'CO003';
  end if;
  if to_regclass('coordinator.half_' || to_char(clock_timestamp() at time zone 'UTC', 'YYYYMMDD')) is null then
    raise exception 'coordinator.post: the store has no partition for today' using errcode = 'CO010',
      hint = 'The service makes partitions for two weeks ahead: start it.';
  end if;
  for posted in select o.number from coordinator.outbox o where o.xid = new.xid order by o.number loop
    due := greatest(clock_timestamp(), due + interval '1 microsecond');
    half_id := coordinator.outbox_id(posted.number, half_id);
    loop
      insert into coordinator.half (id, address_id, message, posted_at)
      select half_id, o.address_id, o.message, due
        from coordinator.outbox o where o.xid = new.xid and o.number = posted.number
      on conflict do nothing;
      exit when found;
      half_id := coordinator.outbox_id(nextval(pg_get_serial_sequence('coordinator.outbox', 'number')), half_id);
    end loop;
    insert into coordinator.entry (group_id, id, half_id, expires_at, available_at, priority, message_group)
    select g.id, half_id, half_id, o.expires_at, greatest(o.available_at, due), o.priority,
           case o.message_group when 1 then half_id else o.message_group end
      from coordinator.outbox o join coordinator.consumer_group g on g.address_id = o.address_id
     where o.xid = new.xid and o.number = posted.number for key share of g;
  end loop;
  delete from coordinator.outbox o where o.xid = new.xid;
  if turn then
    perform pg_notify('coordinator_due', ((extract(epoch from first_due) - 946684800) * 1000000)::int8::text);
  end if;
  return null;
end $$"""

_ENLISTED = r"""
create or replace function coordinator.decide_enlisted() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on set enable_seqscan = off as $$
declare
  txns uuid[];
  decisions text[];
  lost record;
  calls text;
begin
  get diagnostics calls = pg_context;
  if new.put_off = 0 or new.put_off < 100 and exists (
    select from unnest(array[current_query(), calls]) t(text)
     where case when octet_length(t.text) < 10000 then t.text ~* '\mset\s+constraints\M' end) then
    set constraints coordinator.enlistment_decided deferred;
    update coordinator.enlistment e set put_off = e.put_off + 1 where e.xid = new.xid and e.txn_id = new.txn_id;
    return null;
  end if;
  if exists (select from pg_cursors c where c.is_holdable and c.creation_time >= transaction_timestamp()) then
    raise exception 'coordinator.discharge: a cursor with hold is open' using errcode = 'invalid_cursor_state',
      hint = 'Close it: the commit would read it to its end, and hold the AMQP transaction meanwhile.';
  end if;
  select array_agg(e.txn_id), array_agg(e.decision) into txns, decisions
    from coordinator.enlistment e where e.xid = new.xid;
  select d.txn_id, u.decision as wanted into lost
    from coordinator.decide_all(txns, decisions, array_fill('application'::text, array[cardinality(txns)]), null,
                             '{}', '{}', '{}', null, shared => true) d
    join unnest(txns, decisions) u(txn_id, decision) on u.txn_id = d.txn_id
   where not d.won and not exists (select from coordinator.op o where o.id = d.txn_id and o.decision = u.decision);
  if found then
    raise exception 'coordinator.discharge: the transaction % was decided meanwhile, and not by %', lost.txn_id,
      lost.wanted using errcode = 'CO009';
  end if;
  delete from coordinator.enlistment e where e.xid = new.xid;
  perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') in ('off', 'local');
  if (case when octet_length(current_query()) < 10000
      then current_query() ~* '\mprepare\M' else true end) then
    perform pg_notify('coordinator_due', '');
  end if;
  return null;
end $$"""

_DROP = "drop function coordinator.decide_all(uuid[], text[], text[], int4, uuid[], int8[], int8[], int4{0})"


def _earlier(revision: str) -> ModuleType:
    script = op.get_context().script
    assert script is not None
    found = script.get_revision(revision)
    assert found is not None
    module: ModuleType = found.module
    return module


def upgrade() -> None:
    op.execute(_DROP.format(""))
    for statement in (_RETIRE, _DECIDE_ALL, _SEND, _ENLISTED):
        op.execute(statement)


def downgrade() -> None:
    op.execute(_DROP.format(", bool"))
    retirements = _earlier("0007")
    (enlisted,) = [
        each for each in _earlier("0013")._ENLISTMENT if "function coordinator.decide_enlisted() ret" in each
    ]
    op.execute(retirements._DECIDE_ALL)
    for statement in (retirements._RETIRE, enlisted):
        op.execute(statement.replace("create function", "create or replace function", 1))
    op.execute(_earlier("0016")._SEND)
