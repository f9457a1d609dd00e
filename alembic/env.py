"""Run the migrations on the connection that :mod:`store.migrations` passes; there is no ``alembic.ini``."""

from __future__ import annotations

from sqlalchemy import Connection, text

from alembic import context
from store.tables import SCHEMA

connection: Connection = context.config.attributes["connection"]

# The table with the revision is in the schema too.
connection.execute(text(f"create schema if not exists {SCHEMA}"))
connection.commit()

# No target_metadata: constraints get the names that the migrations give them, not those of a convention.
context.configure(connection=connection, version_table_schema=SCHEMA)
with context.begin_transaction():
    context.run_migrations()
