"""Users that clients log in as, and what is kept in place of their passwords (S1)."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"


def upgrade() -> None:
    op.create_table(
        "user_account",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("disabled_at", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        schema=SCHEMA,
    )
    op.create_table(
        "user_verifier",
        sa.Column(
            "user_name",
            sa.Text,
            sa.ForeignKey(f"{SCHEMA}.user_account.name", name="user_verifier_user_name_fkey", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("mechanism", sa.Text, primary_key=True),
        sa.Column("salt", sa.LargeBinary, nullable=False),
        sa.Column("iterations", sa.Integer, nullable=False),
        sa.Column("stored_key", sa.LargeBinary, nullable=False),
        sa.Column("server_key", sa.LargeBinary, nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        sa.CheckConstraint("mechanism in ('SCRAM-SHA-256', 'SCRAM-SHA-512')", name="user_verifier_mechanism_check"),
        schema=SCHEMA,
    )


def downgrade() -> None:
    op.drop_table("user_verifier", schema=SCHEMA)
    op.drop_table("user_account", schema=SCHEMA)
