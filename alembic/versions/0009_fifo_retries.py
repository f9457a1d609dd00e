"""Failed deliveries of a fifo address may wait, and their message groups with them."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"


def upgrade() -> None:
    op.drop_constraint("address_retry_check", "address", schema=SCHEMA)


def downgrade() -> None:
    # The version before delivers what is behind one that waits, and gives that one a place at the end.
    op.execute("update coordinator.address set retry = 'immediate' where kind = 'fifo'")
    op.execute("""
        update coordinator.consumer_group g set retry = null
          from coordinator.address a where a.id = g.address_id and a.kind = 'fifo'""")
    op.execute("""
        update coordinator.entry set available_at = null
         where available_at is not null and acquired and message_group is not null""")
    op.create_check_constraint("address_retry_check", "address", "kind <> 'fifo' or retry = 'immediate'", schema=SCHEMA)
