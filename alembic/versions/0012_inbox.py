"""What applications have done the work of: the inbox, and the function that writes it (X4).

What the function does is said in ``store/tables.py``; a test compares the catalogs of the two.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"

_FIRST_TIME = """
create function coordinator.first_time(consumer text, message_id text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if coalesce(octet_length($1), 0) not between 1 and 1000 then
    raise exception 'coordinator.first_time: expected a consumer of 1 to 1000 octets, not %',
      coalesce(octet_length($1) || ' octets', 'null') using errcode = 'invalid_parameter_value';
  end if;
  if coalesce(octet_length($2), 0) not between 1 and 1000 then
    raise exception 'coordinator.first_time: expected a message-id of 1 to 1000 octets, not %',
      coalesce(octet_length($2) || ' octets', 'null') using errcode = 'invalid_parameter_value';
  end if;
  insert into coordinator.inbox (consumer, message_id) values ($1, $2) on conflict do nothing;
  return found;
end $$"""


def upgrade() -> None:
    op.create_table(
        "inbox",
        sa.Column("consumer", sa.Text, primary_key=True),
        sa.Column("message_id", sa.Text, primary_key=True),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        schema=SCHEMA,
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": "100000",
            "autovacuum_analyze_scale_factor": "0",
            "autovacuum_analyze_threshold": "100000",
        },
    )
    op.create_index("inbox_taken_at_idx", "inbox", ["taken_at"], schema=SCHEMA)
    op.execute(_FIRST_TIME)


def downgrade() -> None:
    op.execute("drop function coordinator.first_time(text, text)")
    op.drop_table("inbox", schema=SCHEMA)
