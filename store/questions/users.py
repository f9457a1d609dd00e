"""Questions about users: what a password is compared with, and which of those connected may stay (S1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store import arrays
from store.asking import Query, nothing
from store.audit import Action
from store.tables import SCHEMA
from store.users import Verifier

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from store.asking import Queries, Row
    from store.errors import StoreError


def _verifier(rows: list[Row]) -> Verifier | None:
    if not rows:
        return None
    salt, iterations, stored_key, server_key, user_id = rows[0]
    return Verifier(salt=salt, iterations=iterations, stored_key=stored_key, server_key=server_key, user_id=user_id)


#: name, mechanism: the verifier of a user that may log in
VERIFIER = Query(
    b"verifier",
    f"""select v.salt, v.iterations, v.stored_key, v.server_key, u.id
          from {SCHEMA}.user_account u join {SCHEMA}.user_verifier v on v.user_name = u.name
         where u.name = $1::text and v.mechanism = $2::text and u.disabled_at is null""",
    _verifier,
)

#: names: the ids of those that may log in
ENABLED: Query[dict[str, str]] = Query(
    b"enabled",
    f"select name, id from {SCHEMA}.user_account where name = any($1::text[]) and disabled_at is null",
    dict,
)


#: whether there is any
ANY = Query(b"any user", f"select from {SCHEMA}.user_account limit 1", bool)


def are_there(asked: Queries, answered: Callable[[bool | StoreError], None]) -> None:
    """Whether there are any."""
    asked.ask(ANY, [], answered)


def verifier(
    asked: Queries, name: str, mechanism: str, answered: Callable[[Verifier | StoreError | None], None]
) -> None:
    """None: there is no such user, it is disabled, or it has no password."""
    asked.ask(VERIFIER, [arrays.octets_of(name), mechanism.encode()], answered)


def enabled(asked: Queries, names: Collection[str], answered: Callable[[dict[str, str] | StoreError], None]) -> None:
    """Which of the users ``names`` may log in, with their ids: a user made anew has another."""
    asked.ask(ENABLED, [arrays.text([name.encode() for name in names])], answered)


# Logins that failed, for the audit (S10).

#: users ('': none), hosts ('': several), why ('': not told), how often
_FAILED = Query(
    b"failed_logins",
    f"""insert into {SCHEMA}.audit (action, client_user, place, detail, times)
        select '{Action.LOGIN_FAILED}', nullif(f.name, ''), nullif(f.host, ''),
               jsonb_strip_nulls(jsonb_build_object('why', nullif(f.why, ''))), f.times
          from unnest($1::text[], $2::text[], $3::text[], $4::int4[]) f(name, host, why, times)""",
    nothing,
)


def failed_logins(
    asked: Queries, rows: Sequence[tuple[str, str, str, int]], answered: Callable[[StoreError | None], None]
) -> None:
    """Note how often a login failed, by user, host and why."""
    *told, times = zip(*rows, strict=True)
    parameters = [arrays.text([arrays.octets_of(each) for each in column]) for column in told]
    parameters.append(arrays.int4(times))
    asked.ask(_FAILED, parameters, answered)
