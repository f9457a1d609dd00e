"""How far ``coordinator watch`` has counted, what it has found, and where what was written last is found (R33)."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"

_FINDINGS = """
create or replace view coordinator.findings as
  select f.run_id as run, {seen_at}, f.kind, f.severity, f.txn_id, f.half_id, f.address, f.consumer_group, f.detail,
         f.suggested_repair, f.number
    from coordinator.finding f join coordinator.run r on r.id = f.run_id"""


def _index(table: str, where: str | None = None) -> None:
    op.create_index(
        f"{table}_written_xid_idx",
        table,
        [sa.text("((written_xid::text)::bigint)")],
        schema=SCHEMA,
        postgresql_using="brin",
        postgresql_with={"pages_per_range": "64", "autosummarize": "on"},
        postgresql_where=None if where is None else sa.text(where),
    )


def _period_key(*columns: str) -> None:
    op.drop_constraint("run_period_key", "run", schema=SCHEMA)
    op.create_unique_constraint(
        "run_period_key",
        "run",
        ["since", "until", "books", *columns],
        schema=SCHEMA,
        postgresql_nulls_not_distinct=True,
    )


def upgrade() -> None:
    op.drop_index("op_written_xid_idx", "op", schema=SCHEMA)
    _index("op")
    _index("half")
    op.add_column("run", sa.Column("watch_id", sa.Uuid), schema=SCHEMA)
    _period_key("watch_id")
    op.add_column("finding", sa.Column("seen_at", sa.DateTime(timezone=True)), schema=SCHEMA)
    op.execute(_FINDINGS.format(seen_at="coalesce(f.seen_at, r.seen_at) as seen_at"))
    op.create_table(
        "watch",
        sa.Column("singleton", sa.Boolean, primary_key=True, server_default=sa.text("true")),
        sa.Column("id", sa.Uuid, nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        sa.Column("batch", sa.BigInteger, nullable=False, server_default="-1"),
        sa.Column("position", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("counts", JSONB, nullable=False, server_default=sa.text("'{}'")),
        sa.Column("up_to_date_at", sa.DateTime(timezone=True)),
        sa.Column("kept_from", sa.Date),
        sa.Column("missed_before", sa.Date),
        sa.CheckConstraint("singleton", name="watch_one_row_check"),
        schema=SCHEMA,
    )


def downgrade() -> None:
    op.drop_table("watch", schema=SCHEMA)
    op.execute(_FINDINGS.format(seen_at="r.seen_at"))
    op.drop_column("finding", "seen_at", schema=SCHEMA)
    op.execute("delete from coordinator.run where watch_id is not null")
    _period_key()
    op.drop_column("run", "watch_id", schema=SCHEMA)
    op.drop_index("half_written_xid_idx", "half", schema=SCHEMA)
    op.drop_index("op_written_xid_idx", "op", schema=SCHEMA)
    _index("op", "posted is not null")
