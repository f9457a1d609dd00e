"""Whether transactions that a batch enters are decided is looked up in the partitions of their days alone (H5)."""

from __future__ import annotations

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
create or replace function coordinator.any_decided(txns uuid[], entered bigint) returns boolean language plpgsql as $$
declare
  lowest uuid := txns[1];
  highest uuid := txns[1];
  txn uuid;
begin
  foreach txn in array txns loop
    if txn < lowest then
      lowest := txn;
    elsif txn > highest then
      highest := txn;
    end if;
  end loop;
  return exists (
    select from coordinator.op o where o.id = any(txns) and o.id between lowest and highest);
end $$"""
    )


def downgrade() -> None:
    op.execute(
        """
create or replace function coordinator.any_decided(txns uuid[], entered bigint) returns boolean language plpgsql as $$
begin
  return exists (
    select from unnest(txns) t(id) where exists (select from coordinator.op o where o.id = t.id));
end $$"""
    )
