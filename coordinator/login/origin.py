"""Where a client comes from, as it is counted: by its host, or by what a host may have many of."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from socket import socket


def origin_of(host: str) -> str:
    """Of IPv6 the network of 64 bits, all of whose addresses one host may have."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))


def peer_of(sock: socket) -> str:
    """The other end as the log names it: by host and port."""
    try:
        name = sock.getpeername()
    except OSError:
        return "gone"
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)


def origin_of_peer(peer: str) -> str:
    """Of a client as :func:`peer_of` names it."""
    return origin_of(peer.rpartition(":")[0] or peer)
