"""What runs of ``coordinator reconcile`` have found (R32)."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"

_FINDINGS = """
create view coordinator.findings as
  select f.run_id as run, r.seen_at, f.kind, f.severity, f.txn_id, f.half_id, f.address, f.consumer_group, f.detail,
         f.suggested_repair, f.number
    from coordinator.finding f join coordinator.run r on r.id = f.run_id"""


def upgrade() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.Integer, sa.Identity(always=True), primary_key=True),
        sa.Column("since", sa.DateTime(timezone=True)),
        sa.Column("until", sa.DateTime(timezone=True)),
        sa.Column("books", ARRAY(sa.Text), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stored_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("counts", JSONB, nullable=False),
        sa.UniqueConstraint("since", "until", "books", name="run_period_key", postgresql_nulls_not_distinct=True),
        schema=SCHEMA,
    )
    op.create_table(
        "finding",
        sa.Column(
            "run_id",
            sa.Integer,
            sa.ForeignKey(f"{SCHEMA}.run.id", name="finding_run_id_fkey", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("severity", sa.Text, nullable=False),
        sa.Column("txn_id", sa.Uuid),
        sa.Column("half_id", sa.BigInteger),
        sa.Column("address", sa.Text),
        sa.Column("consumer_group", sa.Text),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("suggested_repair", sa.Text, nullable=False),
        sa.CheckConstraint("severity in ('note', 'warning', 'error')", name="finding_severity_check"),
        schema=SCHEMA,
    )
    op.execute(_FINDINGS)


def downgrade() -> None:
    op.execute("drop view coordinator.findings")
    op.drop_table("finding", schema=SCHEMA)
    op.drop_table("run", schema=SCHEMA)
