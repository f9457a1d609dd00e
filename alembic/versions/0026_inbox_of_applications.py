"""The inbox is written by applications (``coordinator grant-sql``) and the service, and by no reader (S9)."""

from __future__ import annotations

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("revoke execute on function coordinator.first_time(text, text) from public")


def downgrade() -> None:
    op.execute("grant execute on function coordinator.first_time(text, text) to public")
