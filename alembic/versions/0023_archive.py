"""Whether old days are archived before they are dropped, and which are (R35)."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"


def upgrade() -> None:
    op.add_column("retention", sa.Column("archived_from", sa.Date), schema=SCHEMA)
    # what was dropped until now is archived nowhere
    op.execute("update coordinator.retention set archived_from = kept_from")
    op.create_table(
        "archive",
        sa.Column("singleton", sa.Boolean, primary_key=True, server_default=sa.text("true")),
        sa.Column("folder", sa.Text, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        sa.CheckConstraint("singleton", name="archive_one_row_check"),
        schema=SCHEMA,
    )
    op.create_table(
        "archived_day",
        sa.Column("table_name", sa.Text, primary_key=True),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("manifest", sa.Text, nullable=False),
        sa.Column("archived_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        sa.Column("live_rows", sa.BigInteger, nullable=False),
        sa.Column("live_keys", sa.BigInteger, nullable=False),
        sa.Column("dropped", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("held_until", sa.DateTime(timezone=True)),
        sa.CheckConstraint("table_name in ('half', 'op')", name="archived_day_table_name_check"),
        schema=SCHEMA,
    )


def downgrade() -> None:
    op.drop_table("archived_day", schema=SCHEMA)
    op.drop_table("archive", schema=SCHEMA)
    op.drop_column("retention", "archived_from", schema=SCHEMA)
