"""What a message that is kept aside says in its octets: where it was posted, and why it is not there (rule H10).

The copies of a transaction are made in one SQL transaction, however many and however large they are: by PostgreSQL, so
that none of their octets come to an instance. Dead letters, which an instance makes one by one, say theirs in the same
way (``coordinator/address/dead_letters.py``): a test holds the two against each other.
"""

from __future__ import annotations

#: Pairs of the largest map that a reader takes.
MOST_PAIRS = 10_000
#: A message that was kept aside before has some of the story's annotations already. They are looked for pair by pair,
#: which takes time: of one that has more annotations than these, only the story is left.
MOST_LOOKED_AT = 100


def objects(schema: str) -> tuple[str, ...]:
    """The functions, in the order in which they are made."""
    return (_number(schema), _pairs(schema), _front(schema), _told(schema))


def _number(schema: str) -> str:
    # The four octets after the first ``at``.
    return f"""
create function {schema}.amqp_number(octets bytea, at int4) returns int8 language sql immutable as $$
  select ('x' || encode(substring(octets from at + 1 for 4), 'hex'))::bit(32)::int8
$$"""


def _pairs(schema: str) -> str:
    # The pairs of an encoded map, whose octets after its count are given. The key of a symbol or a string is its text.
    return f"""
create function {schema}.amqp_pairs(octets bytea, number int4) returns table (place int4, key bytea, pair bytea)
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
                             when kind >= 160 and kind >> 4 & 1 = 1 then 4 + {schema}.amqp_number(octets, at + 1)
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


def _front(schema: str) -> str:
    # The sections before a bare message: where header and delivery annotations end, and all of them; and of the message
    # annotations the pairs, and how many.
    return f"""
create function {schema}.amqp_front(
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
      value := 2 + (case kind when 163 then 1 + get_byte(section, 2) else 4 + {schema}.amqp_number(section, 2) end);
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
                                     else 4 + {schema}.amqp_number(section, value + 1) end);
    if ends > octet_length(message) then
      raise data_exception;
    elsif code < 114 then
      before := ends;
    elsif kind = 193 then
      number := get_byte(section, value + 2) / 2;
      own := substring(message from rest + value + 4 for ends - rest - value - 3);
    else
      number := {schema}.amqp_number(section, value + 5) / 2;
      own := substring(message from rest + value + 10 for ends - rest - value - 9);
    end if;
    rest := ends;
  end loop;
end $$"""


def _told(schema: str) -> str:
    # The message with ``story``, so many encoded pairs, added to its annotations, or put in the place of its own. A
    # message that cannot be read is the body.
    return f"""
create function {schema}.told(message bytea, story bytea, pairs int4) returns bytea language plpgsql immutable as $$
declare
  front record;
  own bytea;
  number int4;
begin
  select * into front from {schema}.amqp_front(message);
  own := front.own;
  number := front.number;
  if exists (select from {schema}.amqp_pairs(story, pairs) s where position(s.key in own) > 0) then
    select coalesce(string_agg(o.pair, '' order by o.place), ''), count(*) into own, number
      from {schema}.amqp_pairs(own, case when number <= {MOST_LOOKED_AT} then number else 0 end) o
     where o.key not in (select s.key from {schema}.amqp_pairs(story, pairs) s);
  elsif number + pairs > {MOST_PAIRS} then
    own := '';
    number := 0;
  end if;
  return substring(message for front.before) || '\\x005372d1' || int4send(octet_length(own || story) + 4)
         || int4send(2 * (number + pairs)) || own || story || substring(message from front.rest + 1);
exception when data_exception then
  return '\\x005372d1' || int4send(octet_length(story) + 4) || int4send(2 * pairs) || story
         || '\\x005375b0' || int4send(octet_length(message)) || message;
end $$"""
