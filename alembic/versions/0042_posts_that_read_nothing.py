"""A post does not look into the outbox for others of its SQL transaction, which in serializable ones made them fail."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0042"
down_revision = "0038"
branch_labels = None
depends_on = None

_FUNCTIONS = (
    "coordinator.put_into_outbox(text, bytea, timestamptz, timestamptz, int4, text)",
    "coordinator.send_outbox()",
)
#: As they were and as they are.
_TEXTS = (
    (
        "not exists (select from coordinator.outbox o where o.xid = pg_current_xact_id());",
        "current_setting('coordinator.posting', true) is distinct from pg_current_xact_id()::text;",
    ),
    (
        "    set constraints coordinator.outbox_sent deferred;\n  end if;\n",
        "    set constraints coordinator.outbox_sent deferred;\n"
        "    perform set_config('coordinator.posting', pg_current_xact_id()::text, true);\n  end if;\n",
    ),
    (
        "  delete from coordinator.outbox o where o.xid = new.xid;\n",
        "  delete from coordinator.outbox o where o.xid = new.xid;\n"
        "  perform set_config('coordinator.posting', '', true);\n",
    ),
)


def _replace(texts: tuple[tuple[str, str], ...]) -> None:
    for function in _FUNCTIONS:
        text = op.get_bind().scalar(sa.text(f"select pg_get_functiondef('{function}'::regprocedure)"))
        for old, new in texts:
            text = text.replace(old, new)
        op.get_bind().exec_driver_sql(text.replace("%", "%%"))


def upgrade() -> None:
    _replace(_TEXTS)


def downgrade() -> None:
    _replace(tuple((new, old) for old, new in reversed(_TEXTS)))
