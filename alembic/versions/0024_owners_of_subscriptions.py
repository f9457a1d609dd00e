"""A subscription belongs to the user that has made it (S3)."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("consumer_group", sa.Column("owner", sa.Text), schema="coordinator")


def downgrade() -> None:
    op.drop_column("consumer_group", "owner", schema="coordinator")
