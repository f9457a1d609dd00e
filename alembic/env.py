"""Run the migrations on the connection that :mod:`store.migrations` passes; there is no ``alembic.ini``."""

from __future__ import annotations

from sqlalchemy import Connection, text

from alembic import context
from store.tables import SCHEMA

connection: Connection = context.config.attributes["connection"]

#: The table with the revision is in the schema, too.
_MAKE_SCHEMA = f"create schema if not exists {SCHEMA}"

# No target_metadata: constraints get the names that the migrations give them, not those of a convention.
if context.is_offline_mode():
    # Of the default style of parameters each % would be doubled.
    opts = {"paramstyle": "named"}
    context.configure(dialect_name="postgresql", dialect_opts=opts, version_table_schema=SCHEMA, literal_binds=True)
    # What is made depends on the version of the server.
    context.get_context().dialect.server_version_info = connection.dialect.server_version_info
    with context.begin_transaction():
        context.execute(_MAKE_SCHEMA)
        context.run_migrations()
else:
    connection.execute(text(_MAKE_SCHEMA))
    connection.commit()
    context.configure(connection=connection, version_table_schema=SCHEMA)
    with context.begin_transaction():
        context.run_migrations()
