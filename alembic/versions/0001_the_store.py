"""Create the store as ``store/tables.py`` declares it. Each later release that changes it has one migration."""

from __future__ import annotations

from alembic import op
from store.locks import NAMES
from store.tables import lock, metadata

revision = "0.1"
down_revision = None
branch_labels = None
depends_on = None

# For an administrator, who may run what was printed for another database.
_REFUSE_ENCODING = """do $$ begin
  if current_setting('server_encoding') <> 'UTF8' then
    raise exception using message = 'the encoding of the database is ' || current_setting('server_encoding')
      || ', expected UTF8: create database ... encoding ''UTF8'' template template0';
  end if;
end $$"""


def upgrade() -> None:
    op.execute(_REFUSE_ENCODING)
    metadata.create_all(op.get_bind())
    op.execute("insert into coordinator.store_identity default values")
    op.bulk_insert(lock, [{"name": name} for name in NAMES])
