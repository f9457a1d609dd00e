"""No application posts to an address of the service's own: what is there the service has put aside itself, with an op.

What the function does is said in ``store/application``; a test compares the catalogs of the two.
"""

from __future__ import annotations

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

_PUT = r"""
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
  end if;
  insert into coordinator.outbox (put_off, address_id, message, available_at, expires_at, priority, message_group)
  values (case when first then 0 end, posted_to.id, message,
          case when available > latest then latest else available end,
          case when expires < latest then greatest(expires, '2000-01-01 00:00Z') end,
          case when posted_to.kind = 'fifo' then 4 else least(coalesce(priority, 4), 255) end,
          case when posted_to.kind <> 'fifo' then null
               when group_id is null then 1 else coordinator.group_key(group_id) end);
end $$"""


def upgrade() -> None:
    op.execute(_PUT)


def downgrade() -> None:
    script = op.get_context().script
    assert script is not None
    earlier = script.get_revision("0021")
    assert earlier is not None
    put, _ = earlier.module._FUNCTIONS
    op.execute(put)
