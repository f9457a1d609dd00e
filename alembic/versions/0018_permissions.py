"""What users may do, the roles that they have, and a count of the changes of both (S3)."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"


def upgrade() -> None:
    op.add_column(
        "store_identity",
        sa.Column("permission_changes", sa.BigInteger, nullable=False, server_default="0"),
        schema=SCHEMA,
    )
    op.create_table(
        "user_role",
        sa.Column(
            "user_name",
            sa.Text,
            sa.ForeignKey(f"{SCHEMA}.user_account.name", name="user_role_user_name_fkey", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("role", sa.Text, primary_key=True),
        sa.CheckConstraint("role <> 'anonymous'", name="user_role_role_check"),
        schema=SCHEMA,
    )
    op.create_table(
        "permission",
        sa.Column(
            "user_name",
            sa.Text,
            sa.ForeignKey(f"{SCHEMA}.user_account.name", name="permission_user_name_fkey", ondelete="CASCADE"),
        ),
        sa.Column("role", sa.Text),
        sa.Column("verb", sa.Text, nullable=False),
        sa.Column("pattern", sa.Text, nullable=False),
        sa.Column("granted_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        sa.CheckConstraint("num_nonnulls(user_name, role) = 1", name="permission_grantee_check"),
        sa.CheckConstraint(
            "verb in ('send', 'receive', 'browse', 'create', 'check', 'manage')", name="permission_verb_check"
        ),
        sa.CheckConstraint("length(pattern) between 1 and 2050", name="permission_pattern_check"),
        schema=SCHEMA,
    )
    op.create_index("permission_user_name_idx", "permission", ["user_name"], schema=SCHEMA)
    op.create_index("permission_role_idx", "permission", ["role"], schema=SCHEMA)


def downgrade() -> None:
    op.drop_table("permission", schema=SCHEMA)
    op.drop_table("user_role", schema=SCHEMA)
    op.drop_column("store_identity", "permission_changes", schema=SCHEMA)
