"""With its heartbeat an instance says how far its clock is from the database's, and why its batch waits."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("heartbeat", sa.Column("commit_refused_with", sa.Text), schema="coordinator")
    op.add_column("heartbeat", sa.Column("clock_ahead_seconds", sa.REAL), schema="coordinator")


def downgrade() -> None:
    op.drop_column("heartbeat", "clock_ahead_seconds", schema="coordinator")
    op.drop_column("heartbeat", "commit_refused_with", schema="coordinator")
