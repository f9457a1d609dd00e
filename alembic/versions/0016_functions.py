"""The functions for applications as they are now, in every store: those of 0013 were changed after some were made.

Each function of 0013 is made again, and then those that have changed since. So are the iterations of a verifier, which
0015 got a bound for. What the functions do is said in ``store/application``; a test compares the catalogs of the two.
"""

from __future__ import annotations

from types import ModuleType

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

#: One of the transactions that commit at one time gives the notice.
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
  turn := pg_try_advisory_xact_lock(7165068069439501417)
    or case when octet_length(current_query()) < 10000 then current_query() ~* '\mprepare\M' else true end;
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
  if turn then
    perform pg_notify('coordinator_due', ((extract(epoch from first_due) - 946684800) * 1000000)::int8::text);
  end if;
  return null;
end $$"""

_BOUND = """
alter table coordinator.user_verifier
  add constraint user_verifier_iterations_check check (iterations between 4096 and 65536)"""
_UNBOUND = "alter table coordinator.user_verifier drop constraint if exists user_verifier_iterations_check"


def _of_0013() -> list[str]:
    script = op.get_context().script
    assert script is not None
    revision = script.get_revision("0013")
    assert revision is not None
    module: ModuleType = revision.module
    statements = (module._MAY_PROMOTE, *module._MESSAGES, *module._OUTBOX, *module._ENLISTMENT)
    return [
        each.replace("create function", "create or replace function", 1)
        for each in statements
        if "create constraint trigger" not in each
    ]


def upgrade() -> None:
    op.execute("drop function if exists coordinator.may_promote(int8)")
    op.execute("alter sequence coordinator.promoted minvalue 0 start 0")
    for statement in (*_of_0013(), _SEND, _UNBOUND, _BOUND):
        op.execute(statement)


def downgrade() -> None:
    for statement in (*_of_0013(), _UNBOUND):
        op.execute(statement)
