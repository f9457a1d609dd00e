"""The role whose members may call what an application calls, read the views, and touch no table."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, text
from sqlalchemy.dialects import postgresql

from store import audit, roles
from store.application import enlistment, outbox
from store.errors import boundary
from store.tables import SCHEMA, inbox_owner

ROLE = "coordinator_application"
#: What its members may read.
VIEWS = ("addresses", "entries", "groups", "messages", "outcome", "undecided")

_FUNCTIONS = (*outbox.signatures(SCHEMA), *enlistment.signatures(SCHEMA), f"{SCHEMA}.first_time(text, text)")


def grant(connection: Connection, role: str, consumers: Collection[str] = ()) -> None:
    """Make ``role`` a member of :data:`ROLE`, which is made where it is missing, with rights to what there is now;
    commits. Roles are those of the whole server: two stores in one server share it, each with rights of its own. From
    now on the names of ``consumers`` in the inbox belong to it (X4), and no longer to the role that had them.

    :raises NoSuchRole: the server has no such role.
    :raises StoreUnavailable: the role of this connection may make no roles, or give none.
    """
    with boundary():
        roles.make(connection, ROLE, for_=role)
        connection.execute(text(f"grant usage on schema {SCHEMA} to {ROLE}"))
        connection.execute(text(f"grant execute on function {', '.join(_FUNCTIONS)} to {ROLE}"))
        connection.execute(text(f"grant select on {', '.join(f'{SCHEMA}.{view}' for view in VIEWS)} to {ROLE}"))
        roles.join(connection, ROLE, role)
        for name in consumers:
            owned = postgresql.insert(inbox_owner).values(consumer=name, owner=role)
            taken = owned.on_conflict_do_update(index_elements=["consumer"], set_={"owner": role})
            connection.execute(taken)
        audit.note(connection, audit.Action.GRANT_SQL, role, {"inbox": sorted(consumers)} if consumers else {})
        connection.commit()
