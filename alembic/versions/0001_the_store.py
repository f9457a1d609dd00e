"""Create the store as ``store/tables.py`` declares it. Each later release that changes it has one migration."""

from __future__ import annotations

from alembic import op
from store.locks import NAMES
from store.tables import lock, metadata

revision = "0.1"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    metadata.create_all(op.get_bind())
    op.execute("insert into coordinator.store_identity default values")
    op.bulk_insert(lock, [{"name": name} for name in NAMES])
