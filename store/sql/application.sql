-- The functions that applications call in their SQL transactions. store/roles.py lists them.

-- ---- coordinator.first_time: the inbox (X4)

-- Returns whether no committed transaction, nor this one, has called it with the same arguments before (X4): for the
-- transaction in which an application processes a message. Waits for another that has just called it, until that ends.
-- lock order: 9, trying it
create function coordinator.first_time(consumer text, message_id text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  asking constant text := coalesce(nullif(current_setting('role'), 'none'), session_user);
  belongs text;
begin
  if coalesce(octet_length($1), 0) not between 1 and 1000 then
    raise exception 'coordinator.first_time: expected a consumer of 1 to 1000 octets, not %',
      coalesce(octet_length($1) || ' octets', 'null') using errcode = 'invalid_parameter_value';
  end if;
  if coalesce(octet_length($2), 0) not between 1 and 1000 then
    raise exception 'coordinator.first_time: expected a message-id of 1 to 1000 octets, not %',
      coalesce(octet_length($2) || ' octets', 'null') using errcode = 'invalid_parameter_value';
  end if;
  select o.owner into belongs from coordinator.inbox_owner o where o.consumer = $1;
  -- of transactions that use a new name at one time one makes it its role's; the others do not wait for its end
  if not found and pg_try_advisory_xact_lock(hashtextextended('coordinator.inbox_owner ' || $1, 0)) then
    insert into coordinator.inbox_owner (consumer, owner) values ($1, asking) on conflict do nothing;
    select o.owner into belongs from coordinator.inbox_owner o where o.consumer = $1;
  end if;
  if belongs <> asking and not exists (
    select from pg_roles r where r.rolname = belongs and pg_has_role(asking, r.oid, 'member')) then
    raise exception 'coordinator.first_time: the consumer "%" belongs to the role "%", and "%" is no member of it',
      left($1, 100), belongs, asking using errcode = 'CO011',
      hint = 'Ask with another name, or have this one granted: coordinator role grant --application ROLE --inbox NAME';
  end if;
  insert into coordinator.inbox (consumer, message_id) values ($1, $2) on conflict do nothing;
  return found;
end $$;

revoke execute on function coordinator.first_time(text, text) from public;


-- ---- coordinator.post
-- ``coordinator.post``, in the SQL transaction of an application (X2).
--
-- **Decision.** A post writes one row of ``outbox``, which no other transaction ever sees, and takes no lock on any row
-- of the store. At the commit of the application a deferred trigger makes halves and entries of its rows, once for all.
-- So an application that leaves its transaction open for hours holds up no removal of an address, no end of a
-- subscription and no retention; the groups that get the message are those there are at the commit; and halves and
-- entries have ids and times of the commit, so that none comes late to what services have read already.
--
-- An entry becomes due at once, and the schedule (D7) gives it its place, as it does for entries that a process without
-- an instance makes by a decision. The notice tells from when on there is something due: a commit may take long, too.
--
-- Whether rows of the transaction wait for its commit is in a setting of its own, which a rollback to a savepoint takes
-- back with them: a look into the outbox, in a transaction that is serializable, is one at what others write beside it,
-- and one in twenty of them failed. Where an application resets it, its next post is taken for the first, too, and its
-- trigger finds nothing to do.
--
-- PostgreSQL commits one transaction with a notice at a time, so that each would have a flush of the disk to itself.
-- One of those that are about to commit has the turn, and gives the notice; the others are found by the looks after it.
-- What may be a ``prepare transaction`` gives one in any case: that is what PostgreSQL refuses it for.
--
-- An application may have its constraints looked at before the commit (``set constraints all immediate``). What has to
-- wait for the commit is put off then: that statement, or a function that it was called in, says of itself that it is
-- no commit. In a long statement, whose text would be another copy of its messages, it is not seen: what such a one
-- sets off is put off once, and the second of them is taken for the commit.
--
-- Errors: CO003 an address was removed after the post; CO006 no address of that name; CO007 the address does not take
-- such a message; CO010 the store has no partition for today, as no service has run for two weeks; CO011 the consumer's
-- name in the inbox is another role's; CO008 nothing of the transaction is in the store, or it is not checkable; CO009
-- it is decided, otherwise than asked.
--
-- No schema of the session comes first: what runs with the rights of the store names what it uses. A trigger function
-- is for no other table: at one of another role it would compare, and so cast, values of types of that role.

alter table coordinator.outbox alter column message set storage external;

-- ``code``: the constructor of a body's value, behind ``front``; null: each body is a whole message. Of the others null
-- says that the messages say nothing of it. A message group of its own is 1, as in the table pending.
create function coordinator.put_into_outbox(
  name text, front bytea, code int4, bodies bytea[],
  available timestamptz, expires timestamptz, priority int4, group_id text)
returns void language plpgsql set enable_seqscan = off as $$
declare
  posted_to record;
  first constant boolean := cardinality(bodies) > 0
    and current_setting('coordinator.posting', true) is distinct from pg_current_xact_id()::text;
  latest constant timestamptz := '9999-12-30 00:00Z';
  most int4;
begin
  if octet_length(front) + pg_column_size(bodies) > 104857000 then
    select max(octet_length(front) + octet_length(case when code is null then b.octets
                                                       else coordinator.amqp_sized(code, b.octets) end))
      into most from unnest(bodies) b(octets);
    if most > 104857600 then
      raise exception 'coordinator.post: the message has % octets, at most 104857600 were expected', most
        using errcode = 'program_limit_exceeded';
    end if;
  end if;
  if not isfinite(available) or not isfinite(expires) then
    raise exception 'coordinator.post: a time is infinite' using errcode = 'invalid_parameter_value';
  end if;
  select a.id, a.kind into posted_to from coordinator.address a where a.name = put_into_outbox.name;
  if not found then
    raise exception 'coordinator.post: there is no address "%"', left(name, 100) using errcode = 'CO006',
      hint = 'Make it with: coordinator address add';
  elsif left(name, 5) = '%DLQ%' or name = 'TRANS_CHECK_MAX_TIME_TOPIC' then
    raise exception 'coordinator.post: the address "%" is the service''s own, and takes no posts', left(name, 100)
      using errcode = 'CO007';
  elsif posted_to.kind = 'transaction' and available is not null then
    raise exception 'coordinator.post: the address "%" is of kind transaction: its messages cannot be delivered later',
      name using errcode = 'CO007';
  elsif posted_to.kind = 'delay' and available is null then
    raise exception 'coordinator.post: the address "%" is of kind delay, and the message came without a delay', name
      using errcode = 'CO007';
  end if;
  if first then
    set constraints coordinator.outbox_sent deferred;
    perform set_config('coordinator.posting', pg_current_xact_id()::text, true);
  end if;
  insert into coordinator.outbox (put_off, address_id, message, available_at, expires_at, priority, message_group)
  select case when first and b.place = 1 then 0 end, posted_to.id,
         case when code is null then b.octets else front || coordinator.amqp_sized(code, b.octets) end,
         case when available > latest then latest else available end,
         case when expires < latest then greatest(expires, '2000-01-01 00:00Z') end,
         case when posted_to.kind = 'fifo' then 4 else least(coalesce(priority, 4), 255) end,
         case when posted_to.kind <> 'fifo' then null
              when group_id is null then 1 else coordinator.group_key(group_id) end
    from unnest(bodies) with ordinality b(octets, place) order by b.place;
end $$;

-- A whole message, as a client sends it. What it says of its own delivery is told beside it.
create function coordinator.post_octets(
  address text, message bytea, available_at timestamptz default null, expires_at timestamptz default null,
  priority int4 default null, group_id text default null)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
begin
  if address is null or message is null then
    raise exception 'coordinator.post_octets: expected an address and a message, not null'
      using errcode = 'null_value_not_allowed';
  elsif coordinator.not_a_message_at(message) is not null then
    raise exception 'coordinator.post_octets: expected a section of a message at octet %',
      coordinator.not_a_message_at(message) using errcode = 'invalid_parameter_value';
  elsif priority not between 0 and 255 then
    raise exception 'coordinator.post_octets: the priority is %, expected 0 to 255', priority
      using errcode = 'invalid_parameter_value';
  end if;
  perform coordinator.put_into_outbox(
    address, '', null, array[message], available_at, expires_at, priority, group_id);
end $$;

-- ``section`` is the begin of the section that carries a body, and ``code`` the constructor of its value.
create function coordinator.post_bodies(name text, section bytea, code int4, bodies bytea[],
  properties jsonb, headers jsonb, group_id text,
  delay interval, deliver_at timestamptz, ttl interval,
  priority int4)
returns void language plpgsql as $$
declare
  ttl_ms numeric := floor(extract(epoch from ttl) * 1000);
  given jsonb := case when jsonb_typeof(properties) = 'null' then null else properties end;
begin
  if name is null or bodies is null or array_position(bodies, null) is not null then
    raise exception 'coordinator.post: expected an address and a body, not null'
      using errcode = 'null_value_not_allowed';
  elsif ttl_ms not between 1 and 4294967295 then
    raise exception 'coordinator.post: the ttl is %, expected 1 millisecond to 49 days', ttl
      using errcode = 'invalid_parameter_value';
  elsif delay < interval '0' or delay > interval '100 years' then
    raise exception 'coordinator.post: the delay is %, expected 0 to 100 years', delay
      using errcode = 'invalid_parameter_value';
  elsif priority not between 0 and 255 then
    raise exception 'coordinator.post: the priority is %, expected 0 to 255', priority
      using errcode = 'invalid_parameter_value';
  end if;
  if group_id is not null then
    if given ->> 'group-id' <> group_id then
      raise exception 'coordinator.post: the group-id is "%" and, in the properties, "%"', left(group_id, 64),
        left(given ->> 'group-id', 64) using errcode = 'invalid_parameter_value';
    end if;
    given := coalesce(given, '{}') || jsonb_build_object('group-id', group_id);
  end if;
  perform coordinator.put_into_outbox(
    name,
    case when priority is null and ttl is null then '\x005370c0020141'::bytea  -- durable
         else '\x005370'::bytea || coordinator.amqp_list(array[
           '\x41'::bytea, '\x50'::bytea || substring(int8send(priority) from 8),
           coordinator.amqp_unsigned(ttl_ms, '\x43', '\x52', '\x70')]) end
    || case when given = '{"content-type": "application/json"}' then
              '\x005373c01907404040404040a3106170706c69636174696f6e2f6a736f6e'::bytea
            when given is null then '' else coordinator.amqp_properties(given) end
    || case when headers is null then '' else coordinator.amqp_headers(headers) end || section,
    code, bodies,
    greatest(deliver_at, clock_timestamp() + nullif(delay, interval '0')),
    least(clock_timestamp() + ttl,
          case when (given ->> 'absolute-expiry-time')::float8 between 1 and 253402128000000
               then to_timestamp((given ->> 'absolute-expiry-time')::float8 / 1000) end), priority,
    given ->> 'group-id');
end $$;

create function coordinator.post(address text, body text,
  properties jsonb default null, headers jsonb default null, group_id text default null,
  delay interval default null, deliver_at timestamptz default null, ttl interval default null,
  priority int4 default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
begin
  perform coordinator.post_bodies(
    address, '\x005377', 161, array[convert_to(body, 'UTF8')],
    properties,
    headers, group_id, delay, deliver_at, ttl, priority);
end $$;

create function coordinator.post(address text, body bytea,
  properties jsonb default null, headers jsonb default null, group_id text default null,
  delay interval default null, deliver_at timestamptz default null, ttl interval default null,
  priority int4 default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
begin
  perform coordinator.post_bodies(
    address, '\x005375', 160, array[body],
    properties,
    headers, group_id, delay, deliver_at, ttl, priority);
end $$;

create function coordinator.post(address text, body jsonb,
  properties jsonb default null, headers jsonb default null, group_id text default null,
  delay interval default null, deliver_at timestamptz default null, ttl interval default null,
  priority int4 default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
begin
  perform coordinator.post_bodies(
    address, '\x005375', 160, array[convert_to(body::text, 'UTF8')],
    case when jsonb_typeof(properties) in ('object', 'null') or properties is null then
      '{"content-type": "application/json"}' || coalesce(nullif(properties, 'null'), '{}')
    else properties end,
    headers, group_id, delay, deliver_at, ttl, priority);
end $$;

-- As many posts, in the order of the bodies; what else is given holds for each.

create function coordinator.post_many(address text, bodies text[],
  properties jsonb default null, headers jsonb default null, group_id text default null,
  delay interval default null, deliver_at timestamptz default null, ttl interval default null,
  priority int4 default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
begin
  perform coordinator.post_bodies(
    address, '\x005377', 161, case when bodies is not null then array(
      select convert_to(b.body, 'UTF8') from unnest(bodies) with ordinality b(body, place) order by b.place) end,
    properties,
    headers, group_id, delay, deliver_at, ttl, priority);
end $$;

create function coordinator.post_many(address text, bodies bytea[],
  properties jsonb default null, headers jsonb default null, group_id text default null,
  delay interval default null, deliver_at timestamptz default null, ttl interval default null,
  priority int4 default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
begin
  perform coordinator.post_bodies(
    address, '\x005375', 160, bodies,
    properties,
    headers, group_id, delay, deliver_at, ttl, priority);
end $$;

create function coordinator.post_many(address text, bodies jsonb[],
  properties jsonb default null, headers jsonb default null, group_id text default null,
  delay interval default null, deliver_at timestamptz default null, ttl interval default null,
  priority int4 default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
begin
  perform coordinator.post_bodies(
    address, '\x005375', 160, case when bodies is not null then array(
      select convert_to(b.body::text, 'UTF8') from unnest(bodies) with ordinality b(body, place) order by b.place) end,
    case when jsonb_typeof(properties) in ('object', 'null') or properties is null then
      '{"content-type": "application/json"}' || coalesce(nullif(properties, 'null'), '{}')
    else properties end,
    headers, group_id, delay, deliver_at, ttl, priority);
end $$;

-- Whether a statement has the constraints looked at, and is no commit; of one that is too long to look into ``unseen``.
create function coordinator.sets_constraints(statement text, unseen boolean) returns boolean
language sql immutable as $$
  select case when octet_length(statement) < 10000 then statement ~* '\mset\s+constraints\M' else unseen end
$$;

-- The rows of a transaction with the ids and times of their halves, in order: from ``millisecond`` on (store/ids.py),
-- with the slot of the outbox and the end of the row's number; after ``due``.
create function coordinator.posted(asked xid8, millisecond int8, due timestamptz)
returns table (id int8, due_at timestamptz, address_id int4, message bytea, available_at timestamptz,
               expires_at timestamptz, priority int2, message_group int8)
language sql stable as $$
  select ((millisecond + dense_rank() over (order by o.number >> 12) - 1) << 22) | 4186112 | (o.number & 4095),
         due + interval '1 microsecond' * row_number() over (order by o.number),
         o.address_id, o.message, o.available_at, o.expires_at, o.priority, o.message_group
    from coordinator.outbox o where o.xid = asked
$$;

-- Converts the rows of this transaction to messages, in order. Addresses are locked as by a batch: if one was removed
-- meanwhile the commit is refused, and a later removal waits for the end of the commit.
-- lock order: 7, 8; 1 (notice), skipping it
create function coordinator.send_outbox() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on set enable_seqscan = off as $$
declare
  millisecond int8 := 0;
  due timestamptz;
  first_due constant timestamptz := clock_timestamp();
  turn boolean;
  query constant text := current_query();
  calls text;
begin
  get diagnostics calls = pg_context;
  if new.put_off < 100 and (
    coordinator.sets_constraints(query, new.put_off = 0) or coordinator.sets_constraints(calls, new.put_off = 0)) then
    set constraints coordinator.outbox_sent deferred;
    update coordinator.outbox o set put_off = o.put_off + 1 where o.xid = new.xid and o.number = new.number;
    return null;
  end if;
  turn := exists (select from coordinator.lock l where l.name = 'notice' for update skip locked)
    or case when octet_length(query) < 10000 then query ~* '\mprepare\M' else true end;
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
  loop
    millisecond := greatest((extract(epoch from clock_timestamp()) * 1000)::int8 - 1704067200000, millisecond + 1);
    begin
      insert into coordinator.half (id, address_id, message, posted_at)
      select p.id, p.address_id, p.message, p.due_at from coordinator.posted(new.xid, millisecond, due) p;
      exit;
    exception when unique_violation then -- another session has taken an id: all of the next millisecond, in their order
    end;
  end loop;
  insert into coordinator.entry (group_id, id, half_id, expires_at, available_at, priority, message_group)
  select g.id, p.id, p.id, p.expires_at, greatest(p.available_at, p.due_at), p.priority,
         case p.message_group when 1 then p.id else p.message_group end
    from coordinator.posted(new.xid, millisecond, due) p
    join coordinator.consumer_group g on g.address_id = p.address_id
     for key share of g;
  delete from coordinator.outbox o where o.xid = new.xid;
  calls := set_config('coordinator.posting', '', true);
  if turn then
    perform pg_notify('coordinator_due', ((extract(epoch from first_due) - 946684800) * 1000000)::int8::text);
  end if;
  return null;
end $$;

create constraint trigger outbox_sent after insert or update on coordinator.outbox deferrable initially deferred
  for each row when (new.put_off is not null) execute function coordinator.send_outbox();

alter table coordinator.outbox enable always trigger outbox_sent;

revoke execute on function
  coordinator.post_many(text, text[], jsonb, jsonb, text, interval, timestamptz, interval, int4) from public;

revoke execute on function
  coordinator.post(text, text, jsonb, jsonb, text, interval, timestamptz, interval, int4) from public;

revoke execute on function
  coordinator.post_many(text, bytea[], jsonb, jsonb, text, interval, timestamptz, interval, int4) from public;

revoke execute on function
  coordinator.post(text, bytea, jsonb, jsonb, text, interval, timestamptz, interval, int4) from public;

revoke execute on function
  coordinator.post_many(text, jsonb[], jsonb, jsonb, text, interval, timestamptz, interval, int4) from public;

revoke execute on function
  coordinator.post(text, jsonb, jsonb, jsonb, text, interval, timestamptz, interval, int4) from public;

revoke execute on function
  coordinator.post_octets(text, bytea, timestamptz, timestamptz, int4, text) from public;

revoke execute on function coordinator.send_outbox() from public;


-- ---- coordinator.discharge
-- ``coordinator.discharge``, in the SQL transaction of an application (X3).
--
-- **Decision.** A discharge writes one row of ``enlistment``, which no other transaction ever sees, and locks nothing
-- of the transaction. It decides at the commit of the application, in a deferred trigger, as every other does
-- (``decide_all``): the first decision wins. So while the application's transaction is open, clients, checkers and
-- operators decide as if it were not there. Where one of them was first and decided otherwise, the commit of the
-- application fails, and with it its rows are rolled back: both sides agree.

-- True: the commit of this SQL transaction will decide; false: it is decided so already.
create function coordinator.discharge(txn_id uuid, fail boolean default false) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on set enable_seqscan = off as $$
declare
  wanted constant text := case when fail then 'rollback' else 'commit' end;
  before text;
  checked boolean;
  first constant boolean := not exists (select from coordinator.enlistment e where e.xid = pg_current_xact_id());
begin
  if txn_id is null or fail is null then
    raise exception 'coordinator.discharge: expected a txn-id, and whether it fails, not null'
      using errcode = 'null_value_not_allowed';
  end if;
  select o.decision into before from coordinator.op o where o.id = discharge.txn_id and o.posted is not null;
  if before is null then
    select t.producer_group is not null into checked from coordinator.txn t where t.id = discharge.txn_id;
    if checked is null then
      raise exception 'coordinator.discharge: the store has nothing of the transaction %', txn_id
        using errcode = 'CO008', hint = 'Its txn-id is of another store, its posts have not been answered yet, '
          'or the snapshot of this SQL transaction is older than they are.';
    elsif not checked then
      raise exception 'coordinator.discharge: the transaction % is not checkable: its client has its messages', txn_id
        using errcode = 'CO008', hint = 'Its control link, or its first message, names a producer group.';
    end if;
    select e.decision into before from coordinator.enlistment e
     where e.xid = pg_current_xact_id() and e.txn_id = discharge.txn_id;
  end if;
  if before <> wanted then
    raise exception 'coordinator.discharge: the transaction % is decided: %', txn_id, before
      using errcode = 'CO009';
  elsif before is not null then
    return exists (select from coordinator.enlistment e
                    where e.xid = pg_current_xact_id() and e.txn_id = discharge.txn_id);
  end if;
  if first then
    set constraints coordinator.enlistment_decided deferred;
  end if;
  insert into coordinator.enlistment (put_off, txn_id, decision) values (case when first then 0 end, txn_id, wanted);
  return true;
end $$;

-- All of this SQL transaction together: locks are taken in the order of their ids, as by any other decision. Others
-- are told a decision when it can be seen: it is durable by then, whatever the application asks for its commits.
-- After a notice PostgreSQL refuses to prepare the transaction.
-- lock order: as decide_all
create function coordinator.decide_enlisted() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on set enable_seqscan = off as $$
declare
  txns uuid[];
  decisions text[];
  lost record;
  query constant text := current_query();
  calls text;
begin
  get diagnostics calls = pg_context;
  if new.put_off < 100 and (
    coordinator.sets_constraints(query, new.put_off = 0) or coordinator.sets_constraints(calls, new.put_off = 0)) then
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
  if (case when octet_length(query) < 10000 then query ~* '\mprepare\M' else true end) then
    perform pg_notify('coordinator_due', '');
  end if;
  return null;
end $$;

create constraint trigger enlistment_decided after insert or update on coordinator.enlistment
  deferrable initially deferred for each row when (new.put_off is not null)
  execute function coordinator.decide_enlisted();

alter table coordinator.enlistment enable always trigger enlistment_decided;

revoke execute on function
  coordinator.discharge(uuid, bool) from public;

revoke execute on function coordinator.decide_enlisted() from public;
