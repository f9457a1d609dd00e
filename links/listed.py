"""Describe a connection and its links for the list of connections, by what the engine knows of them."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING

from coordinator.connection_list import Line, LinkLine
from coordinator.errors import Refusal
from coordinator.printable import printable
from links import engine
from links.tls import TlsSocket

if TYPE_CHECKING:
    from links.connection import Connection
    from links.link import Link

#: characters of a text of the client
_LONGEST = 200
#: how many links are described
MOST_LINKS = 100
#: octets of an open's properties beyond which they are not looked at
_MOST_PROPERTIES = 4096


def product(connection: engine.Pointer) -> tuple[str | None, str | None]:
    """Return the properties ``product`` and ``version`` of the peer's open, each a string; None: it says nothing."""
    data = engine.connection_remote_properties(connection)
    if not data or not 0 < engine.data_encoded_size(data) <= _MOST_PROPERTIES:
        return None, None
    try:
        found = engine.properties(data, "the properties of the open")
    except Refusal:  # the open itself was taken: nothing else asks for these
        return None, None
    name, version = (
        # thousands of clients say the same
        sys.intern(printable(value, _LONGEST)) if isinstance(value := found.get(key), str) else None
        for key in ("product", "version")
    )
    return name, version


def line(connection: Connection, product: tuple[str | None, str | None], rates: tuple[float, float]) -> Line:
    """Describe a connection. ``rates``: messages a second that its client has posted, and was sent."""
    host, _, port = connection.peer.rpartition(":")
    is_network = port.isdecimal()
    sock, endpoints = connection.socket, connection.endpoints
    links = [link for link in endpoints.links.values() if link.role]
    posted, delivered = endpoints.carried
    return Line(
        number=connection.number,
        user_name=connection.user,
        host=host if is_network else connection.peer,
        port=int(port) if is_network else None,
        container_id=printable(connection.container, _LONGEST),
        product=product[0],
        version=product[1],
        tls=sock.version if isinstance(sock, TlsSocket) else None,
        opened=connection.opened_at,
        sessions=len(endpoints.sessions),
        links=len(links),
        link_list=[_link(link) for link in islice(links, MOST_LINKS)],
        unsettled=sum(engine.link_unsettled(link.pointer) for link in links),
        posted=posted,
        delivered=delivered,
        posted_per_second=round(rates[0], 1),
        delivered_per_second=round(rates[1], 1),
        last_error=connection.last_error,
    )


def _link(link: Link) -> LinkLine:
    pointer = link.pointer
    terminus = engine.link_target(pointer) if engine.link_is_receiver(pointer) else engine.link_source(pointer)
    address = engine.address_of(terminus)
    return LinkLine(
        name=printable(link.name, _LONGEST),
        role=link.role,
        address=None if address is None else printable(address, _LONGEST),
        credit=max(0, int(engine.link_credit(pointer))),
        unsettled=int(engine.link_unsettled(pointer)),
        deliveries=link.carried,
    )
