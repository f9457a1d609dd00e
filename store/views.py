"""Views of the store as the programs here read them; ``store/tables.py`` defines them."""

from __future__ import annotations

from sqlalchemy import ARRAY, BigInteger, Boolean, DateTime, Integer, Text, Uuid, column, table

from store.tables import SCHEMA

_COUNTS = [column(name, Integer) for name in ("ready", "inflight", "scheduled", "failed")]

groups = table(
    "groups",
    column("address", Text),
    column("consumer_group", Text),
    column("volatile", Boolean),
    *_COUNTS,
    column("created_at", DateTime(timezone=True)),
    column("address_id", Integer),
    column("group_id", Integer),
    column("on_expiry", Text),
    column("max_attempts", Integer),
    column("retry", Text),
    column("own_policies", ARRAY(Text)),
    schema=SCHEMA,
)

addresses = table(
    "addresses",
    column("address", Text),
    column("routing", Text),
    column("kind", Text),
    column("origin", Text),
    column("groups", Integer),
    column("pending", Integer),
    *[column(each.name, Integer) for each in _COUNTS],
    column("created_at", DateTime(timezone=True)),
    schema=SCHEMA,
)

pending_half = table(
    "pending_half",
    column("txn_id", Uuid),
    column("half_id", BigInteger),
    column("address_id", Integer),
    schema=SCHEMA,
)
