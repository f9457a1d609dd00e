"""``coordinator.post``, in the SQL transaction of an application (X2).

**Decision.** A post writes one row of ``outbox``, which no other transaction ever sees, and takes no lock on any row of
the store. At the commit of the application a deferred trigger makes halves and entries of its rows, once for all.
So an application that leaves its transaction open for hours holds up no removal of an address, no end of a
subscription and no retention; the groups that get the message are those there are at the commit; and halves and
entries have ids and times of the commit, so that none comes late to what services have read already.

An entry becomes due at once, and the schedule (D7) gives it its place, as it does for entries that a process without an
instance makes by a decision. The notice tells from when on there is something due: a commit may take long, too.

Whether rows of the transaction wait for its commit is in a setting of its own, which a rollback to a savepoint takes
back with them: a look into the outbox, in a transaction that is serializable, is one at what others write beside it,
and one in twenty of them failed. Where an application resets it, its next post is taken for the first, too, and its
trigger finds nothing to do.

PostgreSQL commits one transaction with a notice at a time, so that each would have a flush of the disk to itself. One
of those that are about to commit has the turn, and gives the notice; the others are found by the looks after it. What
may be a ``prepare transaction`` gives one in any case: that is what PostgreSQL refuses it for.
"""

from __future__ import annotations

from store.channels import DUE
from store.commit.terms import LATEST_MS

#: The largest message: what a service takes unless its settings say otherwise (``limits.max_message_size_bytes``).
MOST_OCTETS = 100 << 20

#: :data:`store.commit.terms.LATEST` as PostgreSQL reads it. (What is to expire before 2000 does so in 2000: programs
#: have no times before year 1.)
_LATEST = "9999-12-30 00:00Z"

#: An advisory lock: the transaction that has it gives the notice.
TURN_LOCK = 0x636F6F72_6E6F7469  # "coornoti"

#: Whether the SQL transaction may be one that is to be prepared.
MAY_PREPARE = r"""case when octet_length(current_query()) < 10000
      then current_query() ~* '\mprepare\M' else true end"""

#: No address of that name.
NO_ADDRESS = "CO006"
#: The address does not take such a message.
NOT_TAKEN = "CO007"
#: The store has no partition for today: no service has run for two weeks.
NO_DAY = "CO010"
#: At the commit: the address was removed after the post.
ADDRESS_GONE = "CO003"

#: What all three forms of ``post`` take besides the body, as their declaration and as a call.
_TERMS = (
    "\n  properties jsonb default null, headers jsonb default null, group_id text default null,"
    "\n  delay interval default null, deliver_at timestamptz default null, ttl interval default null,"
    "\n  priority int4 default null"
)
_GIVEN = "properties,\n    headers, group_id, delay, deliver_at, ttl, priority"
#: No schema of the session comes first: what runs with the rights of the store names what it uses. A trigger function
#: is for no other table: at one of another role it would compare, and so cast, values of types of that role.
DEFINER = "security definer set search_path = pg_catalog, pg_temp\nset standard_conforming_strings = on"


def objects(schema: str) -> tuple[str, ...]:
    """Functions and triggers, in the order in which they are made."""
    return (
        f"alter table {schema}.outbox alter column message set storage external",
        _put(schema),
        _post_octets(schema),
        _compose(schema),
        *_posts(schema),
        _send(schema),
        f"""
create constraint trigger outbox_sent after insert or update on {schema}.outbox deferrable initially deferred
  for each row when (new.put_off is not null) execute function {schema}.send_outbox()""",
        f"alter table {schema}.outbox enable always trigger outbox_sent",
        *(f"revoke execute on function\n  {each} from public" for each in signatures(schema)),
        f"revoke execute on function {schema}.send_outbox() from public",
    )


def put_off(table: str, trigger: str, row: str) -> str:
    """The beginning of a trigger function that has ``calls text``. ``table``: with its alias; ``row``: which of its SQL
    transaction fired the trigger.

    An application may have its constraints looked at before the commit (``set constraints all immediate``). What has to
    wait for the commit is put off then, and once in any case: only that statement, or a function that it was called in,
    says of itself that it is no commit. In a long statement, whose text would be another copy of its messages, it is
    not seen: then the second of them is taken for the commit.
    """
    alias = table.rpartition(" ")[2]
    return f"""  get diagnostics calls = pg_context;
  if new.put_off = 0 or new.put_off < 100 and exists (
    select from unnest(array[current_query(), calls]) t(text)
     where case when octet_length(t.text) < 10000 then t.text ~* '\\mset\\s+constraints\\M' end) then
    set constraints {trigger} deferred;
    update {table} set put_off = {alias}.put_off + 1 where {alias}.xid = new.xid and {row};
    return null;
  end if;"""


def micros(moment: str) -> str:
    """A time as a notice has it, in microseconds since 2000: SQL."""
    return f"((extract(epoch from {moment}) - 946684800) * 1000000)::int8::text"


def signatures(schema: str) -> tuple[str, ...]:
    """What an application may call."""
    terms = "jsonb, jsonb, text, interval, timestamptz, interval, int4"
    return (
        *(f"{schema}.post(text, {body}, {terms})" for body in ("text", "bytea", "jsonb")),
        f"{schema}.post_octets(text, bytea, timestamptz, timestamptz, int4, text)",
    )


def _put(schema: str) -> str:
    # Null: the message says nothing of it. A message group of its own is 1, as in the table pending.
    return f"""
create function {schema}.put_into_outbox(
  name text, message bytea, available timestamptz, expires timestamptz, priority int4, group_id text)
returns void language plpgsql set enable_seqscan = off as $$
declare
  posted_to record;
  first constant boolean := current_setting('{schema}.posting', true) is distinct from pg_current_xact_id()::text;
  latest constant timestamptz := '{_LATEST}';
begin
  if octet_length(message) > {MOST_OCTETS} then
    raise exception 'coordinator.post: the message has % octets, at most {MOST_OCTETS} were expected',
      octet_length(message) using errcode = 'program_limit_exceeded';
  elsif not isfinite(available) or not isfinite(expires) then
    raise exception 'coordinator.post: a time is infinite' using errcode = 'invalid_parameter_value';
  end if;
  select a.id, a.kind into posted_to from {schema}.address a where a.name = put_into_outbox.name;
  if not found then
    raise exception 'coordinator.post: there is no address "%"', left(name, 100) using errcode = '{NO_ADDRESS}',
      hint = 'Make it with: coordinator address add';
  elsif left(name, 5) = '%DLQ%' or name = 'TRANS_CHECK_MAX_TIME_TOPIC' then
    raise exception 'coordinator.post: the address "%" is the service''s own, and takes no posts', left(name, 100)
      using errcode = '{NOT_TAKEN}';
  elsif posted_to.kind = 'transaction' and available is not null then
    raise exception 'coordinator.post: the address "%" is of kind transaction: its messages cannot be delivered later',
      name using errcode = '{NOT_TAKEN}';
  elsif posted_to.kind = 'delay' and available is null then
    raise exception 'coordinator.post: the address "%" is of kind delay, and the message came without a delay', name
      using errcode = '{NOT_TAKEN}';
  end if;
  if first then
    set constraints {schema}.outbox_sent deferred;
    perform set_config('{schema}.posting', pg_current_xact_id()::text, true);
  end if;
  insert into {schema}.outbox (put_off, address_id, message, available_at, expires_at, priority, message_group)
  values (case when first then 0 end, posted_to.id, message,
          case when available > latest then latest else available end,
          case when expires < latest then greatest(expires, '2000-01-01 00:00Z') end,
          case when posted_to.kind = 'fifo' then 4 else least(coalesce(priority, 4), 255) end,
          case when posted_to.kind <> 'fifo' then null
               when group_id is null then 1 else {schema}.group_key(group_id) end);
end $$"""


def _compose(schema: str) -> str:
    return f"""
create function {schema}.post_body(name text, body bytea,{_TERMS.replace(" default null", "")})
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
    given := coalesce(given, '{{}}') || jsonb_build_object('group-id', group_id);
  end if;
  perform {schema}.put_into_outbox(
    name,
    '\\x005370'::bytea || {schema}.amqp_list(array[
      '\\x41'::bytea, '\\x50'::bytea || substring(int8send(priority) from 8),
      {schema}.amqp_unsigned(ttl_ms, '\\x43', '\\x52', '\\x70')])
    || {schema}.amqp_properties(given) || {schema}.amqp_headers(headers) || body,
    greatest(deliver_at, clock_timestamp() + nullif(delay, interval '0')),
    least(clock_timestamp() + ttl,
          case when (given ->> 'absolute-expiry-time')::float8 between 1 and {LATEST_MS}
               then to_timestamp((given ->> 'absolute-expiry-time')::float8 / 1000) end), priority,
    given ->> 'group-id');
end $$"""


def _posts(schema: str) -> tuple[str, ...]:
    # The body is an amqp-value of type string, a section of data, or data of the content-type application/json.
    bodies = {
        "text": (f"'\\x005377'::bytea || {schema}.amqp_sized(161, convert_to(body, 'UTF8'))", "properties"),
        "bytea": (f"'\\x005375'::bytea || {schema}.amqp_sized(160, body)", "properties"),
        "jsonb": (
            f"'\\x005375'::bytea || {schema}.amqp_sized(160, convert_to(body::text, 'UTF8'))",
            "case when jsonb_typeof(properties) in ('object', 'null') or properties is null then\n      "
            "'{\"content-type\": \"application/json\"}' || coalesce(nullif(properties, 'null'), '{}')\n    "
            "else properties end",
        ),
    }
    return tuple(
        f"""
create function {schema}.post(address text, body {kind},{_TERMS}) returns void
language plpgsql {DEFINER}
as $$
begin
  if octet_length(body{"::text" if kind == "jsonb" else ""}) > {MOST_OCTETS} then
    raise exception 'coordinator.post: the body has % octets, at most {MOST_OCTETS} were expected',
      octet_length(body{"::text" if kind == "jsonb" else ""}) using errcode = 'program_limit_exceeded';
  end if;
  perform {schema}.post_body(
    address,
    {encoded},
    {_GIVEN.replace("properties", told, 1)});
end $$"""
        for kind, (encoded, told) in bodies.items()
    )


def _post_octets(schema: str) -> str:
    # A whole message, as a client sends it. What it says of its own delivery is told beside it.
    return f"""
create function {schema}.post_octets(
  address text, message bytea, available_at timestamptz default null, expires_at timestamptz default null,
  priority int4 default null, group_id text default null)
returns void language plpgsql {DEFINER}
as $$
begin
  if address is null or message is null then
    raise exception 'coordinator.post_octets: expected an address and a message, not null'
      using errcode = 'null_value_not_allowed';
  elsif {schema}.not_a_message_at(message) is not null then
    raise exception 'coordinator.post_octets: expected a section of a message at octet %',
      {schema}.not_a_message_at(message) using errcode = 'invalid_parameter_value';
  elsif priority not between 0 and 255 then
    raise exception 'coordinator.post_octets: the priority is %, expected 0 to 255', priority
      using errcode = 'invalid_parameter_value';
  end if;
  perform {schema}.put_into_outbox(address, message, available_at, expires_at, priority, group_id);
end $$"""


def _send(schema: str) -> str:
    # The rows of this transaction become messages, in order. Addresses are locked as by a batch: one that is removed
    # meanwhile refuses the commit, and one that is to be removed waits for the rest of it.
    return f"""
create function {schema}.send_outbox() returns trigger
language plpgsql {DEFINER} set enable_seqscan = off as $$
declare
  posted record;
  half_id int8 := 0;
  due timestamptz;
  first_due constant timestamptz := clock_timestamp();
  turn boolean;
  calls text;
begin
{put_off(f"{schema}.outbox o", f"{schema}.outbox_sent", "o.number = new.number")}
  turn := pg_try_advisory_xact_lock({TURN_LOCK}) or {MAY_PREPARE};
  due := clock_timestamp();
  if exists (
    select from (select distinct o.address_id from {schema}.outbox o where o.xid = new.xid order by 1) used
      left join lateral (
        select a.id from {schema}.address a where a.id = used.address_id for key share) a on true
     where a.id is null) then
    raise exception 'coordinator.post: an address was removed after a message was posted to it'
      using errcode = '{ADDRESS_GONE}';
  end if;
  if to_regclass('{schema}.half_' || to_char(clock_timestamp() at time zone 'UTC', 'YYYYMMDD')) is null then
    raise exception 'coordinator.post: the store has no partition for today' using errcode = '{NO_DAY}',
      hint = 'The service makes partitions for two weeks ahead: start it.';
  end if;
  for posted in select o.number from {schema}.outbox o where o.xid = new.xid order by o.number loop
    due := greatest(clock_timestamp(), due + interval '1 microsecond');
    half_id := {schema}.outbox_id(posted.number, half_id);
    loop
      insert into {schema}.half (id, address_id, message, posted_at)
      select half_id, o.address_id, o.message, due
        from {schema}.outbox o where o.xid = new.xid and o.number = posted.number
      on conflict do nothing;
      exit when found;
      half_id := {schema}.outbox_id(nextval(pg_get_serial_sequence('{schema}.outbox', 'number')), half_id);
    end loop;
    insert into {schema}.entry (group_id, id, half_id, expires_at, available_at, priority, message_group)
    select g.id, half_id, half_id, o.expires_at, greatest(o.available_at, due), o.priority,
           case o.message_group when 1 then half_id else o.message_group end
      from {schema}.outbox o join {schema}.consumer_group g on g.address_id = o.address_id
     where o.xid = new.xid and o.number = posted.number for key share of g;
  end loop;
  delete from {schema}.outbox o where o.xid = new.xid;
  perform set_config('{schema}.posting', '', true);
  if turn then
    perform pg_notify('{DUE}', {micros("first_due")});
  end if;
  return null;
end $$"""
