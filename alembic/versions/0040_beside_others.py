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
    op.create_table("lock", sa.Column("name", sa.Text, primary_key=True), schema=SCHEMA)
    op.execute(f"insert into coordinator.lock values {', '.join(f'({name!r})' for name in _NAMES)}")
    for function, advisory, row in _LOCKS:
        _replace(function, advisory, row)
    _replace("make_day(date)", _RIGHTS, _RIGHTS + _NO_TRUNCATE)
    for table in _halves_and_ops():
        op.execute(_TRIGGER.format(table))


def downgrade() -> None:
    for table in _halves_and_ops():
        op.execute(f"drop trigger not_truncated on {table}")
    _replace("make_day(date)", _RIGHTS + _NO_TRUNCATE, _RIGHTS)
    for function, advisory, row in _LOCKS:
        _replace(function, row, advisory)
    op.drop_table("lock", schema=SCHEMA)
    op.execute("alter table coordinator.permission drop column id")
