"""Logins that failed, for the audit (S10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store import arrays
from store.asking import Query, nothing
from store.audit import Action
from store.tables import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from store.asking import Queries
    from store.errors import StoreError

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
