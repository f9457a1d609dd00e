"""Query what users may do (S3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from store import arrays
from store.asking import Query
from store.tables import ANONYMOUS, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from store.asking import Queries, Row
    from store.errors import StoreError

#: Verbs, each with a pattern.
Granted = frozenset[tuple[str, str]]


class Found(NamedTuple):
    """The permissions found.

    ``changes``: the number of changes so far. ``none_counts``: the store has no users and no permissions, so that
    everything is allowed. ``users``: of those queried that have some. ``roles``: likewise, and of clients without a
    login, whose role is :data:`store.tables.ANONYMOUS`.
    """

    changes: int
    none_counts: bool
    users: Mapping[str, Granted]
    roles: Mapping[str, Granted]


def _found(rows: list[Row]) -> Found:
    changes, none_counts = 0, False
    users: dict[str, set[tuple[str, str]]] = {}
    roles: dict[str, set[tuple[str, str]]] = {}
    for number, nothing, user, role, verb, pattern in rows:
        if number is not None:
            changes, none_counts = number, nothing
        elif user is not None:
            users.setdefault(user, set()).add((verb, pattern))
        else:
            roles.setdefault(role, set()).add((verb, pattern))
    return Found(changes, none_counts, _frozen(users), _frozen(roles))


def _frozen(granted: Mapping[str, set[tuple[str, str]]]) -> dict[str, Granted]:
    return {name: frozenset(each) for name, each in granted.items()}


#: names of users, roles: selects all their permissions in one snapshot
_PERMISSIONS = Query(
    b"permissions",
    f"""select i.permission_changes, not exists (select from {SCHEMA}.user_account)
               and not exists (select from {SCHEMA}.permission), null::text, null::text, null::text, null::text
          from {SCHEMA}.store_identity i
        union all
        select null, null, null, p.role, p.verb, p.pattern
          from {SCHEMA}.permission p where p.role = '{ANONYMOUS}' or p.role = any($2::text[])
        union all
        select null, null, u.name, null, p.verb, p.pattern
          from unnest($1::text[]) u(name) join {SCHEMA}.permission p on p.user_name = u.name
        union all
        select null, null, u.name, null, p.verb, p.pattern
          from unnest($1::text[]) u(name) join {SCHEMA}.user_role r on r.user_name = u.name
          join {SCHEMA}.permission p on p.role = r.role""",
    _found,
)


def find(
    asked: Queries, names: Collection[str], roles: Collection[str], answered: Callable[[Found | StoreError], None]
) -> None:
    """Query what the users ``names``, who has one of ``roles``, and clients without a login may do."""
    asked.ask(_PERMISSIONS, [arrays.text([each.encode() for each in given]) for given in (names, roles)], answered)
