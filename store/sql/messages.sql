-- Encode and read AMQP messages in SQL (part 3, section 3.2). The encodings are the shortest that a type has, as most
-- clients choose them. The order of the functions is that of their calls: PostgreSQL checks SQL functions when it
-- creates them.

-- A value with a size: ``code`` is that of the short form, for up to 255 octets.
create function coordinator.amqp_sized(code int4, octets bytea) returns bytea language sql immutable as $$
  select case when octet_length(octets) < 256
              then decode(lpad(to_hex(code), 2, '0') || lpad(to_hex(octet_length(octets)), 2, '0'), 'hex')
              else decode(lpad(to_hex(code + 16), 2, '0'), 'hex') || int4send(octet_length(octets)) end || octets
$$;

-- A list (code 192) or map (193) of values that are encoded already.
create function coordinator.amqp_compound(code int4, octets bytea, number int4) returns bytea
language sql immutable as $$
  select case when code = 192 and number = 0 then '\x45'::bytea
              when octet_length(octets) < 255 and number < 256
              then decode(lpad(to_hex(code), 2, '0') || lpad(to_hex(octet_length(octets) + 1), 2, '0')
                          || lpad(to_hex(number), 2, '0'), 'hex')
              else decode(lpad(to_hex(code + 16), 2, '0'), 'hex') || int4send(octet_length(octets) + 4)
                   || int4send(number) end || octets
$$;

-- A list whose nulls at the end are left out.
create function coordinator.amqp_list(fields bytea[]) returns bytea language sql immutable as $$
  select coordinator.amqp_compound(192, coalesce(string_agg(coalesce(f.octets, '\x40'), '' order by f.place), ''),
                                count(*)::int4)
    from unnest(fields) with ordinality f(octets, place)
   where f.place <= (select max(g.place) from unnest(fields) with ordinality g(octets, place)
                      where g.octets is not null)
$$;

create function coordinator.amqp_unsigned(value numeric, zero bytea, small bytea, large bytea) returns bytea
language sql immutable as $$
  select case when value = 0 then zero when value < 256 then small || substring(int8send(value::int8) from 8)
              else large || substring(int8send(value::int8) from case when large = '\x70' then 5 else 1 end) end
$$;

-- A string, number, boolean or null of JSON as a value of the application properties.
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
end $$;

-- A field of the properties, of the type ``kind``.
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
end $$;

-- The section properties; nothing where none is given.
create function coordinator.amqp_properties(given jsonb) returns bytea language plpgsql immutable as $$
declare
  -- in the order of the section's fields
  names constant text[] := array['message-id', 'user-id', 'to', 'subject', 'reply-to', 'correlation-id', 'content-type',
    'content-encoding', 'absolute-expiry-time', 'creation-time', 'group-id', 'group-sequence', 'reply-to-group-id'];
  kinds constant text[] := array['id', 'binary', 'string', 'string', 'string', 'id', 'symbol',
    'symbol', 'timestamp', 'timestamp', 'string', 'uint', 'string'];
  unknown text;
  list bytea;
begin
  if given is null or given = '{}'::jsonb then
    return '';
  elsif jsonb_typeof(given) <> 'object' then
    raise exception 'coordinator.post: properties are an %, expected an object', jsonb_typeof(given)
      using errcode = 'invalid_parameter_value';
  end if;
  select min(k) into unknown from jsonb_object_keys(given) k where k <> all (names);
  if unknown is not null then
    raise exception 'coordinator.post: "%" is none of the properties of a message', unknown
      using errcode = 'invalid_parameter_value', hint = 'A property of your own goes into the headers.';
  end if;
  select coordinator.amqp_list(array_agg(
           case when given ? p.name then coordinator.amqp_property(p.name, p.kind, given -> p.name) end
           order by p.place))
    into list from unnest(names, kinds) with ordinality p(name, kind, place);
  return '\x005373'::bytea || list;
end $$;

-- The section application-properties.
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
end $$;

-- The sections of a message, as store/codec/message.py checks them: their order, the types of their values and
-- their sizes, and the fields of the header. Other values that hold values are not looked into. Returns at which
-- octet it is no message; null: it is one.
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
end $$;

-- The message group that a group-id names, as the services number it (message_group() in coordinator/group/lanes.py):
-- of an entry on an address of kind fifo. A number below 0.
create function coordinator.group_key(group_id text) returns int8 language sql immutable as $$
  select ('x' || encode(substring(sha256(convert_to(group_id, 'UTF8')) for 8), 'hex'))::bit(64)::int8 >> 1
         | (-9223372036854775807 - 1)
$$;


-- ---- The annotations of a message that is set aside: where it was posted, and why it is not there (rule H10).
--
-- The copies of a transaction are made in one SQL transaction, however many and however large they are: by PostgreSQL,
-- so that none of their octets come to an instance. Dead letters, which an instance makes one by one, say theirs in the
-- same way (``coordinator/address/dead_letters.py``): a test holds the two against each other.
--
-- Of a message that has more than 100 annotations, only the story is left where it has some of the story's already:
-- they are looked for pair by pair, which takes time. 10,000 pairs: the largest map that a reader takes.

-- The four octets after the first ``at``.
create function coordinator.amqp_number(octets bytea, at int4) returns int8 language sql immutable as $$
  select ('x' || encode(substring(octets from at + 1 for 4), 'hex'))::bit(32)::int8
$$;

-- The pairs of an encoded map, whose octets after its count are given. The key of a symbol or a string is its text.
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
end $$;

-- The sections before a bare message: where header and delivery annotations end, and all of them; and of the message
-- annotations the pairs, and how many.
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
end $$;

-- The message with ``story``, so many encoded pairs, added to its annotations, or put in the place of its own. A
-- message that cannot be read is the body.
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
end $$;
