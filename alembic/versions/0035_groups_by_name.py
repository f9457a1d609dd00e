"""Groups are found by their names: those whose dead letters are asked for, and subscriptions that are ended."""

from __future__ import annotations

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("create index consumer_group_name_idx on coordinator.consumer_group using hash (name) where name <> ''")


def downgrade() -> None:
    op.execute("drop index coordinator.consumer_group_name_idx")
