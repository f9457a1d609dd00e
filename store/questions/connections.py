"""Write an instance's list of its connections, and query which of them are to be closed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from store import arrays
from store.asking import Query, nothing
from store.libpq import int4
from store.tables import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from store.asking import Queries
    from store.errors import StoreError


@dataclass(frozen=True)
class LinkLine:
    """A link of a connection. ``role``: what the client is: sender, receiver, coordinator or checker."""

    name: str
    role: str
    #: None: the link has none, as one to the coordinator, or a sender on the anonymous relay
    address: str | None
    credit: int
    unsettled: int
    #: how many it has carried
    deliveries: int


class Line(NamedTuple):
    """A connection as it is now, or as it ended. Texts have no control characters, and at most some 200 characters."""

    number: int
    user_name: str | None
    host: str
    #: None: a client of this machine without one
    port: int | None
    container_id: str
    product: str | None
    version: str | None
    #: the version of TLS; None: the connection has no TLS
    tls: str | None
    #: seconds since 1970; None: it was never open
    opened: float | None
    sessions: int
    links: int
    #: the first of its links
    link_list: Sequence[LinkLine]
    unsettled: int
    #: messages that the client has posted, and that it was sent
    posted: int
    delivered: int
    posted_per_second: float
    delivered_per_second: float
    last_error: str | None
    closed: float | None = None
    close_reason: str | None = None

    @property
    def text(self) -> str:
        """The line in JSON."""
        return json.dumps({**self._asdict(), "link_list": [vars(each) for each in self.link_list]})


_COLUMNS = (
    *("user_name", "host", "port", "container_id", "product", "version", "tls", "opened_at", "sessions", "links"),
    *("link_list", "unsettled", "posted", "delivered", "posted_per_second", "delivered_per_second", "last_error"),
    *("closed_at", "close_reason"),
)

#: instance, lines as an array of JSON, numbers of connections whose rows go: writes the lines, over what there is
_WRITE: Query[None] = Query(
    b"connections",
    f"""with gone as (
          delete from {SCHEMA}.connection where instance_id = $1::int4 and number = any($3::int8[]))
        insert into {SCHEMA}.connection (instance_id, number, {", ".join(_COLUMNS)})
        select $1::int4, t.number, t.user_name, t.host, t.port, t.container_id, t.product, t.version, t.tls,
               to_timestamp(t.opened), t.sessions, t.links, t.link_list, t.unsettled, t.posted, t.delivered,
               t.posted_per_second, t.delivered_per_second, t.last_error, to_timestamp(t.closed), t.close_reason
          from jsonb_to_recordset($2::text::jsonb) t(
               number int8, user_name text, host text, port int4, container_id text, product text, version text,
               tls text, opened float8, sessions int4, links int4, link_list jsonb, unsettled int4, posted int8,
               delivered int8, posted_per_second float4, delivered_per_second float4, last_error text, closed float8,
               close_reason text)
         where exists (select from {SCHEMA}.instance where id = $1::int4 and ended_at is null)
        on conflict (instance_id, number) do update
          set ({", ".join(_COLUMNS)}, written_at) = ({", ".join(f"excluded.{each}" for each in _COLUMNS)}, now())""",
    nothing,
    aside=True,
)

#: instance: selects the connections that are to be closed, and the reasons that were given for it
_TO_CLOSE: Query[dict[int, str]] = Query(
    b"connections to close",
    f"""select number, close_asked from {SCHEMA}.connection
         where instance_id = $1::int4 and close_asked is not null and closed_at is null""",
    dict,
)


def write(
    asked: Queries,
    instance_id: int,
    texts: Collection[str],
    gone: Sequence[int],
    written: Callable[[StoreError | None], None],
) -> None:
    """Write lines (:attr:`Line.text`) of connections, and delete those with the numbers ``gone``."""
    parameters = [int4(instance_id), f"[{','.join(texts)}]".encode(), arrays.int8(gone)]
    asked.ask(_WRITE, parameters, written)


def to_close(asked: Queries, instance_id: int, answered: Callable[[dict[int, str] | StoreError], None]) -> None:
    """Query the numbers of the connections that are to be closed, each with the given reason, or an empty text."""
    asked.ask(_TO_CLOSE, [int4(instance_id)], answered)
