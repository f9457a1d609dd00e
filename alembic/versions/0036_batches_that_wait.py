"""With its heartbeat an instance says how long its batch has waited, which may be no session's for long."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("heartbeat", sa.Column("commit_waits_seconds", sa.REAL), schema="coordinator")


def downgrade() -> None:
    op.drop_column("heartbeat", "commit_waits_seconds", schema="coordinator")
