"""The store: addresses and groups, halves and ops, entries, undecided transactions, instances.

What a table means is said in ``store/tables.py``; a test compares the catalogs of the two. One file because it is the
first version: nothing that is released came before it.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SCHEMA = "coordinator"
_now = sa.text("now()")


class _Xid8(sa.types.UserDefinedType[int]):
    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "xid8"


def _written() -> sa.Column[int]:
    return sa.Column("written_xid", _Xid8, nullable=False, server_default=sa.text("pg_current_xact_id()"))


def upgrade() -> None:
    _identity()
    _addresses()
    _consumer_groups()
    _removed()
    _halves_and_ops()
    _append_only()
    _days()
    _refusals()
    _entries()
    _entry_indexes()
    _message_groups()
    _transactions()
    _outcome()
    _instances()
    _sole_connections()


def _identity() -> None:
    op.create_table(
        "store_identity",
        sa.Column("singleton", sa.Boolean, server_default=sa.text("true"), nullable=False),
        sa.Column("id", sa.Text, nullable=False, server_default=sa.text("substr(md5(gen_random_uuid()::text), 1, 8)")),
        sa.Column(
            "secret",
            sa.LargeBinary,
            nullable=False,
            server_default=sa.text(
                "decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')"
            ),
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=_now),
        sa.PrimaryKeyConstraint("singleton", name="store_identity_pkey"),
        sa.CheckConstraint("singleton", name="store_identity_one_row_check"),
        schema=SCHEMA,
    )
    # The name of this store, for as long as it lives.
    op.execute("insert into coordinator.store_identity default values")


def _addresses() -> None:
    op.create_table(
        "address",
        sa.Column("id", sa.Integer, sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("routing", sa.Text, nullable=False, server_default="queue"),
        sa.Column("kind", sa.Text, nullable=False, server_default="normal"),
        sa.Column("on_expiry", sa.Text, nullable=False, server_default="drop"),
        sa.Column("max_attempts", sa.SmallInteger, nullable=False, server_default="16"),
        sa.Column("retention_hours", sa.Integer),
        sa.Column("origin", sa.Text, nullable=False, server_default="administration"),
        sa.Column("instance_id", sa.Integer),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=_now),
        sa.PrimaryKeyConstraint("id", name="address_pkey"),
        sa.UniqueConstraint("name", name="address_name_key"),
        sa.CheckConstraint("length(name) between 1 and 1024", name="address_name_check"),
        sa.CheckConstraint("routing in ('queue', 'topic')", name="address_routing_check"),
        sa.CheckConstraint("kind in ('normal', 'transaction', 'fifo', 'delay', 'mixed')", name="address_kind_check"),
        sa.CheckConstraint("on_expiry in ('drop', 'dead-letter')", name="address_on_expiry_check"),
        sa.CheckConstraint("max_attempts >= 1", name="address_max_attempts_check"),
        sa.CheckConstraint("retention_hours >= 1", name="address_retention_hours_check"),
        sa.CheckConstraint(
            "origin in ('administration', 'use', 'dynamic', 'dead-letter')", name="address_origin_check"
        ),
        sa.CheckConstraint("(origin = 'dynamic') = (instance_id is not null)", name="address_dynamic_owner_check"),
        schema=SCHEMA,
    )


def _consumer_groups() -> None:
    op.create_table(
        "address_use",
        sa.Column("address_id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=False, server_default=_now),
        sa.PrimaryKeyConstraint("address_id", name="address_use_pkey"),
        sa.ForeignKeyConstraint(
            ["address_id"], [f"{SCHEMA}.address.id"], name="address_use_address_id_fkey", ondelete="CASCADE"
        ),
        schema=SCHEMA,
    )
    op.create_table(
        "consumer_group",
        sa.Column("id", sa.Integer, sa.Identity(always=True), nullable=False),
        sa.Column("address_id", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False, server_default=""),
        sa.Column("instance_id", sa.Integer),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=_now),
        sa.Column("holder", sa.Integer, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("id", name="consumer_group_pkey"),
        sa.UniqueConstraint("address_id", "name", name="consumer_group_address_id_key"),
        sa.ForeignKeyConstraint(
            ["address_id"], [f"{SCHEMA}.address.id"], name="consumer_group_address_id_fkey", ondelete="CASCADE"
        ),
        schema=SCHEMA,
    )
    op.create_table(
        "group_read",
        sa.Column("group_id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("instance_id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("read_through", sa.BigInteger, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("group_id", "instance_id", "read_through", name="group_read_pkey"),
        schema=SCHEMA,
    )


def _removed() -> None:
    op.create_table(
        "removed_address",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=False, server_default=_now),
        sa.PrimaryKeyConstraint("id", name="removed_address_pkey"),
        schema=SCHEMA,
    )
    op.create_table(
        "removed_group",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("address_id", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("lasting", sa.Boolean, nullable=False),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=False, server_default=_now),
        sa.PrimaryKeyConstraint("id", name="removed_group_pkey"),
        schema=SCHEMA,
    )
    op.execute(
        """
create function coordinator.remember_removed() returns trigger language plpgsql as $$
begin
  if tg_table_name = 'address' then
    insert into coordinator.removed_address (id, name, origin) values (old.id, old.name, old.origin);
  else
    insert into coordinator.removed_group (id, address_id, name, lasting)
    values (old.id, old.address_id, old.name, old.instance_id is null and old.name <> '');
  end if;
  return null;
end $$"""
    )
    op.execute(
        """
create trigger address_removed after delete on coordinator.address
  for each row execute function coordinator.remember_removed()"""
    )
    op.execute(
        """
create trigger consumer_group_removed after delete on coordinator.consumer_group
  for each row execute function coordinator.remember_removed()"""
    )


def _halves_and_ops() -> None:
    op.create_table(
        "half",
        sa.Column("id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("txn_id", sa.Uuid),
        sa.Column("address_id", sa.Integer, nullable=False),
        sa.Column("message", sa.LargeBinary, nullable=False),
        sa.Column("posted_at", sa.DateTime(timezone=True), nullable=False, server_default=_now),
        _written(),
        sa.PrimaryKeyConstraint("id", name="half_pkey"),
        postgresql_partition_by="RANGE (id)",
        schema=SCHEMA,
    )
    op.create_table(
        "op",
        sa.Column("id", sa.Uuid, nullable=False),
        sa.Column("decision", sa.Text, nullable=False),
        sa.Column("txn_id", sa.Uuid),
        sa.Column("reason", sa.Text),
        sa.Column("posted", sa.Integer),
        sa.Column("half_ids", postgresql.ARRAY(sa.BigInteger)),
        sa.Column("group_ids", postgresql.ARRAY(sa.Integer)),
        sa.Column("instance_id", sa.Integer),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False, server_default=_now),
        _written(),
        sa.PrimaryKeyConstraint("id", name="op_pkey"),
        sa.CheckConstraint(
            "decision in ('commit', 'rollback', 'accept', 'reject', 'release', 'modify', 'expire', 'dead-letter',"
            " 'purge')",
            name="op_decision_check",
        ),
        sa.CheckConstraint(
            "(decision in ('commit', 'rollback')) = (posted is not null) and (posted is null or txn_id = id)",
            name="op_transaction_check",
        ),
        postgresql_partition_by="RANGE (id)",
        schema=SCHEMA,
    )
    op.execute("alter table coordinator.half alter column message set storage external")


def _append_only() -> None:
    op.execute(
        """
create function coordinator.append_only() returns trigger language plpgsql as $$
begin
  raise exception '% is append-only: % refused', tg_table_name, lower(tg_op) using errcode = 'restrict_violation';
end $$"""
    )
    op.execute(
        """
create trigger half_append_only before update or delete on coordinator.half
  for each row execute function coordinator.append_only()"""
    )
    op.execute(
        """
create trigger op_append_only before update or delete on coordinator.op
  for each row execute function coordinator.append_only()"""
    )


def _days() -> None:
    op.create_table(
        "retention",
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("kept_from", sa.Date, nullable=False),
        sa.Column("looked_at", sa.DateTime(timezone=True), nullable=False, server_default=_now),
        sa.PrimaryKeyConstraint("table_name", name="retention_pkey"),
        sa.CheckConstraint("table_name in ('half', 'op')", name="retention_table_name_check"),
        schema=SCHEMA,
    )
    op.execute(
        """
create function coordinator.make_day(day date) returns text[] language plpgsql set lock_timeout = '2s' as $$
declare
  first bigint := extract(epoch from day::timestamp) * 1000;
  last bigint := extract(epoch from (day + 1)::timestamp) * 1000;
  bounds text[];
  parent text;
  leaf text;
  made text[] := '{}';
begin
  perform pg_advisory_xact_lock(7165068069472137844);
  foreach parent in array array['half', 'op'] loop
    leaf := parent || '_' || to_char(day, 'YYYYMMDD');
    continue when to_regclass('coordinator.' || leaf) is not null
      or exists (select from coordinator.retention r where r.table_name = parent and day < r.kept_from);
    bounds := case parent
      when 'half' then array[(first - 1704067200000 << 22)::text, (last - 1704067200000 << 22)::text]
      else array[rpad(lpad(to_hex(first), 12, '0'), 32, '0'), rpad(lpad(to_hex(last), 12, '0'), 32, '0')] end;
    execute format('create table coordinator.%I (like coordinator.%I including all)', leaf, parent);
    execute format('alter table coordinator.%I attach partition coordinator.%I for values from (%L) to (%L)',
                   parent, leaf, bounds[1], bounds[2]);
    made := made || leaf;
  end loop;
  return made;
end $$"""
    )


def _refusals() -> None:
    op.execute(
        """
create function coordinator.elsewhere(half_id bigint) returns bytea language plpgsql as $$
begin
  raise exception 'a half of another day' using errcode = 'CO003',
    constraint = to_char(to_timestamp(((half_id >> 22) + 1704067200000) / 1000) at time zone 'UTC', 'YYYYMMDD');
end $$"""
    )
    op.execute(
        """
create function coordinator.refuse(code text, why text) returns int4 language plpgsql as $$
begin
  raise exception '%', why using errcode = code;
end $$"""
    )


def _entries() -> None:
    op.create_table(
        "entry",
        sa.Column("group_id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("half_id", sa.BigInteger, nullable=False),
        sa.Column("lease", sa.Integer, nullable=False, server_default="0"),
        sa.Column("attempts", sa.SmallInteger, nullable=False, server_default="0"),
        sa.Column("priority", sa.SmallInteger, nullable=False, server_default="4"),
        sa.Column("acquired", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("message_group", sa.BigInteger),
        sa.Column("available_at", sa.DateTime(timezone=True)),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("failed", sa.Text),
        sa.Column("annotations", sa.LargeBinary),
        sa.PrimaryKeyConstraint("group_id", "id", name="entry_pkey"),
        postgresql_with={
            "fillfactor": "50",
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "100000",
            "autovacuum_analyze_scale_factor": "0",
            "autovacuum_analyze_threshold": "100000",
        },
        schema=SCHEMA,
    )


def _entry_indexes() -> None:
    op.create_index(
        "entry_available_at_idx",
        "entry",
        ["available_at"],
        schema=SCHEMA,
        postgresql_where=sa.text("available_at is not null"),
    )
    op.create_index(
        "entry_priority_idx",
        "entry",
        ["group_id", sa.text("priority desc"), "id"],
        schema=SCHEMA,
        postgresql_where=sa.text("priority <> 4"),
    )
    op.create_index(
        "entry_message_group_idx",
        "entry",
        ["group_id", "message_group", "id"],
        schema=SCHEMA,
        postgresql_where=sa.text("message_group is not null"),
    )
    op.create_index(
        "entry_expires_at_idx",
        "entry",
        ["expires_at"],
        schema=SCHEMA,
        postgresql_where=sa.text("expires_at is not null"),
    )
    op.create_index(
        "entry_failed_idx", "entry", ["group_id"], schema=SCHEMA, postgresql_where=sa.text("failed is not null")
    )


def _message_groups() -> None:
    op.create_table(
        "message_group",
        sa.Column("group_id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("key", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("instance_id", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("group_id", "key", name="message_group_pkey"),
        schema=SCHEMA,
    )


def _transactions() -> None:
    op.create_table(
        "txn",
        sa.Column("id", sa.Uuid, nullable=False),
        sa.Column("instance_id", sa.Integer, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("declared_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("timeout_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("posted", sa.Integer, nullable=False),
        sa.Column("retired", sa.Integer, nullable=False),
        sa.Column("producer_group", sa.Text),
        sa.Column("checks", sa.SmallInteger, nullable=False, server_default="0"),
        sa.Column("next_check_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="txn_pkey"),
        schema=SCHEMA,
    )


def _outcome() -> None:
    op.execute(
        """
create view coordinator.outcome as
  select id as txn_id, decision as outcome, reason, posted, coalesce(cardinality(half_ids), 0) as retired,
         decided_at, instance_id
    from coordinator.op where decision in ('commit', 'rollback')
  union all
  select t.id, 'undecided', null, t.posted, t.retired, null, t.instance_id
    from coordinator.txn t where not exists (select from coordinator.op o where o.id = t.id)"""
    )


def _instances() -> None:
    op.create_table(
        "instance",
        sa.Column("id", sa.Integer, sa.Identity(always=True), nullable=False),
        sa.Column("slot", sa.SmallInteger, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("process_start", sa.BigInteger, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False, server_default=_now),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="instance_pkey"),
        schema=SCHEMA,
    )
    op.create_index(
        "instance_slot_idx",
        "instance",
        ["slot"],
        unique=True,
        schema=SCHEMA,
        postgresql_where=sa.text("ended_at is null"),
    )
    op.create_table(
        "heartbeat",
        sa.Column("instance_id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("beaten_at", sa.DateTime(timezone=True), nullable=False, server_default=_now),
        sa.PrimaryKeyConstraint("instance_id", name="heartbeat_pkey"),
        sa.ForeignKeyConstraint(
            ["instance_id"], [f"{SCHEMA}.instance.id"], name="heartbeat_instance_id_fkey", ondelete="CASCADE"
        ),
        schema=SCHEMA,
    )
    op.create_table(
        "batch_mark",
        sa.Column("instance_id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("instance_id", "number", name="batch_mark_pkey"),
        schema=SCHEMA,
    )


def _sole_connections() -> None:
    op.create_table(
        "sole_connection",
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("container_id", sa.Text, nullable=False),
        sa.Column("instance_id", sa.Integer, nullable=False),
        sa.Column("connection", sa.BigInteger, nullable=False),
        sa.Column("close_existing", sa.Boolean, nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False, server_default=_now),
        sa.Column("seen_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("digest", name="sole_connection_pkey"),
        schema=SCHEMA,
    )


def downgrade() -> None:
    op.execute("drop view coordinator.outcome")
    for table in (
        "sole_connection",
        "retention",
        "batch_mark",
        "heartbeat",
        "instance",
        "txn",
        "message_group",
        "entry",
        "op",
        "half",
        "removed_group",
        "removed_address",
        "group_read",
        "consumer_group",
        "address_use",
        "address",
        "store_identity",
    ):
        op.drop_table(table, schema=SCHEMA)
    op.execute("drop function coordinator.refuse(text, text)")
    op.execute("drop function coordinator.elsewhere(bigint)")
    op.execute("drop function coordinator.make_day(date)")
    op.execute("drop function coordinator.remember_removed()")
    op.execute("drop function coordinator.append_only()")
