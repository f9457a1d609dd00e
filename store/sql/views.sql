-- Views for persons (H18), and for the functions and programs. Tables have singular names, these views plural ones;
-- docs/how-to/watch-it-run.md says what reading each costs.

-- All halves of undecided checkable transactions.
create view coordinator.pending_half as
  select p.txn_id, p.half_id, p.address_id, p.expires_at, p.available_at, p.priority, p.message_group, p.left_out
    from coordinator.pending p
  union all
  select t.id, f.half_id, t.address_id, null, null, 4::int2, null, null
    from coordinator.txn t cross join lateral unnest(t.half_ids) f(half_id);

-- H15: the outcome of a transaction.
create view coordinator.outcome as
  select id as txn_id, decision as outcome, reason, posted, coalesce(cardinality(half_ids), 0) as retired,
         decided_at, instance_id
    from coordinator.op where decision in ('commit', 'rollback')
  union all
  select t.id, 'undecided', null,
         case when t.producer_group is null then t.posted
              else coalesce(cardinality(t.half_ids), 0)
                   + (select count(*)::int4 from coordinator.pending p where p.txn_id = t.id) end,
         case when t.producer_group is null then t.retired
              else (select count(*)::int4 from coordinator.pending_retirement r where r.txn_id = t.id) end,
         null, t.instance_id
    from coordinator.txn t where not exists (select from coordinator.op o where o.id = t.id);

-- Whether an entry is inflight: as store/recovery.py has it. ``through`` is how far the group's holder has read.
create view coordinator.entries as
  select a.name as address, g.name as consumer_group, e.id as entry_id, e.half_id,
         case when e.failed is not null then 'failed'
              when e.lease <> 0 or e.priority = 4 and e.available_at is null and e.id <= r.through
              then 'inflight'
              when e.available_at > now() then 'scheduled'
              else 'ready' end as state,
         e.attempts, e.priority, e.available_at, e.expires_at, e.failed as failed_for, a.id as address_id,
         g.id as group_id, e.failures
    from coordinator.consumer_group g
    join coordinator.address a on a.id = g.address_id
    left join lateral (select max(n.read_through) as through from coordinator.group_read n
                        where n.group_id = g.id and n.instance_id = g.holder) r on true
    join coordinator.entry e on e.group_id = g.id;

create view coordinator.groups as
  select a.name as address, g.name as consumer_group, g.instance_id is not null as volatile,
         c.ready, c.inflight, c.scheduled, c.failed, g.created_at, a.id as address_id, g.id as group_id,
         coalesce(g.on_expiry, a.on_expiry) as on_expiry, coalesce(g.max_attempts, a.max_attempts) as max_attempts,
         coalesce(g.retry, a.retry) as retry,
         array_remove(array[case when g.on_expiry is not null then 'on_expiry' end,
                            case when g.max_attempts is not null then 'max_attempts' end,
                            case when g.retry is not null then 'retry' end], null) as own_policies,
         g.paused_at, g.paused_by, g.paused_for
    from coordinator.consumer_group g
    join coordinator.address a on a.id = g.address_id
    cross join lateral (
      select count(*) filter (where e.state = 'ready') as ready,
             count(*) filter (where e.state = 'inflight') as inflight,
             count(*) filter (where e.state = 'scheduled') as scheduled,
             count(*) filter (where e.state = 'failed') as failed
        from coordinator.entries e where e.group_id = g.id) c;

create view coordinator.addresses as
  select a.name as address, a.routing, a.kind, a.origin, c.groups, coalesce(u.halves, 0) as pending,
         c.ready, c.inflight, c.scheduled, c.failed, a.created_at, a.id as address_id
    from coordinator.address a
    left join (select p.address_id, count(*) as halves from coordinator.pending_half p group by p.address_id) u
      on u.address_id = a.id
    cross join lateral (
      select count(*) as groups, coalesce(sum(g.ready), 0)::int8 as ready,
             coalesce(sum(g.inflight), 0)::int8 as inflight, coalesce(sum(g.scheduled), 0)::int8 as scheduled,
             coalesce(sum(g.failed), 0)::int8 as failed
        from coordinator.groups g where g.address_id = a.id) c;

-- ``posted`` and ``retired`` of a plain transaction: as its instance last wrote them.
create view coordinator.undecided as
  select t.id as txn_id, now() - t.declared_at as age, t.owner, t.producer_group,
         case when t.producer_group is null then t.posted
              else coalesce(cardinality(t.half_ids), 0)
                   + (select count(*)::int4 from coordinator.pending p where p.txn_id = t.id) end as posted,
         case when t.producer_group is null then t.retired
              else (select count(*)::int4 from coordinator.pending_retirement r where r.txn_id = t.id) end as retired,
         array(select distinct a.name from coordinator.pending_half p join coordinator.address a on a.id = p.address_id
                where p.txn_id = t.id order by a.name) as addresses,
         t.declared_at, t.timeout_at, t.checks, t.next_check_at, t.instance_id
    from coordinator.txn t where not exists (select from coordinator.op o where o.id = t.id);

-- One row a half and consumer group; a half without a group, or not committed yet, has one row whose group is null.
create view coordinator.messages as
  with ended as (
    select distinct on (u.half_id, u.group_id) u.half_id, u.group_id,
           case when o.decision in ('commit', 'accept') then 'acked' when o.decision = 'expire' then 'expired'
                when o.decision = 'dead-letter' then 'dead-lettered' else 'purged' end as state
      from coordinator.op o cross join lateral unnest(o.half_ids, o.group_ids) u(half_id, group_id)
     where o.decision in ('commit', 'accept', 'expire', 'dead-letter', 'purge')
     order by u.half_id, u.group_id, o.decided_at desc)
  select h.id as half_id, coalesce(a.name, r.name) as address, g.name as consumer_group,
         case when p.half_id is not null or t.id is not null then 'pending'
              when d.decision = 'rollback' then 'rolled-back'
              when h.txn_id is not null and d.id is null then 'unknown'
              else coalesce(e.state, n.state, 'no-entry') end as state,
         h.txn_id, h.posted_at, d.decided_at, octet_length(h.message) as octets
    from coordinator.half h
    left join coordinator.address a on a.id = h.address_id
    left join coordinator.removed_address r on r.id = h.address_id
    left join coordinator.pending p on p.txn_id = h.txn_id and p.half_id = h.id
    left join coordinator.txn t on t.id = h.txn_id and h.id = any(t.half_ids)
    left join coordinator.op d on d.id = h.txn_id
    left join coordinator.consumer_group g
      on g.address_id = h.address_id and (h.txn_id is null or d.decision = 'commit')
    left join coordinator.entries e on e.group_id = g.id and e.half_id = h.id
    left join ended n on n.group_id = g.id and n.half_id = h.id;

-- R32: the findings of the runs that are stored.
create view coordinator.findings as
  select f.run_id as run, coalesce(f.seen_at, r.seen_at) as seen_at, f.kind, f.severity, f.txn_id, f.half_id, f.address,
         f.consumer_group, f.detail, f.suggested_repair, f.number
    from coordinator.finding f join coordinator.run r on r.id = f.run_id;

-- Connections of instances that live, also the last that have ended; and the first hundred links of each.
create view coordinator.connections as
  select c.instance_id || '-' || c.number as connection, c.user_name, c.host, c.port, c.container_id, c.product,
         c.version, c.tls, c.opened_at, c.sessions, c.links, c.unsettled, c.posted, c.delivered, c.posted_per_second,
         c.delivered_per_second, c.last_error, c.closed_at, c.close_reason, c.written_at, c.instance_id
    from coordinator.connection c
    join coordinator.instance i on i.id = c.instance_id and i.ended_at is null;

create view coordinator.links as
  select c.instance_id || '-' || c.number as connection, l.name, l.role, l.address, l.credit, l.unsettled, l.deliveries,
         c.instance_id
    from coordinator.connection c
    join coordinator.instance i on i.id = c.instance_id and i.ended_at is null
    cross join lateral jsonb_to_recordset(c.link_list)
      l(name text, role text, address text, credit int4, unsettled int4, deliveries int8)
   where c.closed_at is null;
