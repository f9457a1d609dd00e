"""No message has a time that programs cannot read; what says no expiry in SQL has none.

``coordinator.post`` gave each message an expiry, in the year 287168 where none was said. What the functions do is said
in ``store/application``; a test compares the catalogs of the two.
"""

from __future__ import annotations

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_FUNCTIONS = (
    r"""
create or replace function coordinator.put_into_outbox(
  name text, message bytea, available timestamptz, expires timestamptz, priority int4, group_id text)
returns void language plpgsql set enable_seqscan = off as $$
declare
  posted_to record;
  first constant boolean := not exists (select from coordinator.outbox o where o.xid = pg_current_xact_id());
  latest constant timestamptz := '9999-12-30 00:00Z';
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
  values (case when first then 0 end, posted_to.id, message,
          case when available > latest then latest else available end,
          case when expires < latest then greatest(expires, '2000-01-01 00:00Z') end,
          case when posted_to.kind = 'fifo' then 4 else least(coalesce(priority, 4), 255) end,
          case when posted_to.kind <> 'fifo' then null
               when group_id is null then 1 else coordinator.group_key(group_id) end);
end $$""",
    r"""
create or replace function coordinator.post_body(name text, body bytea,
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
          case when (given ->> 'absolute-expiry-time')::float8 between 1 and 253402128000000
               then to_timestamp((given ->> 'absolute-expiry-time')::float8 / 1000) end), priority,
    given ->> 'group-id');
end $$""",
)

#: Of what is there; the rows with such times are found by an index.
_BOUNDED = (
    "update coordinator.entry set expires_at = null where expires_at >= '9999-12-30 00:00Z'",
    "update coordinator.entry set expires_at = '2000-01-01 00:00Z' where expires_at < '2000-01-01 00:00Z'",
    "update coordinator.entry set available_at = '9999-12-30 00:00Z' where available_at > '9999-12-30 00:00Z'",
    "update coordinator.pending set expires_at = null where expires_at >= '9999-12-30 00:00Z'",
    "update coordinator.pending set available_at = '9999-12-30 00:00Z' where available_at > '9999-12-30 00:00Z'",
)


def _of_0013() -> list[str]:
    script = op.get_context().script
    assert script is not None
    revision = script.get_revision("0013")
    assert revision is not None
    changed = ("create function coordinator.put_into_outbox(", "create function coordinator.post_body(")
    return [
        each.replace("create function", "create or replace function", 1)
        for each in revision.module._OUTBOX
        if each.lstrip().startswith(changed)
    ]


def upgrade() -> None:
    for statement in (*_FUNCTIONS, *_BOUNDED):
        op.execute(statement)


def downgrade() -> None:
    for statement in _of_0013():
        op.execute(statement)
