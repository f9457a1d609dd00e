"""What applications post, and decide, in SQL transactions of their own (X2, X3); and the order of what is due (D7).

What the functions do is said in ``store/application``; a test compares the catalogs of the two. One file because a
version is made, and undone, as a whole.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.types import UserDefinedType

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"


class Xid8(UserDefinedType[int]):
    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "xid8"


_MAY_PROMOTE = """
create function coordinator.may_promote(lowest int8, stalled int8) returns int8 language plpgsql as $$
declare
  last int8;
begin
  if not pg_try_advisory_xact_lock(7165068069473251181) then
    return case when lowest - (select p.last_value from coordinator.promoted p) > stalled then 2 else 0 end;
  end if;
  select p.last_value into last from coordinator.promoted p;
  return case when lowest > last or last - lowest > 4194304000 then 1 else 0 end;
end $$"""

_MESSAGES = (
    r"""
create function coordinator.amqp_sized(code int4, octets bytea) returns bytea language sql immutable as $$
  select case when octet_length(octets) < 256
              then decode(lpad(to_hex(code), 2, '0') || lpad(to_hex(octet_length(octets)), 2, '0'), 'hex')
              else decode(lpad(to_hex(code + 16), 2, '0'), 'hex') || int4send(octet_length(octets)) end || octets
$$""",
    r"""
create function coordinator.amqp_compound(code int4, octets bytea, number int4) returns bytea
language sql immutable as $$
  select case when code = 192 and number = 0 then '\x45'::bytea
              when octet_length(octets) < 255 and number < 256
              then decode(lpad(to_hex(code), 2, '0') || lpad(to_hex(octet_length(octets) + 1), 2, '0')
                          || lpad(to_hex(number), 2, '0'), 'hex')
              else decode(lpad(to_hex(code + 16), 2, '0'), 'hex') || int4send(octet_length(octets) + 4)
                   || int4send(number) end || octets
$$""",
    r"""
create function coordinator.amqp_list(fields bytea[]) returns bytea language sql immutable as $$
  select coordinator.amqp_compound(192, coalesce(string_agg(coalesce(f.octets, '\x40'), '' order by f.place), ''),
                                count(*)::int4)
    from unnest(fields) with ordinality f(octets, place)
   where f.place <= (select max(g.place) from unnest(fields) with ordinality g(octets, place)
                      where g.octets is not null)
$$""",
    r"""
create function coordinator.amqp_unsigned(value numeric, zero bytea, small bytea, large bytea) returns bytea
language sql immutable as $$
  select case when value = 0 then zero when value < 256 then small || substring(int8send(value::int8) from 8)
              else large || substring(int8send(value::int8) from case when large = '\x70' then 5 else 1 end) end
$$""",
    r"""
create function coordinator.amqp_scalar(name text, value jsonb) returns bytea language plpgsql immutable as $$
declare
  number numeric;
begin
  case jsonb_typeof(value)
    when 'string' then
      return coordinator.amqp_sized(161, convert_to(value #>> '{}', 'UTF8'));
    when 'boolean' then
      return case when value = 'true'::jsonb then '\x41'::bytea else '\x42'::bytea end;
    when 'null' then
      return '\x40'::bytea;
    when 'number' then
      number := (value #>> '{}')::numeric;
      if scale(number) > 0 then
        return '\x82'::bytea || float8send(number::float8);
      elsif number between -128 and 127 then
        return '\x55'::bytea || substring(int8send(number::int8) from 8);
      elsif number between -9223372036854775808 and 9223372036854775807 then
        return '\x81'::bytea || int8send(number::int8);
      end if;
      raise exception 'coordinator.post: the number % of the header "%" does not fit into 64 bits', number, name
        using errcode = 'invalid_parameter_value';
    else
      raise exception 'coordinator.post: the header "%" is an %; expected a string, a number, a boolean or null',
        name, jsonb_typeof(value) using errcode = 'invalid_parameter_value';
  end case;
end $$""",
    r"""
create function coordinator.amqp_property(name text, kind text, value jsonb) returns bytea
language plpgsql immutable as $$
declare
  given text := value #>> '{}';
  number numeric;
begin
  if jsonb_typeof(value) = 'string' and kind in ('id', 'string', 'binary') then
    return coordinator.amqp_sized(case kind when 'binary' then 160 else 161 end, convert_to(given, 'UTF8'));
  elsif jsonb_typeof(value) = 'string' and kind = 'symbol' and octet_length(given) = length(given) then
    return coordinator.amqp_sized(163, convert_to(given, 'UTF8'));
  elsif jsonb_typeof(value) = 'number' and kind in ('id', 'uint', 'timestamp') then
    number := given::numeric;
    if scale(number) = 0 and number between 0 and (case kind when 'uint' then 4294967295
                                                             else 9223372036854775807 end) then
      return case kind when 'id' then coordinator.amqp_unsigned(number, '\x44', '\x53', '\x80')
                       when 'uint' then coordinator.amqp_unsigned(number, '\x43', '\x52', '\x70')
                       else '\x83'::bytea || int8send(number::int8) end;
    end if;
  elsif value is null or jsonb_typeof(value) = 'null' then
    return null;
  end if;
  raise exception 'coordinator.post: the property "%" is %; expected %', name, left(value::text, 64),
    case kind when 'id' then 'a string or a number from 0 on' when 'uint' then 'a number from 0 to 4294967295'
              when 'timestamp' then 'milliseconds since 1970' when 'symbol' then 'a string of ASCII'
              else 'a string' end
    using errcode = 'invalid_parameter_value';
end $$""",
    r"""
create function coordinator.amqp_properties(given jsonb) returns bytea language plpgsql immutable as $$
declare
  unknown text;
  list bytea;
begin
  if given is null or given = '{}'::jsonb then
    return '';
  elsif jsonb_typeof(given) <> 'object' then
    raise exception 'coordinator.post: properties are an %, expected an object', jsonb_typeof(given)
      using errcode = 'invalid_parameter_value';
  end if;
  select min(k) into unknown from jsonb_object_keys(given) k
    where k not in (select p.name from (values ('message-id', 'id'),
      ('user-id', 'binary'),
      ('to', 'string'),
      ('subject', 'string'),
      ('reply-to', 'string'),
      ('correlation-id', 'id'),
      ('content-type', 'symbol'),
      ('content-encoding', 'symbol'),
      ('absolute-expiry-time', 'timestamp'),
      ('creation-time', 'timestamp'),
      ('group-id', 'string'),
      ('group-sequence', 'uint'),
      ('reply-to-group-id', 'string')) p(name, kind));
  if unknown is not null then
    raise exception 'coordinator.post: "%" is none of the properties of a message', unknown
      using errcode = 'invalid_parameter_value', hint = 'A property of your own goes into the headers.';
  end if;
  select coordinator.amqp_list(array_agg(coordinator.amqp_property(p.name, p.kind, given -> p.name) order by p.place))
    into list from (
      select *, row_number() over () as place from (values ('message-id', 'id'),
      ('user-id', 'binary'),
      ('to', 'string'),
      ('subject', 'string'),
      ('reply-to', 'string'),
      ('correlation-id', 'id'),
      ('content-type', 'symbol'),
      ('content-encoding', 'symbol'),
      ('absolute-expiry-time', 'timestamp'),
      ('creation-time', 'timestamp'),
      ('group-id', 'string'),
      ('group-sequence', 'uint'),
      ('reply-to-group-id', 'string')) v(name, kind)) p;
  return '\x005373'::bytea || list;
end $$""",
    r"""
create function coordinator.amqp_headers(given jsonb) returns bytea language plpgsql immutable as $$
declare
  map bytea;
  number int4;
begin
  if given is null or given = '{}'::jsonb then
    return '';
  elsif jsonb_typeof(given) <> 'object' then
    raise exception 'coordinator.post: headers are an %, expected an object', jsonb_typeof(given)
      using errcode = 'invalid_parameter_value';
  end if;
  select string_agg(
           coordinator.amqp_sized(161, convert_to(h.key, 'UTF8')) || coordinator.amqp_scalar(h.key, h.value), ''),
         2 * count(*) into map, number from jsonb_each(given) h;
  return '\x005374'::bytea || coordinator.amqp_compound(193, map, number);
end $$""",
    r"""
create function coordinator.not_a_message_at(message bytea) returns int4 language plpgsql immutable as $$
declare
  size constant int8 := octet_length(message);
  start int4 := 0;
  last int4 := 0;
  section int4;
  kind int4;
  value int4;
  -- the fields of a header in hexadecimal: durable, priority, ttl, first-acquirer, delivery-count
  header constant text[] := array['(4[012]|560[01])', '(40|50..)', '(4[03]|52..|70.{8})', '(4[012]|560[01])',
                                  '(4[03]|52..|70.{8})'];
  fits boolean;
  ends int8;
begin
  while start < size or size = 0 loop
    value := start + (case when substring(message from start + 1 for 2) = '\x0053' then 3
                           when substring(message from start + 1 for 9) = '\x008000000000000000' then 10
                           else size end);
    if value >= size then
      return start;
    end if;
    section := get_byte(message, value - 1);
    kind := get_byte(message, value);
    fits := case when section in (112, 115, 118) then kind in (69, 192, 208)
                 when section in (113, 114, 116, 120) then kind in (193, 209)
                 when section = 117 then kind in (160, 176)
                 else section = 119 and kind in (64, 65, 66, 67, 68, 69, 80, 81, 82, 83, 84, 85, 86, 96, 97, 112, 113,
                   114, 115, 116, 128, 129, 130, 131, 132, 148, 152, 160, 161, 163, 176, 177, 179, 192, 193, 208, 209,
                   224, 240) end;
    if not fits or section < last or section = last and section not in (117, 118)
       or last between 117 and 119 and section between 117 and 119 and section <> last then
      return start;
    end if;
    ends := value + 1 + (case kind >> 4 when 4 then 0 when 5 then 1 when 6 then 2 when 7 then 4 when 8 then 8
                                        when 9 then 16 else 1 + 3 * ((kind >> 4) & 1) end);
    if ends <= size and kind >= 160 then
      ends := ends + ('x' || lpad(encode(substring(message from value + 2 for ends::int4 - value - 1), 'hex'),
                                  8, '0'))::bit(32)::int8;
    end if;
    if ends > size then
      return start;
    end if;
    if section = 112 and kind <> 69 then
      value := value + (case kind when 192 then 2 else 8 end);
      if value >= ends or get_byte(message, value) > 5
         or encode(substring(message from value + 2 for ends::int4 - value - 1), 'hex')
            !~ ('^' || array_to_string(header[1:get_byte(message, value)], '') || '$') then
        return start;
      end if;
    end if;
    last := section;
    start := ends;
  end loop;
  return null;
end $$""",
    r"""
create function coordinator.sum_64(a int8, b int8, c int8) returns int8 language sql immutable as $$
  select (((a >> 32) & 4294967295) + ((b >> 32) & 4294967295) + ((c >> 32) & 4294967295)
          + (((a & 4294967295) + (b & 4294967295) + (c & 4294967295)) >> 32) << 32)
         | (((a & 4294967295) + (b & 4294967295) + (c & 4294967295)) & 4294967295)
$$""",
    r"""
create function coordinator.turned_64(a int8, places int4) returns int8 language sql immutable as $$
  select ((a >> places) & ((1::int8 << (64 - places)) - 1)) | (a << (64 - places))
$$""",
    r"""
create function coordinator.group_key(group_id text) returns int8 language plpgsql immutable as $$
declare
  octets constant bytea := convert_to(group_id, 'UTF8');
  size constant int4 := octet_length(octets);
  padded constant bytea := octets || decode(repeat('00', 128 * greatest(1, (size + 127) / 128) - size), 'hex');
  blocks constant int4 := octet_length(padded) / 128;
  sigma constant int4[] := array[[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
    [15, 11, 5, 9, 10, 16, 14, 7, 2, 13, 1, 3, 12, 8, 6, 4],
    [12, 9, 13, 1, 6, 3, 16, 14, 11, 15, 4, 7, 8, 2, 10, 5],
    [8, 10, 4, 2, 14, 13, 12, 15, 3, 7, 6, 11, 5, 1, 16, 9],
    [10, 1, 6, 8, 3, 5, 11, 16, 15, 2, 12, 13, 7, 9, 4, 14],
    [3, 13, 7, 11, 1, 12, 9, 4, 5, 14, 8, 6, 16, 15, 2, 10],
    [13, 6, 2, 16, 15, 14, 5, 11, 1, 8, 7, 4, 10, 3, 9, 12],
    [14, 12, 8, 15, 13, 2, 4, 10, 6, 1, 16, 5, 9, 7, 3, 11],
    [7, 16, 15, 10, 12, 4, 1, 9, 13, 3, 14, 8, 2, 5, 11, 6],
    [11, 3, 9, 5, 8, 7, 2, 6, 16, 12, 10, 15, 4, 13, 14, 1],
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
    [15, 11, 5, 9, 10, 16, 14, 7, 2, 13, 1, 3, 12, 8, 6, 4]];
  h int8[] := array['7640891576939301120'::int8, '-4942790177534073029'::int8,
    '4354685564936845355'::int8,
    '-6534734903238641935'::int8,
    '5840696475078001361'::int8,
    '-7276294671716946913'::int8,
    '2270897969802886507'::int8,
    '6620516959819538809'::int8];
  m int8[];
  s int4[];
  v int8[];
begin
  for block in 0 .. blocks - 1 loop
    m := array(select ('x' || encode(substring(padded from 128 * block + 8 * w + 8 for 1)
                 || substring(padded from 128 * block + 8 * w + 7 for 1)
                 || substring(padded from 128 * block + 8 * w + 6 for 1)
                 || substring(padded from 128 * block + 8 * w + 5 for 1)
                 || substring(padded from 128 * block + 8 * w + 4 for 1)
                 || substring(padded from 128 * block + 8 * w + 3 for 1)
                 || substring(padded from 128 * block + 8 * w + 2 for 1)
                 || substring(padded from 128 * block + 8 * w + 1 for 1), 'hex'))::bit(64)::int8
                 from generate_series(0, 15) w order by w);
    v := h || array['7640891576956012808'::int8,
    '-4942790177534073029'::int8,
    '4354685564936845355'::int8,
    '-6534734903238641935'::int8,
    '5840696475078001361'::int8,
    '-7276294671716946913'::int8,
    '2270897969802886507'::int8,
    '6620516959819538809'::int8];
    v[13] := v[13] # least(size, 128 * (block + 1))::int8;
    if block = blocks - 1 then
      v[15] := ~v[15];
    end if;
    for round in 1 .. 12 loop
      s := array(select sigma[round][w] from generate_series(1, 16) w order by w);
      v[1] := coordinator.sum_64(v[1], v[5], m[s[1]]);
      v[13] := coordinator.turned_64(v[13] # v[1], 32);
      v[9] := coordinator.sum_64(v[9], v[13], 0);
      v[5] := coordinator.turned_64(v[5] # v[9], 24);
      v[1] := coordinator.sum_64(v[1], v[5], m[s[2]]);
      v[13] := coordinator.turned_64(v[13] # v[1], 16);
      v[9] := coordinator.sum_64(v[9], v[13], 0);
      v[5] := coordinator.turned_64(v[5] # v[9], 63);
      v[2] := coordinator.sum_64(v[2], v[6], m[s[3]]);
      v[14] := coordinator.turned_64(v[14] # v[2], 32);
      v[10] := coordinator.sum_64(v[10], v[14], 0);
      v[6] := coordinator.turned_64(v[6] # v[10], 24);
      v[2] := coordinator.sum_64(v[2], v[6], m[s[4]]);
      v[14] := coordinator.turned_64(v[14] # v[2], 16);
      v[10] := coordinator.sum_64(v[10], v[14], 0);
      v[6] := coordinator.turned_64(v[6] # v[10], 63);
      v[3] := coordinator.sum_64(v[3], v[7], m[s[5]]);
      v[15] := coordinator.turned_64(v[15] # v[3], 32);
      v[11] := coordinator.sum_64(v[11], v[15], 0);
      v[7] := coordinator.turned_64(v[7] # v[11], 24);
      v[3] := coordinator.sum_64(v[3], v[7], m[s[6]]);
      v[15] := coordinator.turned_64(v[15] # v[3], 16);
      v[11] := coordinator.sum_64(v[11], v[15], 0);
      v[7] := coordinator.turned_64(v[7] # v[11], 63);
      v[4] := coordinator.sum_64(v[4], v[8], m[s[7]]);
      v[16] := coordinator.turned_64(v[16] # v[4], 32);
      v[12] := coordinator.sum_64(v[12], v[16], 0);
      v[8] := coordinator.turned_64(v[8] # v[12], 24);
      v[4] := coordinator.sum_64(v[4], v[8], m[s[8]]);
      v[16] := coordinator.turned_64(v[16] # v[4], 16);
      v[12] := coordinator.sum_64(v[12], v[16], 0);
      v[8] := coordinator.turned_64(v[8] # v[12], 63);
      v[1] := coordinator.sum_64(v[1], v[6], m[s[9]]);
      v[16] := coordinator.turned_64(v[16] # v[1], 32);
      v[11] := coordinator.sum_64(v[11], v[16], 0);
      v[6] := coordinator.turned_64(v[6] # v[11], 24);
      v[1] := coordinator.sum_64(v[1], v[6], m[s[10]]);
      v[16] := coordinator.turned_64(v[16] # v[1], 16);
      v[11] := coordinator.sum_64(v[11], v[16], 0);
      v[6] := coordinator.turned_64(v[6] # v[11], 63);
      v[2] := coordinator.sum_64(v[2], v[7], m[s[11]]);
      v[13] := coordinator.turned_64(v[13] # v[2], 32);
      v[12] := coordinator.sum_64(v[12], v[13], 0);
      v[7] := coordinator.turned_64(v[7] # v[12], 24);
      v[2] := coordinator.sum_64(v[2], v[7], m[s[12]]);
      v[13] := coordinator.turned_64(v[13] # v[2], 16);
      v[12] := coordinator.sum_64(v[12], v[13], 0);
      v[7] := coordinator.turned_64(v[7] # v[12], 63);
      v[3] := coordinator.sum_64(v[3], v[8], m[s[13]]);
      v[14] := coordinator.turned_64(v[14] # v[3], 32);
      v[9] := coordinator.sum_64(v[9], v[14], 0);
      v[8] := coordinator.turned_64(v[8] # v[9], 24);
      v[3] := coordinator.sum_64(v[3], v[8], m[s[14]]);
      v[14] := coordinator.turned_64(v[14] # v[3], 16);
      v[9] := coordinator.sum_64(v[9], v[14], 0);
      v[8] := coordinator.turned_64(v[8] # v[9], 63);
      v[4] := coordinator.sum_64(v[4], v[5], m[s[15]]);
      v[15] := coordinator.turned_64(v[15] # v[4], 32);
      v[10] := coordinator.sum_64(v[10], v[15], 0);
      v[5] := coordinator.turned_64(v[5] # v[10], 24);
      v[4] := coordinator.sum_64(v[4], v[5], m[s[16]]);
      v[15] := coordinator.turned_64(v[15] # v[4], 16);
      v[10] := coordinator.sum_64(v[10], v[15], 0);
      v[5] := coordinator.turned_64(v[5] # v[10], 63);
    end loop;
    h := array(select h[w] # v[w] # v[w + 8] from generate_series(1, 8) w order by w);
  end loop;
  -- the first word, its octets the other way round, as a number from 0 on: half of it, below 0
  m := array[h[1]];
  return (select ('x' || string_agg(lpad(to_hex((m[1] >> (8 * o)) & 255), 2, '0'), '' order by o))::bit(64)::int8
            from generate_series(0, 7) o) >> 1 & 9223372036854775807 | (-9223372036854775807 - 1);
end $$""",
    r"""
create function coordinator.outbox_id(number int8, above int8) returns int8 language sql volatile as $$
  select case when i.id > above then i.id else (((above >> 22) + 1) << 22) | (i.id & 4194303) end
    from (select (((extract(epoch from clock_timestamp()) * 1000)::int8 - 1704067200000) << 22)
                 | 4186112 | (number & 4095) as id) i
$$""",
)

_OUTBOX = (
    r"""alter table coordinator.outbox alter column message set storage external""",
    r"""
create function coordinator.put_into_outbox(
  name text, message bytea, available timestamptz, expires timestamptz, priority int4, group_id text)
returns void language plpgsql set enable_seqscan = off as $$
declare
  posted_to record;
  first constant boolean := not exists (select from coordinator.outbox o where o.xid = pg_current_xact_id());
begin
  if octet_length(message) > 104857600 then
    raise exception 'coordinator.post: the message has % octets, at most 104857600 were expected',
      octet_length(message) using errcode = 'program_limit_exceeded';
  elsif not isfinite(available) or not isfinite(expires) then
    raise exception 'coordinator.post: a time is infinite' using errcode = 'invalid_parameter_value';
  end if;
  select a.id, a.kind into posted_to from coordinator.address a where a.name = put_into_outbox.name;
  if not found then
    raise exception 'coordinator.post: there is no address "%"', left(name, 100) using errcode = 'CO006',
      hint = 'Make it with: coordinator address add';
  elsif posted_to.kind = 'transaction' and available is not null then
    raise exception 'coordinator.post: the address "%" is of kind transaction: its messages cannot be delivered later',
      name using errcode = 'CO007';
  elsif posted_to.kind = 'delay' and available is null then
    raise exception 'coordinator.post: the address "%" is of kind delay, and the message came without a delay', name
      using errcode = 'CO007';
  end if;
  if first then
    set constraints coordinator.outbox_sent deferred;
  end if;
  insert into coordinator.outbox (put_off, address_id, message, available_at, expires_at, priority, message_group)
  values (case when first then 0 end, posted_to.id, message, available, expires,
          case when posted_to.kind = 'fifo' then 4 else least(coalesce(priority, 4), 255) end,
          case when posted_to.kind <> 'fifo' then null
               when group_id is null then 1 else coordinator.group_key(group_id) end);
end $$""",
    r"""
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
  perform coordinator.put_into_outbox(address, message, available_at, expires_at, priority, group_id);
end $$""",
    r"""
create function coordinator.post_body(name text, body bytea,
  properties jsonb, headers jsonb, group_id text,
  delay interval, deliver_at timestamptz, ttl interval,
  priority int4)
returns void language plpgsql as $$
declare
  ttl_ms numeric := floor(extract(epoch from ttl) * 1000);
  given jsonb := case when jsonb_typeof(properties) = 'null' then null else properties end;
begin
  if name is null or body is null then
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
    '\x005370'::bytea || coordinator.amqp_list(array[
      '\x41'::bytea, '\x50'::bytea || substring(int8send(priority) from 8),
      coordinator.amqp_unsigned(ttl_ms, '\x43', '\x52', '\x70')])
    || coordinator.amqp_properties(given) || coordinator.amqp_headers(headers) || body,
    greatest(deliver_at, clock_timestamp() + nullif(delay, interval '0')),
    least(clock_timestamp() + ttl,
          to_timestamp(least((given ->> 'absolute-expiry-time')::float8 / 1000, 9000000000000))), priority,
    given ->> 'group-id');
end $$""",
    r"""
create function coordinator.post(address text, body text,
  properties jsonb default null, headers jsonb default null, group_id text default null,
  delay interval default null, deliver_at timestamptz default null, ttl interval default null,
  priority int4 default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
begin
  if octet_length(body) > 104857600 then
    raise exception 'coordinator.post: the body has % octets, at most 104857600 were expected',
      octet_length(body) using errcode = 'program_limit_exceeded';
  end if;
  perform coordinator.post_body(
    address,
    '\x005377'::bytea || coordinator.amqp_sized(161, convert_to(body, 'UTF8')),
    properties,
    headers, group_id, delay, deliver_at, ttl, priority);
end $$""",
    r"""
create function coordinator.post(address text, body bytea,
  properties jsonb default null, headers jsonb default null, group_id text default null,
  delay interval default null, deliver_at timestamptz default null, ttl interval default null,
  priority int4 default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
begin
  if octet_length(body) > 104857600 then
    raise exception 'coordinator.post: the body has % octets, at most 104857600 were expected',
      octet_length(body) using errcode = 'program_limit_exceeded';
  end if;
  perform coordinator.post_body(
    address,
    '\x005375'::bytea || coordinator.amqp_sized(160, body),
    properties,
    headers, group_id, delay, deliver_at, ttl, priority);
end $$""",
    r"""
create function coordinator.post(address text, body jsonb,
  properties jsonb default null, headers jsonb default null, group_id text default null,
  delay interval default null, deliver_at timestamptz default null, ttl interval default null,
  priority int4 default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
begin
  if octet_length(body::text) > 104857600 then
    raise exception 'coordinator.post: the body has % octets, at most 104857600 were expected',
      octet_length(body::text) using errcode = 'program_limit_exceeded';
  end if;
  perform coordinator.post_body(
    address,
    '\x005375'::bytea || coordinator.amqp_sized(160, convert_to(body::text, 'UTF8')),
    case when jsonb_typeof(properties) in ('object', 'null') or properties is null then
      '{"content-type": "application/json"}' || coalesce(nullif(properties, 'null'), '{}')
    else properties end,
    headers, group_id, delay, deliver_at, ttl, priority);
end $$""",
    r"""
create function coordinator.send_outbox() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on set enable_seqscan = off as $$
declare
  posted record;
  half_id int8 := 0;
  due timestamptz := clock_timestamp();
  first_due constant timestamptz := due;
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
      insert into coordinator.half (id, address_id, message)
      select half_id, o.address_id, o.message
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
  perform pg_notify('coordinator_due', ((extract(epoch from first_due) - 946684800) * 1000000)::int8::text);
  return null;
end $$""",
    r"""
create constraint trigger outbox_sent after insert or update on coordinator.outbox deferrable initially deferred
  for each row when (new.put_off is not null) execute function coordinator.send_outbox()""",
    r"""alter table coordinator.outbox enable always trigger outbox_sent""",
    r"""revoke execute on function
  coordinator.post(text, text, jsonb, jsonb, text, interval, timestamptz, interval, int4) from public""",
    r"""revoke execute on function
  coordinator.post(text, bytea, jsonb, jsonb, text, interval, timestamptz, interval, int4) from public""",
    r"""revoke execute on function
  coordinator.post(text, jsonb, jsonb, jsonb, text, interval, timestamptz, interval, int4) from public""",
    r"""revoke execute on function
  coordinator.post_octets(text, bytea, timestamptz, timestamptz, int4, text) from public""",
    r"""revoke execute on function coordinator.send_outbox() from public""",
)

_ENLISTMENT = (
    r"""
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
end $$""",
    r"""
create function coordinator.decide_enlisted() returns trigger
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
                             '{}', '{}', '{}', null) d
    join unnest(txns, decisions) u(txn_id, decision) on u.txn_id = d.txn_id
   where not d.won and not exists (select from coordinator.op o where o.id = d.txn_id and o.decision = u.decision);
  if found then
    raise exception 'coordinator.discharge: the transaction % was decided meanwhile, and not by %', lost.txn_id,
      lost.wanted using errcode = 'CO009';
  end if;
  delete from coordinator.enlistment e where e.xid = new.xid;
  return null;
end $$""",
    r"""
create constraint trigger enlistment_decided after insert or update on coordinator.enlistment
  deferrable initially deferred for each row when (new.put_off is not null)
  execute function coordinator.decide_enlisted()""",
    r"""alter table coordinator.enlistment enable always trigger enlistment_decided""",
    r"""revoke execute on function
  coordinator.discharge(uuid, bool) from public""",
    r"""revoke execute on function coordinator.decide_enlisted() from public""",
)

_FUNCTIONS = (
    "turned_64(int8,int4)",
    "sum_64(int8,int8,int8)",
    "send_outbox()",
    "put_into_outbox(text,bytea,timestamptz,timestamptz,int4,text)",
    "post_octets(text,bytea,timestamptz,timestamptz,int4,text)",
    "post_body(text,bytea,jsonb,jsonb,text,interval,timestamptz,interval,int4)",
    "post(text,text,jsonb,jsonb,text,interval,timestamptz,interval,int4)",
    "post(text,jsonb,jsonb,jsonb,text,interval,timestamptz,interval,int4)",
    "post(text,bytea,jsonb,jsonb,text,interval,timestamptz,interval,int4)",
    "outbox_id(int8,int8)",
    "not_a_message_at(bytea)",
    "group_key(text)",
    "discharge(uuid,bool)",
    "decide_enlisted()",
    "amqp_unsigned(numeric,bytea,bytea,bytea)",
    "amqp_sized(int4,bytea)",
    "amqp_scalar(text,jsonb)",
    "amqp_property(text,text,jsonb)",
    "amqp_properties(jsonb)",
    "amqp_list(bytea[])",
    "amqp_headers(jsonb)",
    "amqp_compound(int4,bytea,int4)",
)


def _xid() -> sa.Column[int]:
    return sa.Column("xid", Xid8, primary_key=True, server_default=sa.text("pg_current_xact_id()"))


_OPTIONS = {
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_threshold": "100000",
    "autovacuum_analyze_scale_factor": "0",
    "autovacuum_analyze_threshold": "100000",
}


def upgrade() -> None:
    op.execute("create sequence coordinator.promoted minvalue 0 start 0")
    op.execute(_MAY_PROMOTE)
    op.create_table(
        "outbox",
        _xid(),
        sa.Column("number", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("put_off", sa.SmallInteger),
        sa.Column("address_id", sa.Integer, nullable=False),
        sa.Column("message", sa.LargeBinary, nullable=False),
        sa.Column("available_at", sa.DateTime(timezone=True)),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("priority", sa.SmallInteger, nullable=False),
        sa.Column("message_group", sa.BigInteger),
        schema=SCHEMA,
        prefixes=["UNLOGGED"],
        postgresql_with=_OPTIONS,
    )
    op.create_table(
        "enlistment",
        _xid(),
        sa.Column("txn_id", sa.Uuid, primary_key=True),
        sa.Column("put_off", sa.SmallInteger),
        sa.Column("decision", sa.Text, nullable=False),
        sa.CheckConstraint("decision in ('commit', 'rollback')", name="enlistment_decision_check"),
        schema=SCHEMA,
        prefixes=["UNLOGGED"],
        postgresql_with=_OPTIONS,
    )
    for statement in (*_MESSAGES, *_OUTBOX, *_ENLISTMENT):
        op.execute(statement)


def downgrade() -> None:
    op.execute("drop function coordinator.may_promote(int8, int8)")
    op.execute("drop sequence coordinator.promoted")
    op.drop_table("enlistment", schema=SCHEMA)
    op.drop_table("outbox", schema=SCHEMA)
    for function in _FUNCTIONS:
        op.execute(f"drop function coordinator.{function}")
