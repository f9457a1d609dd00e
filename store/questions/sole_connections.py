"""Query the claims of containers that allow one connection only (rule P15).

A claim is found by the digest of user and container-id; its holder is a connection, by its instance and its number
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from store.asking import Query, nothing
from store.channels import SOLE
from store.libpq import boolean, int4, int8
from store.tables import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable

    from store.asking import Queries, Row
    from store.errors import StoreError


class Holder(NamedTuple):
    """A connection, as the holder of the claim ``digest``."""

    digest: bytes
    instance: int
    number: int

    @property
    def parameters(self) -> list[bytes]:
        return [self.digest, int4(self.instance), int8(self.number)]


class Answer(NamedTuple):
    """The answer to a claim.

    ``own``: the connection has the claim. ``seen``: its holder has shown since the first query that it is alive.
    ``asked_at``: the time of this query, for the next ones.
    """

    own: bool
    seen: bool
    asked_at: str


def _answer(rows: list[Row]) -> Answer:
    return Answer(*rows[0][:3])


#: digest, container-id, instance, number of the connection, close_existing, time of its first query (empty: now):
#: returns whether the connection has the claim, whether the holder has shown since that it is alive, and the time of
#: this query. Notifies the current holder.
CLAIM = Query(
    b"claim",
    f"""with taken as (
          insert into {SCHEMA}.sole_connection (digest, container_id, instance_id, connection, close_existing)
          select $1::bytea, $2::text, $3::int4, $4::int8, $5::bool
           where exists (select from {SCHEMA}.instance where id = $3::int4 and ended_at is null)
          on conflict (digest) do nothing returning 1),
        there as (
          select instance_id, connection, seen_at, (instance_id, connection) = ($3::int4, $4::int8) as own
            from {SCHEMA}.sole_connection where digest = $1::bytea),
        told as (select pg_notify('{SOLE}', instance_id || ' ' || connection) from there where not own)
        select exists (select from taken) or exists (select from there where own),
               exists (select from there where not own and seen_at > nullif($6::text, '')::timestamptz),
               now()::text, (select count(*) from told)""",
    _answer,
)

#: digest, instance, number: writes that the holder of the claim is alive
RENEW = Query(
    b"seen",
    f"""update {SCHEMA}.sole_connection set seen_at = now()
         where digest = $1::bytea and instance_id = $2::int4 and connection = $3::int8""",
    nothing,
)

RELEASE = Query(
    b"release",
    f"""delete from {SCHEMA}.sole_connection
         where digest = $1::bytea and instance_id = $2::int4 and connection = $3::int8""",
    nothing,
    must=True,
)


def claim(
    asked: Queries,
    holder: Holder,
    container: str,
    *,
    close_existing: bool,
    asked_at: str,
    answered: Callable[[Answer | StoreError], None],
) -> None:
    """Take the claim if it is free; otherwise notify its holder.

    ``asked_at``: from the answer to the first query; empty in the first.
    """
    digest, instance, number = holder.parameters
    parameters = [digest, container.encode(), instance, number, boolean(close_existing), asked_at.encode()]
    asked.ask(CLAIM, parameters, answered)


def renew(asked: Queries, holder: Holder) -> None:
    """Write that the holder of the claim is alive."""
    asked.ask(RENEW, holder.parameters, lambda _: None)


def release(asked: Queries, holder: Holder) -> None:
    """Give up the claim, if the connection has it."""
    asked.ask(RELEASE, holder.parameters, lambda _: None)
