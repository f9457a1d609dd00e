"""Of the deliveries of an entry that a client may have seen, how many have failed: a number of its own (D5)."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

SCHEMA = "coordinator"
_TABLES = ("entry", "pending_retirement")
#: In functions, as it was and as it is.
_FUNCTIONS = {
    "coordinator.retire(uuid[], uuid[], int4, int4)": (
        "attempts = r.attempts,\n           acquired",
        "attempts = r.attempts,\n           failures = r.failures, acquired",
    ),
    "coordinator.give_back(uuid[], int4)": (
        "attempts = least(e.attempts::int4 + 1, 32767), acquired",
        "attempts = least(e.attempts::int4 + 1, 32767),\n"
        "           failures = least(e.failures::int4 + 1, 32767), acquired",
    ),
}
#: The end of the view ``entries``, the same; and the views that read it.
_ENTRIES = ("g.id AS group_id\n", "g.id AS group_id,\n    e.failures\n")
_READERS = ("groups", "addresses", "messages")


def _definition(view: str) -> str:
    return str(op.get_bind().scalar(sa.text(f"select pg_get_viewdef('{SCHEMA}.{view}'::regclass)")))


def _replace(old: int, new: int) -> None:
    for function, texts in _FUNCTIONS.items():
        text = op.get_bind().scalar(sa.text(f"select pg_get_functiondef('{function}'::regprocedure)"))
        assert texts[old] in text, function
        op.get_bind().exec_driver_sql(text.replace(texts[old], texts[new]).replace("%", "%%"))


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column("failures", sa.SmallInteger, nullable=False, server_default="0"), schema=SCHEMA)
        # until now each attempt that counted had failed
        op.execute(f"update {SCHEMA}.{table} set failures = attempts where attempts > 0")
    _replace(0, 1)
    op.execute(f"create or replace view {SCHEMA}.entries as {_definition('entries').replace(*_ENTRIES)}")


def downgrade() -> None:
    _replace(1, 0)
    readers = {view: _definition(view) for view in _READERS}
    entries = _definition("entries").replace(_ENTRIES[1], _ENTRIES[0])
    for view in (*reversed(_READERS), "entries"):
        op.execute(f"drop view {SCHEMA}.{view}")
    for table in _TABLES:
        # what leads to the dead letters is the one number that there was
        op.execute(f"update {SCHEMA}.{table} set attempts = failures where attempts <> failures")
        op.drop_column(table, "failures", schema=SCHEMA)
    for view, definition in {"entries": entries, **readers}.items():
        op.execute(f"create view {SCHEMA}.{view} as {definition}")
