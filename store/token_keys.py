"""Keep the public keys of an issuer of tokens, for starts at which it does not answer (S13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert

from store.errors import boundary
from store.tables import token_keys


def read(connection: Connection, issuer: str) -> list[dict[str, Any]] | None:
    """Return the keys that were kept last; None: none were."""
    with boundary():
        found = connection.scalar(select(token_keys.c["keys"]).where(token_keys.c.issuer == issuer))
        connection.rollback()
    return found


def keep(connection: Connection, issuer: str, keys: Sequence[Mapping[str, str]]) -> None:
    """Keep the keys in place of the issuer's earlier ones; commits."""
    given = {"keys": list(keys), "read_at": func.now()}
    with boundary():
        statement = insert(token_keys).values(issuer=issuer, **given)
        connection.execute(statement.on_conflict_do_update(index_elements=[token_keys.c.issuer], set_=given))
        connection.commit()
