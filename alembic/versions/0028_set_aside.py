"""What is kept aside after the last check says in its octets where it came from (H10), so that it does after a seek.

What the functions do is said in ``store/set_aside.py`` and ``store/tables.py``; a test compares the catalogs. Copies
that are there keep what their entries say of them.
"""

from __future__ import annotations

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

_NUMBER = r"""
create function coordinator.amqp_number(octets bytea, at int4) returns int8 language sql immutable as $$
  select ('x' || encode(substring(octets from at + 1 for 4), 'hex'))::bit(32)::int8
$$"""

_PAIRS = r"""
create function coordinator.amqp_pairs(octets bytea, number int4) returns table (place int4, key bytea, pair bytea)
language plpgsql immutable as $$
declare
  at int4 := 0;
  start int4;
  kind int4;
  values_left int4;
begin
  for each in 1 .. number loop
    place := each;
    start := at;
    for part in 1 .. 2 loop
      values_left := 1;
      while values_left > 0 loop
        kind := get_byte(octets, at);
        -- 0: a descriptor and a value follow
        values_left := values_left + (case kind when 0 then 1 else -1 end);
        at := at + 1 + (case when kind = 0 then 0
                             when kind >= 160 and kind >> 4 & 1 = 1 then 4 + coordinator.amqp_number(octets, at + 1)
                             when kind >= 160 then 1 + get_byte(octets, at + 1)
                             else (array[0, 1, 2, 4, 8, 16])[(kind >> 4) - 3] end);
        if at is null or at > octet_length(octets) then
          raise data_exception;
        end if;
      end loop;
      if part = 1 then
        key := substring(octets from start + 1 for at - start);
        key := substring(key from case get_byte(key, 0) when 161 then 3 when 163 then 3 when 177 then 6 when 179 then 6
                                  else 1 end);
      end if;
    end loop;
    pair := substring(octets from start + 1 for at - start);
    return next;
  end loop;
end $$"""

_FRONT = r"""
create function coordinator.amqp_front(
  message bytea, out before int4, out rest int4, out own bytea, out number int4) language plpgsql immutable as $$
declare
  -- the beginning of a section: where its value is, which section, the constructor of its value, and where it ends
  section bytea;
  value int4;
  code int4;
  kind int4;
  ends int4;
begin
  before := 0;
  rest := 0;
  own := '';
  number := 0;
  while rest < octet_length(message) loop
    section := substring(message from rest + 1 for 50);
    kind := get_byte(section, 1);
    if kind in (163, 179) then
      value := 2 + (case kind when 163 then 1 + get_byte(section, 2) else 4 + coordinator.amqp_number(section, 2) end);
      code := 111 + array_position(
        array['amqp:header:list', 'amqp:delivery-annotations:map', 'amqp:message-annotations:map'],
        encode(case kind when 163 then substring(section from 4 for value - 3)
                         else substring(section from 7 for value - 6) end, 'escape'));
    else
      value := 2 + (array[1, 2, 4, 8])[(kind >> 4) - 4];
      code := get_byte(section, value - 1);
    end if;
    exit when code is null or code > 114;
    kind := get_byte(section, value);
    ends := rest + value + 1 + (case when kind = 69 then 0 when kind in (192, 193) then 1 + get_byte(section, value + 1)
                                     else 4 + coordinator.amqp_number(section, value + 1) end);
    if ends > octet_length(message) then
      raise data_exception;
    elsif code < 114 then
      before := ends;
    elsif kind = 193 then
      number := get_byte(section, value + 2) / 2;
      own := substring(message from rest + value + 4 for ends - rest - value - 3);
    else
      number := coordinator.amqp_number(section, value + 5) / 2;
      own := substring(message from rest + value + 10 for ends - rest - value - 9);
    end if;
    rest := ends;
  end loop;
end $$"""

_TOLD = r"""
create function coordinator.told(message bytea, story bytea, pairs int4) returns bytea language plpgsql immutable as $$
declare
  front record;
  own bytea;
  number int4;
begin
  select * into front from coordinator.amqp_front(message);
  own := front.own;
  number := front.number;
  if exists (select from coordinator.amqp_pairs(story, pairs) s where position(s.key in own) > 0) then
    select coalesce(string_agg(o.pair, '' order by o.place), ''), count(*) into own, number
      from coordinator.amqp_pairs(own, case when number <= 100 then number else 0 end) o
     where o.key not in (select s.key from coordinator.amqp_pairs(story, pairs) s);
  elsif number + pairs > 10000 then
    own := '';
    number := 0;
  end if;
  return substring(message for front.before) || '\x005372d1' || int4send(octet_length(own || story) + 4)
         || int4send(2 * (number + pairs)) || own || story || substring(message from front.rest + 1);
exception when data_exception then
  return '\x005372d1' || int4send(octet_length(story) + 4) || int4send(2 * pairs) || story
         || '\x005375b0' || int4send(octet_length(message)) || message;
end $$"""

_EXHAUST = r"""
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
    from coordinator.pending p where p.txn_id = exhaust.txn;
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
end $$"""

_EXHAUST_BEFORE = r"""
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


def upgrade() -> None:
    for function in (_NUMBER, _PAIRS, _FRONT, _TOLD, _EXHAUST):
        op.execute(function)


def downgrade() -> None:
    op.execute(_EXHAUST_BEFORE)
    op.execute("drop function coordinator.told(bytea, bytea, int4)")
    op.execute("drop function coordinator.amqp_front(bytea)")
    op.execute("drop function coordinator.amqp_pairs(bytea, int4)")
    op.execute("drop function coordinator.amqp_number(bytea, int4)")
