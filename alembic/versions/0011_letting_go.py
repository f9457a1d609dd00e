"""Letting go of retirements reads those of its transactions alone, also in a session that plans once for all.

What the function does is said in ``store/tables.py``; a test compares the catalogs of the two.
"""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_LET_GO = "alter function coordinator.let_go(int4[], uuid[])"


def upgrade() -> None:
    op.execute(f"{_LET_GO} set plan_cache_mode = force_custom_plan")


def downgrade() -> None:
    op.execute(f"{_LET_GO} reset plan_cache_mode")
