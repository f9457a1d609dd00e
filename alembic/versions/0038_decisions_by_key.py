"""Decisions find their rows by key in each session, also by a plan that is kept from when the tables were empty."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

_DECIDE_ALL = "coordinator.decide_all(uuid[], text[], text[], int4, uuid[], int8[], int8[], int4, boolean)"
_FUNCTIONS = (_DECIDE_ALL, "coordinator.retire(uuid[], uuid[], int4, int4)", "coordinator.give_back(uuid[], int4)")
#: Joins, as they were and as they are.
_JOINS = (
    ("e.group_id = r.group_id and e.id = r.entry_id", "e.group_id = any(array[r.group_id]) and e.id = r.entry_id"),
    ("p.txn_id = u.t and p.half_id = u.h", "p.txn_id = any(array[u.t]) and p.half_id = u.h"),
    ("x on x.id = a.t\n", "x on x.id = any(array[a.t])\n"),
    ("t on t.id = u.t and", "t on t.id = any(array[u.t]) and"),
    ("t on t.id = r.txn_id and", "t on t.id = any(array[r.txn_id]) and"),
    ("t on t.id = a.txn_id\n", "t on t.id = any(array[a.txn_id])\n"),
    ("g on g.address_id = m.address_id\n", "g on g.address_id = any(array[m.address_id])\n"),
    # last: its text has what is replaced above
    (
        """from coordinator.entry e
      join coordinator.pending_retirement r on r.group_id = e.group_id and r.entry_id = e.id
      where r.txn_id = any(here) order by e.group_id, e.id for update of e;
""",
        """from (
        select r.group_id, r.entry_id from coordinator.pending_retirement r where r.txn_id = any(here) order by 1, 2) r
      cross join lateral (
        select from coordinator.entry e where e.group_id = r.group_id and e.id = r.entry_id for update) e;
""",
    ),
    (
        "distinct p.address_id from coordinator.pending_half p where p.txn_id = any(committed) order by 1) posted\n",
        """distinct u.address_id from unnest(array(
            select p.address_id from coordinator.pending_half p where p.txn_id = any(committed))) u(address_id)
           order by 1) posted
""",
    ),
)
_NO_OTHER_PLANS = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin")


def _replace(joins: tuple[tuple[str, str], ...]) -> None:
    for function in _FUNCTIONS:
        text = op.get_bind().scalar(sa.text(f"select pg_get_functiondef('{function}'::regprocedure)"))
        for old, new in joins:
            text = text.replace(old, new)
        op.get_bind().exec_driver_sql(text.replace("%", "%%"))


def upgrade() -> None:
    _replace(_JOINS)
    for name in _NO_OTHER_PLANS:
        op.execute(f"alter function {_DECIDE_ALL} set {name} = off")


def downgrade() -> None:
    op.execute(f"alter function {_DECIDE_ALL} reset all")
    _replace(tuple((new, old) for old, new in _JOINS))
