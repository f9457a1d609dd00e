"""How long a failed delivery waits before the next, by address."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"


def upgrade() -> None:
    op.add_column("address", sa.Column("retry", sa.Text, nullable=False, server_default="immediate"), schema=SCHEMA)
    op.create_check_constraint("address_retry_check", "address", "kind <> 'fifo' or retry = 'immediate'", schema=SCHEMA)


def downgrade() -> None:
    op.drop_constraint("address_retry_check", "address", schema=SCHEMA)
    op.drop_column("address", "retry", schema=SCHEMA)
