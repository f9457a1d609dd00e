"""A lasting subscription has its selector, so that another one is seen as the change that it is (JMS).

Of those that there are it is not known: the next link to each says it.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("consumer_group", sa.Column("filters", sa.LargeBinary), schema="coordinator")


def downgrade() -> None:
    op.drop_column("consumer_group", "filters", schema="coordinator")
