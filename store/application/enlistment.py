"""``coordinator.discharge``, in the SQL transaction of an application (X3).

**Decision.** A discharge writes one row of ``enlistment``, which no other transaction ever sees, and locks nothing of
the transaction. It decides at the commit of the application, in a deferred trigger, as every other does
(``decide_all``): the first decision wins. So while the application's transaction is open, clients, checkers and
operators decide as if it were not there. Where one of them was first and decided otherwise, the commit of the
application fails, and with it its rows are rolled back: both sides agree.
"""

from __future__ import annotations

from store.application.outbox import DEFINER, MAY_PREPARE, put_off
from store.channels import DUE
from store.reasons import APPLICATION

#: Nothing of the transaction is in the store, or it is no checkable one.
NOT_THERE = "CO008"
#: It is decided, otherwise than asked.
DECIDED_OTHERWISE = "CO009"


def objects(schema: str) -> tuple[str, ...]:
    """Functions and triggers, in the order in which they are made."""
    return (
        _discharge(schema),
        _decide(schema),
        f"""
create constraint trigger enlistment_decided after insert or update on {schema}.enlistment
  deferrable initially deferred for each row when (new.put_off is not null)
  execute function {schema}.decide_enlisted()""",
        f"alter table {schema}.enlistment enable always trigger enlistment_decided",
        *(f"revoke execute on function\n  {each} from public" for each in signatures(schema)),
        f"revoke execute on function {schema}.decide_enlisted() from public",
    )


def signatures(schema: str) -> tuple[str, ...]:
    """What an application may call."""
    return (f"{schema}.discharge(uuid, bool)",)


def _discharge(schema: str) -> str:
    # True: the commit of this SQL transaction will decide; false: it is decided so already.
    return f"""
create function {schema}.discharge(txn_id uuid, fail boolean default false) returns boolean
language plpgsql {DEFINER} set enable_seqscan = off as $$
declare
  wanted constant text := case when fail then 'rollback' else 'commit' end;
  before text;
  checked boolean;
  first constant boolean := not exists (select from {schema}.enlistment e where e.xid = pg_current_xact_id());
begin
  if txn_id is null or fail is null then
    raise exception 'coordinator.discharge: expected a txn-id, and whether it fails, not null'
      using errcode = 'null_value_not_allowed';
  end if;
  select o.decision into before from {schema}.op o where o.id = discharge.txn_id and o.posted is not null;
  if before is null then
    select t.producer_group is not null into checked from {schema}.txn t where t.id = discharge.txn_id;
    if checked is null then
      raise exception 'coordinator.discharge: the store has nothing of the transaction %', txn_id
        using errcode = '{NOT_THERE}', hint = 'Its txn-id is of another store, its posts have not been answered yet, '
          'or the snapshot of this SQL transaction is older than they are.';
    elsif not checked then
      raise exception 'coordinator.discharge: the transaction % is not checkable: its client has its messages', txn_id
        using errcode = '{NOT_THERE}', hint = 'Its control link, or its first message, names a producer group.';
    end if;
    select e.decision into before from {schema}.enlistment e
     where e.xid = pg_current_xact_id() and e.txn_id = discharge.txn_id;
  end if;
  if before <> wanted then
    raise exception 'coordinator.discharge: the transaction % is decided: %', txn_id, before
      using errcode = '{DECIDED_OTHERWISE}';
  elsif before is not null then
    return exists (select from {schema}.enlistment e
                    where e.xid = pg_current_xact_id() and e.txn_id = discharge.txn_id);
  end if;
  if first then
    set constraints {schema}.enlistment_decided deferred;
  end if;
  insert into {schema}.enlistment (put_off, txn_id, decision) values (case when first then 0 end, txn_id, wanted);
  return true;
end $$"""


def _decide(schema: str) -> str:
    # All of this SQL transaction together: locks are taken in the order of their ids, as by any other decision. Others
    # are told a decision when it can be seen: it is durable by then, whatever the application asks for its commits.
    # After a notice PostgreSQL refuses to prepare the transaction.
    return f"""
create function {schema}.decide_enlisted() returns trigger
language plpgsql {DEFINER} set enable_seqscan = off as $$
declare
  txns uuid[];
  decisions text[];
  lost record;
  calls text;
begin
{put_off(f"{schema}.enlistment e", f"{schema}.enlistment_decided", "e.txn_id = new.txn_id")}
  if exists (select from pg_cursors c where c.is_holdable and c.creation_time >= transaction_timestamp()) then
    raise exception 'coordinator.discharge: a cursor with hold is open' using errcode = 'invalid_cursor_state',
      hint = 'Close it: the commit would read it to its end, and hold the AMQP transaction meanwhile.';
  end if;
  select array_agg(e.txn_id), array_agg(e.decision) into txns, decisions
    from {schema}.enlistment e where e.xid = new.xid;
  select d.txn_id, u.decision as wanted into lost
    from {schema}.decide_all(txns, decisions, array_fill('{APPLICATION}'::text, array[cardinality(txns)]), null,
                             '{{}}', '{{}}', '{{}}', null, shared => true) d
    join unnest(txns, decisions) u(txn_id, decision) on u.txn_id = d.txn_id
   where not d.won and not exists (select from {schema}.op o where o.id = d.txn_id and o.decision = u.decision);
  if found then
    raise exception 'coordinator.discharge: the transaction % was decided meanwhile, and not by %', lost.txn_id,
      lost.wanted using errcode = '{DECIDED_OTHERWISE}';
  end if;
  delete from {schema}.enlistment e where e.xid = new.xid;
  perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') in ('off', 'local');
  if ({MAY_PREPARE}) then
    perform pg_notify('{DUE}', '');
  end if;
  return null;
end $$"""
