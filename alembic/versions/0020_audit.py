"""Who has decided what, when, from where and why: rows that are only added (S10)."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"

_KEEP = """
create function coordinator.audit_append_only() returns trigger language plpgsql as $$
begin
  if tg_op = 'DELETE' then
    if old.at < now() - interval '30 days' then
      return old;
    end if;
  end if;
  raise exception '% is append-only: % refused', tg_table_name, lower(tg_op) using errcode = 'restrict_violation';
end $$"""

_ROWS = """
create trigger audit_append_only before update or delete on coordinator.audit
  for each row execute function coordinator.audit_append_only()"""

_ALL = """
create trigger audit_not_truncated before truncate on coordinator.audit
  for each statement execute function coordinator.audit_append_only()"""


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("subject", sa.Text),
        sa.Column("detail", JSONB, nullable=False, server_default=sa.text("'{}'")),
        sa.Column("reason", sa.Text),
        sa.Column("database_role", sa.Text, nullable=False, server_default=sa.text("session_user")),
        sa.Column("os_user", sa.Text),
        sa.Column("client_user", sa.Text),
        sa.Column("place", sa.Text),
        sa.Column("times", sa.Integer, nullable=False, server_default="1"),
        sa.CheckConstraint("length(reason) <= 1000", name="audit_reason_check"),
        schema=SCHEMA,
    )
    op.create_index("audit_at_idx", "audit", ["at"], schema=SCHEMA)
    for statement in (_KEEP, _ROWS, _ALL):
        op.execute(statement)


def downgrade() -> None:
    op.drop_table("audit", schema=SCHEMA)
    op.execute("drop function coordinator.audit_append_only()")
