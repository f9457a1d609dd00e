"""How transactions are checked, by the address of their first message."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"

_CHECKS = {
    "check_immunity": "check_immunity_ms between 0 and 3600000",
    "check_interval": "check_interval_ms between 1 and 86400000",
    "check_most": "check_most between 1 and 1000",
}


def upgrade() -> None:
    op.add_column("address", sa.Column("check_immunity_ms", sa.Integer), schema=SCHEMA)
    op.add_column("address", sa.Column("check_interval_ms", sa.Integer), schema=SCHEMA)
    op.add_column("address", sa.Column("check_most", sa.SmallInteger), schema=SCHEMA)
    for name, condition in _CHECKS.items():
        op.create_check_constraint(f"address_{name}_check", "address", condition, schema=SCHEMA)


def downgrade() -> None:
    for column in ("check_most", "check_interval_ms", "check_immunity_ms"):
        op.drop_column("address", column, schema=SCHEMA)
