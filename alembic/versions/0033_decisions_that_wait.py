"""Since when the decision of a transaction has waited for the store, in the list of undecided transactions."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("txn", sa.Column("deciding_since", sa.DateTime(timezone=True)), schema="coordinator")


def downgrade() -> None:
    op.drop_column("txn", "deciding_since", schema="coordinator")
