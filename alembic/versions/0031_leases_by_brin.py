"""What lost instances had leased is found by an index, and not by reading all entries.

A start with 10,000,000 messages waiting took two seconds more than with none, and so long did leases take to return.
PostgreSQL 15 goes on reading all: it has no HOT change of a column with a BRIN index, and each lease would cost more.
"""

from __future__ import annotations

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""do $$ begin
        if current_setting('server_version_num')::int >= 160000 then
          create index entry_lease_idx on coordinator.entry using brin (lease) with (autosummarize = on);
        end if; end $$""")


def downgrade() -> None:
    op.execute("drop index if exists coordinator.entry_lease_idx")
