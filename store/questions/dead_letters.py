"""Questions about entries that are marked failed and on their way to the dead letters (rule D4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from store.asking import Query, nothing
from store.questions.columns import MESSAGE, SIZE, WHOLE, int4
from store.tables import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable

    from store.asking import Queries, Row
    from store.errors import StoreError


class Failed(NamedTuple):
    """An entry marked failed, with what its letter must say."""

    group: int
    id: int
    half_id: int
    failures: int
    #: the reason
    failed: str
    annotations: bytes | None
    #: the message, or the beginning of a large one
    message: bytes | None
    txn_id: bytes | None
    #: ``''``: its address, or group, is removed
    address: str
    group_name: str
    #: size of a large message; 0 for all others
    whole: int


def _failed(rows: list[Row]) -> list[Failed]:
    return [Failed(*row) for row in rows]


#: lease: entries of any group on their way to the dead letters, with what their letter must say; of a large message its
#: beginning. Entries whose half is missing are passed over.
LEASE = Query(
    b"lease_failed",
    f"""with picked as (
          select e.group_id, e.id, e.half_id from {SCHEMA}.entry e join {SCHEMA}.half h on h.id = any(array[e.half_id])
           where e.failed is not null and e.lease = 0
           limit 100 for update of e skip locked),
        sized as materialized (
          select p.group_id, p.id, sum({SIZE}) over (order by p.id) - {SIZE} as before
            from picked p join {SCHEMA}.half h on h.id = any(array[p.half_id])),
        leased as (
          update {SCHEMA}.entry e set lease = $1::int4 from sized s
           where e.group_id = any(array[s.group_id]) and e.id = s.id and s.before < 4194304
          returning e.group_id, e.id, e.half_id, e.failures, e.failed, e.annotations)
        select l.group_id, l.id, l.half_id, l.failures, l.failed, l.annotations, {MESSAGE}, uuid_send(h.txn_id),
               coalesce(a.name, ''), coalesce(g.name, ''), {WHOLE}
          from leased l join {SCHEMA}.half h on h.id = any(array[l.half_id])
          left join {SCHEMA}.consumer_group g on g.id = any(array[l.group_id])
          left join {SCHEMA}.address a on a.id = any(array[g.address_id])
         order by l.group_id, l.id""",
    _failed,
    again=False,
)

#: lease: gives up the leases of entries marked failed, after the reply that named them was lost
GIVE_BACK = Query(
    b"yield_failed",
    f"update {SCHEMA}.entry set lease = 0 where failed is not null and lease = $1::int4",
    nothing,
)


def lease(asked: Queries, instance: int, leased: Callable[[list[Failed] | StoreError], None]) -> None:
    """Lease entries marked failed, of any group: at most a hundred, and some megabytes."""
    asked.ask(LEASE, [int4(instance)], leased)


def give_back(asked: Queries, instance: int, given_back: Callable[[StoreError | None], None]) -> None:
    """Give up the instance's leases of entries marked failed."""
    asked.ask(GIVE_BACK, [int4(instance)], given_back)
