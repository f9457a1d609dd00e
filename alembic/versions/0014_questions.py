"""A question that decides a transaction (T11) and the first half of that transaction wait for each other: both were
written before, and a checkable transaction was rolled back whose halves, and retirements, waited in the store.

What the function does is said in ``store/tables.py``; a test compares the catalogs of the two.
"""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_ASK = """
create function coordinator.ask(txn uuid, instance int4) returns void language plpgsql as $$
declare
  seen int4;
begin
  insert into coordinator.txn as t (id, instance_id, owner, declared_at, timeout_at, posted, retired)
  values (ask.txn, ask.instance, '', now(), now(), 0, 0)
  on conflict (id) do update set posted = t.posted where t.producer_group is null returning t.posted into seen;
  if not found then
    return;
  end if;
  insert into coordinator.op (id, decision, txn_id, reason, posted, instance_id)
  values (ask.txn, 'rollback', ask.txn, 'asked', seen, ask.instance) on conflict do nothing;
  delete from coordinator.txn t where t.id = ask.txn;
end $$"""


def upgrade() -> None:
    op.execute(_ASK)


def downgrade() -> None:
    op.execute("drop function coordinator.ask(uuid, int4)")
