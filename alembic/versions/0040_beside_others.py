"""The store beside others: a key for every table, locks that only its own roles can take, no truncate of halves and
ops.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from alembic import op

revision = "0040"
down_revision = "0038"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"

_NAMES = ("slots", "giving up", "days", "places", "notice")
#: Functions, the advisory locks that they took, and the rows that they lock.
_LOCKS = (
    (
        "make_day(date)",
        "perform pg_advisory_xact_lock(7165068069472137844);",
        "perform from coordinator.lock l where l.name = 'days' for update;",
    ),
    (
        "may_promote(int8, int8)",
        "not pg_try_advisory_xact_lock(7165068069473251181)",
        "not exists (select from coordinator.lock l where l.name = 'places' for update skip locked)",
    ),
    (
        "decide_all(uuid[], text[], text[], int4, uuid[], int8[], int8[], int4, boolean)",
        "pg_try_advisory_xact_lock(7165068069439501417)",
        "exists (select from coordinator.lock l where l.name = 'notice' for update skip locked)",
    ),
    (
        "send_outbox()",
        "pg_try_advisory_xact_lock(7165068069439501417)",
        "exists (select from coordinator.lock l where l.name = 'notice' for update skip locked)",
    ),
)
#: What is put before it, and a piece of the function that asks the inbox.
_INBOX = (
    (
        """declare
  asking constant text := coalesce(nullif(current_setting('role'), 'none'), session_user);
  belongs text;
""",
        "begin\n  if coalesce(octet_length($1), 0)",
    ),
    (
        """  select o.owner into belongs from coordinator.inbox_owner o where o.consumer = $1;
  if not found then
    insert into coordinator.inbox_owner (consumer, owner) values ($1, asking) on conflict do nothing;
    select o.owner into belongs from coordinator.inbox_owner o where o.consumer = $1;
  end if;
  if belongs <> asking and not exists (
    select from pg_roles r where r.rolname = belongs and pg_has_role(asking, r.oid, 'member')) then
    raise exception 'coordinator.first_time: the consumer "%" belongs to the role "%", and "%" is no member of it',
      left($1, 100), belongs, asking using errcode = 'CO011',
      hint = 'Ask with another name, or have this one granted: coordinator grant-sql ROLE --inbox NAME';
  end if;
""",
        "  insert into coordinator.inbox (consumer, message_id)",
    ),
)
#: Who may use the inbox may use the new table: a service of the version before, with a role of its own, goes on.
_AS_INBOX = """do $$
declare
  privilege text;
  role text;
begin
  for privilege, role in
    select a.privilege_type, case a.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end
      from pg_class c cross join aclexplode(c.relacl) a
     where c.oid = 'coordinator.inbox'::regclass and a.grantee <> c.relowner loop
    execute format('grant %s on coordinator.{} to %s', privilege, role);
  end loop;
end $$"""
_FREE_ID = """
create function coordinator.free_id() returns trigger language plpgsql as $$
begin
  while case tg_table_name
    when 'address' then exists (select from coordinator.address a where a.id = new.id)
      or exists (select from coordinator.removed_address r where r.id = new.id)
    else exists (select from coordinator.consumer_group g where g.id = new.id)
      or exists (select from coordinator.removed_group r where r.id = new.id) end
  loop
    new.id := nextval(pg_get_serial_sequence(tg_relid::regclass::text, 'id'));
  end loop;
  return new;
end $$"""
_RIGHTS = """      execute format('grant %s on coordinator.%I to %s', privilege, leaf, role);
    end loop;
"""
_TRIGGER = (
    "create trigger not_truncated before truncate on {} for each statement"
    " when (current_setting('coordinator.dropping', true) is distinct from 'on')"
    " execute function coordinator.append_only()"
)
_NO_TRUNCATE = "    execute format('" + _TRIGGER.format("coordinator.%I").replace("'", "''") + "', leaf);\n"


def _replace(function: str, old: str, new: str) -> None:
    text = op.get_bind().scalar(sa.text(f"select pg_get_functiondef('{SCHEMA}.{function}'::regprocedure)"))
    assert old in text, function
    op.get_bind().exec_driver_sql(text.replace(old, new).replace("%", "%%"))


def _halves_and_ops() -> Sequence[str]:
    tables = "select relid::regclass::text from unnest(array['half', 'op']) t(name)"
    tables += " cross join lateral pg_partition_tree(('coordinator.' || t.name)::regclass)"
    return op.get_bind().scalars(sa.text(tables)).all()


def upgrade() -> None:
    op.execute(
        "alter table coordinator.permission add column id bigint generated always as identity,"
        " add constraint permission_pkey primary key (id)"
    )
    op.execute("alter table coordinator.user_account add column id text")
    op.execute("update coordinator.user_account set id = name")
    op.execute(
        "alter table coordinator.user_account alter column id set not null,"
        " alter column id set default gen_random_uuid()::text, add constraint user_account_id_key unique (id)"
    )
    op.create_table("lock", sa.Column("name", sa.Text, primary_key=True), schema=SCHEMA)
    op.execute(f"insert into coordinator.lock values {', '.join(f'({name!r})' for name in _NAMES)}")
    for function, advisory, row in _LOCKS:
        _replace(function, advisory, row)
    _replace("make_day(date)", _RIGHTS, _RIGHTS + _NO_TRUNCATE)
    for table in _halves_and_ops():
        op.execute(_TRIGGER.format(table))
    op.create_table(
        "inbox_owner",
        sa.Column("consumer", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        schema=SCHEMA,
    )
    for table in ("lock", "inbox_owner"):
        op.get_bind().exec_driver_sql(_AS_INBOX.format(table).replace("%", "%%"))
    for added, before in _INBOX:
        _replace("first_time(text, text)", before, added + before)
    op.execute(_FREE_ID)
    for table in ("address", "consumer_group"):
        op.execute(f"alter table coordinator.{table} alter column id set cycle")
        op.execute(
            f"create trigger {table}_free_id before insert on coordinator.{table}"
            " for each row execute function coordinator.free_id()"
        )


def downgrade() -> None:
    for table in ("address", "consumer_group"):
        op.execute(f"drop trigger {table}_free_id on coordinator.{table}")
        op.execute(f"alter table coordinator.{table} alter column id set no cycle")
    op.execute("drop function coordinator.free_id()")
    for added, before in reversed(_INBOX):
        _replace("first_time(text, text)", added + before, before)
    op.drop_table("inbox_owner", schema=SCHEMA)
    for table in _halves_and_ops():
        op.execute(f"drop trigger not_truncated on {table}")
    _replace("make_day(date)", _RIGHTS + _NO_TRUNCATE, _RIGHTS)
    for function, advisory, row in _LOCKS:
        _replace(function, row, advisory)
    op.drop_table("lock", schema=SCHEMA)
    op.execute("alter table coordinator.permission drop column id")
    # an earlier version knows users by their names alone
    op.execute(
        "update coordinator.consumer_group g set owner = u.name from coordinator.user_account u where u.id = g.owner"
    )
    op.execute("alter table coordinator.user_account drop column id")
