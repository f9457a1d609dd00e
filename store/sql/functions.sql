-- Functions and triggers that SQLAlchemy's metadata cannot express: append-only tables, partitions of a day, names that
-- outlive their objects, decisions. store/tables.py has the tables, and runs this file after it has created them.
-- tests/unit/test_sql_files.py compares the constants in this file with those of the Python code.

-- Bodies are not compressed: they are written once and read once, on the hot path.
alter table coordinator.half alter column message set storage external;

create function coordinator.append_only() returns trigger language plpgsql as $$
begin
  raise exception '% is append-only: % refused', tg_table_name, lower(tg_op) using errcode = 'restrict_violation';
end $$;

create trigger half_append_only before update or delete on coordinator.half
  for each row execute function coordinator.append_only();

create trigger op_append_only before update or delete on coordinator.op
  for each row execute function coordinator.append_only();

-- PostgreSQL gives a partition no such trigger of its table: make_partition does. coordinator.dropping, a setting of
-- the session, is on while retention truncates days that are dropped.
create trigger not_truncated before truncate on coordinator.half for each statement
  when (current_setting('coordinator.dropping', true) is distinct from 'on')
  execute function coordinator.append_only();

create trigger not_truncated before truncate on coordinator.op for each statement
  when (current_setting('coordinator.dropping', true) is distinct from 'on')
  execute function coordinator.append_only();

-- S10: a row that is old enough may be deleted, by retention.
create function coordinator.audit_append_only() returns trigger language plpgsql as $$
begin
  if tg_op = 'DELETE' then
    if old.at < now() - interval '30 days' then
      return old;
    end if;
  end if;
  raise exception '% is append-only: % refused', tg_table_name, lower(tg_op) using errcode = 'restrict_violation';
end $$;

create trigger audit_append_only before update or delete on coordinator.audit
  for each row execute function coordinator.audit_append_only();

create trigger audit_not_truncated before truncate on coordinator.audit
  for each statement execute function coordinator.audit_append_only();

-- Creates the partition of a day for the table ``parent`` and returns its name. It is attached afterwards: "create table
-- ... partition of" would lock out all writers of the parent. Roles have the same privileges as on the parent.
create function coordinator.make_partition(parent text, day date) returns text language plpgsql as $$
declare
  first constant bigint := extract(epoch from day::timestamp) * 1000;
  last constant bigint := extract(epoch from (day + 1)::timestamp) * 1000;
  bounds constant text[] := case parent
    when 'half' then array[(first - 1704067200000 << 22)::text, (last - 1704067200000 << 22)::text]
    else array[rpad(lpad(to_hex(first), 12, '0'), 32, '0'), rpad(lpad(to_hex(last), 12, '0'), 32, '0')] end;
  leaf constant text := parent || '_' || to_char(day, 'YYYYMMDD');
  privilege text;
  role text;
begin
  execute format('create table coordinator.%I (like coordinator.%I including all)', leaf, parent);
  execute format('alter table coordinator.%I attach partition coordinator.%I for values from (%L) to (%L)',
                 parent, leaf, bounds[1], bounds[2]);
  for privilege, role in
    select a.privilege_type, case a.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end
      from pg_class c cross join aclexplode(c.relacl) a
     where c.oid = to_regclass('coordinator.' || parent) and a.grantee <> c.relowner loop
    execute format('grant %s on coordinator.%I to %s', privilege, leaf, role);
  end loop;
  execute format('create trigger not_truncated before truncate on coordinator.%I for each statement'
    ' when (current_setting(''coordinator.dropping'', true) is distinct from ''on'')'
    ' execute function coordinator.append_only()', leaf);
  return leaf;
end $$;

revoke execute on function coordinator.make_partition(text, date) from public;

-- Creates the missing partitions of a day, unless retention has dropped it, and returns the names of the new ones. Runs
-- as the owner of the store, for a service that owns nothing (S9).
-- lock order: 1
create function coordinator.make_day(day date) returns text[] language plpgsql
security definer set lock_timeout = '2s' set search_path = pg_catalog, pg_temp as $$
declare
  parent text;
  made text[] := '{}';
begin
  perform from coordinator.lock l where l.name = 'days' for update;
  foreach parent in array array['half', 'op'] loop
    continue when to_regclass('coordinator.' || parent || '_' || to_char(day, 'YYYYMMDD')) is not null
      or exists (select from coordinator.retention r where r.table_name = parent and day < r.kept_from);
    made := made || coordinator.make_partition(parent, day);
  end loop;
  return made;
end $$;

revoke execute on function coordinator.make_day(date) from public;

-- Ends a statement that reads the partitions of some days and needs a half of another: it is run again with that day.
create function coordinator.elsewhere(half_id bigint) returns bytea language plpgsql as $$
begin
  raise exception 'a half of another day' using errcode = 'CO003',
    constraint = to_char(to_timestamp(((half_id >> 22) + 1704067200000) / 1000) at time zone 'UTC', 'YYYYMMDD');
end $$;

-- Refuses a whole batch statement, by raising an error; it is called only if there is a reason.
create function coordinator.refuse(code text, why text) returns int4 language plpgsql as $$
begin
  raise exception '%', why using errcode = code;
end $$;

-- Returns whether this transaction may give due entries new ids from ``lowest`` on. 1: no other does so now, and the
-- last one gave lower ids. Ids of more than a second before are allowed: the clock was set back. 2: another does so
-- now, and has given none for ``stalled``, in ids; null waits for it. 0: it may not.
-- lock order: 1, skipping it
create function coordinator.may_promote(lowest int8, stalled int8) returns int8 language plpgsql as $$
declare
  last int8;
begin
  if not exists (select from coordinator.lock l where l.name = 'places' for update skip locked) then
    return case when lowest - (select p.last_value from coordinator.promoted p) > stalled then 2 else 0 end;
  end if;
  select p.last_value into last from coordinator.promoted p;
  return case when lowest > last or last - lowest > 4194304000 then 1 else 0 end;
end $$;

-- Clients can use up ids of addresses and groups, by dynamic nodes and by subscriptions that end with their link. So
-- ids are reused, unless an object still has one, or its name is remembered, as it is while a message may refer to it.
create function coordinator.free_id() returns trigger language plpgsql set enable_seqscan = off as $$
begin
  while case tg_table_name
    when 'address' then exists (select from coordinator.address a where a.id = new.id)
      or exists (select from coordinator.removed_address r where r.id = new.id)
    else exists (select from coordinator.consumer_group g where g.id = new.id)
      or exists (select from coordinator.removed_group r where r.id = new.id) end
  loop
    new.id := nextval(pg_get_serial_sequence(tg_relid::regclass::text, 'id'));
  end loop;
  return new;
end $$;

create trigger address_free_id before insert on coordinator.address
  for each row execute function coordinator.free_id();

create trigger consumer_group_free_id before insert on coordinator.consumer_group
  for each row execute function coordinator.free_id();

-- Keeps the names of removed addresses and groups.
create function coordinator.remember_removed() returns trigger language plpgsql as $$
begin
  if tg_table_name = 'address' then
    insert into coordinator.removed_address (id, name, origin) values (old.id, old.name, old.origin);
  else
    insert into coordinator.removed_group (id, address_id, name, lasting)
    values (old.id, old.address_id, old.name, old.instance_id is null and old.name <> '');
  end if;
  return null;
end $$;

create trigger address_removed after delete on coordinator.address
  for each row execute function coordinator.remember_removed();

create trigger consumer_group_removed after delete on coordinator.consumer_group
  for each row execute function coordinator.remember_removed();

-- What a decision does to the deliveries that the transactions have retired (H20). ``committed``: of ``txns``, those
-- that commit; the others roll back. ``keeper``: the instance that decides and has all of them in memory: what comes
-- back is leased to it; null: another decides, and the instance that has them in memory is told. What was purged
-- meanwhile is left out. decide_all has locked the rows and their entries, in the order of their keys.
-- The op of a commit covers what was accepted, unless it is older than a day: it is looked for
-- by the day of its declare, and its halves are kept from now on.
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
     where r.decision = 'accept' and e.group_id = any(array[r.group_id]) and e.id = r.entry_id and e.lease = -1
    returning r.txn_id, r.half_id, r.group_id, r.entry_id),
  back as (
    update coordinator.entry e
       set lease = case when r.decision = 'release' then coalesce(keeper, 0) else 0 end, attempts = r.attempts,
           failures = r.failures, acquired = true, failed = r.failed, annotations = r.annotations,
           available_at = case when r.wait_ms > 0 then clock_timestamp() + r.wait_ms * interval '1 ms' end
      from gone r
     where r.decision <> 'accept' and e.group_id = any(array[r.group_id]) and e.id = r.entry_id and e.lease = -1
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
      from accepted a join coordinator.txn t on t.id = any(array[a.txn_id])
     where t.declared_at <= now() - interval '1 day' group by a.txn_id)
  select string_agg(f.group_id || '>' || to_hex(f.lowest), ',') into notice from (
    select g.group_id, min(g.entry_id) as lowest from gone g
     where g.decision <> 'accept' or g.message_group is not null group by g.group_id) f;
  if keeper is not null then
    with gone as (
      delete from coordinator.pending_retirement r where r.txn_id = any(txns) returning r.*)
    update coordinator.entry e set lease = keeper from gone r
     where e.group_id = any(array[r.group_id]) and e.id = r.entry_id and e.lease = -1;
    return;
  end if;
  update coordinator.pending_retirement r set rolled_back = true where r.txn_id = any(txns);
  perform coordinator.give_back(txns, instance);
  if notice is not null then
    perform pg_notify('coordinator_ready', case when octet_length(notice) < 8000 then notice else '' end);
  end if;
  perform pg_notify('coordinator_decided', replace(t::text, '-', '')) from unnest(held_here) t;
  perform pg_notify('coordinator_decided', '');
end $$;

-- Returns the deliveries that these rolled-back transactions have retired, if no instance has them in memory: each has
-- failed once more (D5).
create function coordinator.give_back(txns uuid[], instance int4) returns void language plpgsql as $$
declare
  notice text;
begin
  with gone as (
    delete from coordinator.pending_retirement r
     where r.txn_id = any(txns) and r.rolled_back and r.holder is null returning r.*),
  back as (
    update coordinator.entry e
       set lease = 0, attempts = least(e.attempts::int4 + 1, 32767),
           failures = least(e.failures::int4 + 1, 32767), acquired = true, failed = r.undo_failed
      from gone r where e.group_id = any(array[r.group_id]) and e.id = r.entry_id and e.lease = -1
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
end $$;

-- Instances have nothing in memory any more of what these transactions (null: any) have retired. Where that was
-- rolled back meanwhile, it comes back now. A plan for any ``txns`` would read all retirements, as null means all.
-- lock order: 4, 5
create function coordinator.let_go(instances int4[], txns uuid[]) returns void language plpgsql
set enable_seqscan = off set plan_cache_mode = force_custom_plan as $$
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
end $$;

-- Decides checkable transactions (H5), for clients, checks, operators and instances. ``halves`` with their
-- transactions (``owners``) and new ids of their entries (``entries``): of each transaction all, or none.
-- In the order of the steps: a post under way is waited for, and none comes after; the first decision wins; an
-- address that is gone refuses the commit; the halves become entries of each group. Where an instance has not given
-- the ids, the ids of the halves stand for them, and the schedule gives new ones at once: an id below those that a
-- holder of the group has read would count as read by it. Then what was retired in them gets its outcome, or comes
-- back (``keeper``: see retire). All times are those of the decision: an application's SQL transaction may have been
-- open for hours. ``shared``: of those that commit at one time one gives the notice, and tells since when
-- (application.sql). An application's session may keep a plan from when the tables were empty.
-- lock order: 3, 4, 5, 6, 7, 8; 1 (notice), skipping it
create function coordinator.decide_all(
  txns uuid[], decisions text[], reasons text[], instance int4, owners uuid[], halves int8[], entries int8[],
  keeper int4, shared boolean default false)
returns table (txn_id uuid, won boolean) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
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
    perform from (
        select r.group_id, r.entry_id from coordinator.pending_retirement r where r.txn_id = any(here) order by 1, 2) r
      cross join lateral (
        select from coordinator.entry e where e.group_id = r.group_id and e.id = r.entry_id for update) e;
  end if;
  since := clock_timestamp();
  turn := not shared or exists (select from coordinator.lock l where l.name = 'notice' for update skip locked);
  due := clock_timestamp();
  with added as (
    insert into coordinator.op (id, decision, txn_id, reason, posted, half_ids, group_ids, instance_id, decided_at)
    select a.t, a.d, a.t, nullif(a.r, ''),
           coalesce(cardinality(x.half_ids), 0) + (select count(*) from coordinator.pending p where p.txn_id = a.t),
           c.half_ids, c.group_ids, instance, due
      from unnest(txns, decisions, reasons) a(t, d, r)
      join coordinator.txn x on x.id = any(array[a.t])
      left join lateral (
        select array_agg(r.half_id order by r.group_id, r.entry_id) as half_ids,
               array_agg(r.group_id order by r.group_id, r.entry_id) as group_ids
          from coordinator.pending_retirement r
          join coordinator.entry e on e.group_id = any(array[r.group_id]) and e.id = r.entry_id and e.lease = -1
          join coordinator.txn t on t.id = any(array[r.txn_id]) and t.declared_at > now() - interval '1 day'
         where retires and a.d = 'commit' and r.txn_id = a.t and r.decision = 'accept') c on true
     where a.t = any(here) order by a.t
    on conflict do nothing returning id, decision)
  select coalesce(array_agg(id), '{}'), coalesce(array_agg(id) filter (where decision = 'commit'), '{}')
    into first, committed from added;
  if committed <> '{}' then
    if exists (
      select from (
          select distinct u.address_id from unnest(array(
            select p.address_id from coordinator.pending_half p where p.txn_id = any(committed))) u(address_id)
           order by 1) posted
        left join lateral (
          select a.id from coordinator.address a where a.id = posted.address_id for key share) a on true
       where a.id is null) then
      raise exception 'an address that is posted to is gone' using errcode = 'CO003';
    end if;
    others := array(select unnest(committed) except select unnest(owners));
    select array_agg(u.t), array_agg(u.h), array_agg(u.e) into owners, halves, entries
      from unnest(owners, halves, entries) u(t, h, e) where u.t = any(committed);
    with known as (
      delete from coordinator.pending p using unnest(owners, halves, entries) u(t, h, e)
       where p.txn_id = any(array[u.t]) and p.half_id = u.h returning p.*, u.e as entry_id),
    rest as (
      delete from coordinator.pending p where p.txn_id = any(others) returning p.*, null::int8 as entry_id),
    beside as (
      select t.id, u.h, t.address_id, null::timestamptz, null::timestamptz, 4::int2, null::int8,
             null::int4[], u.e
        from unnest(owners, halves, entries) u(t, h, e)
        join coordinator.txn t on t.id = any(array[u.t]) and u.h = any(t.half_ids)
      union all
      select t.id, f.half_id, t.address_id, null, null, 4::int2, null, null, null
        from coordinator.txn t cross join lateral unnest(t.half_ids) f(half_id)
       where t.id = any(others)),
    gone as (select * from known union all select * from rest union all select * from beside),
    delivered as (
      insert into coordinator.entry (group_id, id, half_id, expires_at, available_at, priority, message_group)
      select g.id, coalesce(m.entry_id, m.half_id), m.half_id, m.expires_at,
             case when m.entry_id is null then greatest(m.available_at, due) else m.available_at end,
             m.priority, case m.message_group when 1 then coalesce(m.entry_id, m.half_id) else m.message_group end
        from gone m join coordinator.consumer_group g on g.address_id = any(array[m.address_id])
       where g.id <> all(coalesce(m.left_out, '{}')) for key share of g)
    insert into coordinator.op (id, decision, reason, half_ids, group_ids, instance_id, decided_at)
    select encode(set_byte(overlay(uuid_send(gen_random_uuid()) placing
             substring(int8send((extract(epoch from clock_timestamp()) * 1000)::int8) from 3) from 1 for 6), 6, 112),
             'hex')::uuid,
           'accept', 'no-local', array_fill(m.half_id, array[cardinality(m.left_out)]), m.left_out, instance, due
      from gone m where m.left_out is not null;
    if exists (select from coordinator.pending p where p.txn_id = any(committed)) or exists (
      select f.half_id from coordinator.txn t cross join lateral unnest(t.half_ids) f(half_id)
       where t.id = any(committed) and t.id <> all(others) except select unnest(halves)) then
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
end $$;

-- Decides one checkable transaction, by a process that does not know its halves. False: it is decided, or there is no
-- such transaction.
create function coordinator.decide(txn uuid, decision text, reason text, instance int4 default null) returns boolean
language sql set enable_seqscan = off as $$
  select won from coordinator.decide_all(array[txn], array[decision], array[reason], instance, '{}', '{}', '{}',
                                        null)
$$;

-- Rolls back a transaction that is not checkable, unless it is decided (T11): a question does. Its row in txn is
-- locked, or made and deleted again, and a batch that makes it checkable writes the same row: one waits for the
-- other, and sees what it has done.
-- lock order: 3, 6
create function coordinator.ask(txn uuid, instance int4) returns void language plpgsql as $$
declare
  seen int4;
begin
  insert into coordinator.txn as t (id, instance_id, owner, declared_at, timeout_at, posted, retired)
  values (ask.txn, ask.instance, '', now(), now(), 0, 0)
  on conflict (id) do update set posted = t.posted where t.producer_group is null returning t.posted into seen;
  if not found then
    return;
  end if;
  insert into coordinator.op (id, decision, txn_id, reason, posted, instance_id)
  values (ask.txn, 'rollback', ask.txn, 'asked', seen, ask.instance) on conflict do nothing;
  delete from coordinator.txn t where t.id = ask.txn;
end $$;

-- Rolls back a transaction that was checked often enough, and copies its halves to the address ``target`` (H10). The
-- copies get these ids, the annotations of the address that the half was posted to, a map of the type 0xd1, and the
-- half's id. False: it is decided, checked again, or there is no such address any more. In the order of the steps:
-- no post comes after.
-- lock order: 3, skipping it; then as decide_all; 7, 8
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
    from coordinator.pending_half p where p.txn_id = exhaust.txn;
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
end $$;

-- Returns whether one of the transactions is decided, for a batch that has just inserted them. The lowest and the
-- highest of their ids, as parameters, exclude the partitions of other days from the plan, however many there are.
create function coordinator.any_decided(txns uuid[], entered bigint) returns boolean language plpgsql as $$
declare
  lowest uuid := txns[1];
  highest uuid := txns[1];
  txn uuid;
begin
  foreach txn in array txns loop
    if txn < lowest then
      lowest := txn;
    elsif txn > highest then
      highest := txn;
    end if;
  end loop;
  return exists (
    select from coordinator.op o where o.id = any(txns) and o.id between lowest and highest);
end $$;
