"""Consumer groups that are moved back or forth, and the op of a delivery that is taken back.

What a view means is said in ``store/tables.py``; a test compares the catalogs of the two. The new constraint reads
each op once, and changes none.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"
_DECISIONS = "'commit', 'rollback', 'accept', 'reject', 'release', 'modify', 'expire', 'dead-letter', 'purge'"
_ENDED = """
    select {distinct}u.half_id, u.group_id,
           case when o.decision in ('commit', 'accept') then 'acked' when o.decision = 'expire' then 'expired'
                when o.decision = 'dead-letter' then 'dead-lettered' else 'purged' end as state
      from coordinator.op o cross join lateral unnest(o.half_ids, o.group_ids) u(half_id, group_id)
     where o.decision in ('commit', 'accept', 'expire', 'dead-letter', 'purge'){order}"""
_MESSAGES = """
create or replace view coordinator.messages as
  with ended as ({ended})
  select h.id as half_id, coalesce(a.name, r.name) as address, g.name as consumer_group,
         case when p.half_id is not null then 'pending'
              when d.decision = 'rollback' then 'rolled-back'
              when h.txn_id is not null and d.id is null then 'unknown'
              else coalesce(e.state, n.state, 'no-entry') end as state,
         h.txn_id, h.posted_at, d.decided_at, octet_length(h.message) as octets
    from coordinator.half h
    left join coordinator.address a on a.id = h.address_id
    left join coordinator.removed_address r on r.id = h.address_id
    left join coordinator.pending p on p.txn_id = h.txn_id and p.half_id = h.id
    left join coordinator.op d on d.id = h.txn_id
    left join coordinator.consumer_group g
      on g.address_id = h.address_id and (h.txn_id is null or d.decision = 'commit')
    left join coordinator.entries e on e.group_id = g.id and e.half_id = h.id
    left join ended n on n.group_id = g.id and n.half_id = h.id"""


def upgrade() -> None:
    op.create_table(
        "seek",
        sa.Column("group_id", sa.Integer, primary_key=True),
        sa.Column("back", sa.Boolean, nullable=False),
        sa.Column("to_id", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("moved", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("expired", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(
            ["group_id"], [f"{SCHEMA}.consumer_group.id"], ondelete="CASCADE", name="seek_group_id_fkey"
        ),
        schema=SCHEMA,
    )
    _decisions(f"{_DECISIONS}, 'replay'")
    ended = _ENDED.format(distinct="distinct on (u.half_id, u.group_id) ", order=_LATEST)
    op.execute(_MESSAGES.format(ended=ended))


def downgrade() -> None:
    op.execute(_MESSAGES.format(ended=_ENDED.format(distinct="", order="")))
    # Ops are only ever added: where some say 'replay', those that are there are not held against the constraint.
    replayed = op.get_bind().scalar(sa.text(f"select exists (select from {SCHEMA}.op where decision = 'replay')"))
    _decisions(_DECISIONS, " not valid" if replayed else "")
    op.drop_table("seek", schema=SCHEMA)


_LATEST = "\n     order by u.half_id, u.group_id, o.decided_at desc"


def _decisions(known: str, valid: str = "") -> None:
    op.execute(
        f"alter table {SCHEMA}.op drop constraint op_decision_check, "
        f"add constraint op_decision_check check (decision in ({known})){valid}"
    )
