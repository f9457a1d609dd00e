"""A proxy before PostgreSQL that can hold traffic, cut connections, and cut them on one side only."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import pytest


class _Wire:
    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server


class Proxy:
    """Listens on 127.0.0.1 and forwards to the server of ``url``; :attr:`url` connects through it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = {name: values for name, values in parse_qs(parts.query).items() if name not in ("host", "port")}
        self.lead_to(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        place = f"{user}127.0.0.1:{self._listener.getsockname()[1]}"
        rest = urlencode({name: values[0] for name, values in query.items()} | {"sslmode": "disable"})
        self.url = urlunsplit(parts._replace(netloc=place, query=rest))
        self._wires: list[_Wire] = []
        self._orphans: list[socket.socket] = []
        self._frozen: list[_Wire] = []
        self._lock = threading.Lock()
        self._closed = False
        self._passes = {"requests": threading.Event(), "replies": threading.Event(), "connections": threading.Event()}
        for each in self._passes.values():
            each.set()
        #: of what came from the client, seen before it is passed on
        self.on_request: Callable[[bytes], None] = lambda _: None
        #: what a client begins with is passed on as this makes it
        self.on_startup: Callable[[bytes], bytes] = lambda octets: octets
        #: what came from the server is passed on as this makes it
        self.on_reply: Callable[[bytes], bytes] = lambda octets: octets
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, url: str) -> None:
        """New connections go to the server of ``url``."""
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        host = parts.hostname or query.get("host", [""])[0]
        port = parts.port or int(query.get("port", ["5432"])[0])
        self._upstream: str | tuple[str, int] = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)

    @property
    def wires(self) -> int:
        """Connections that go through."""
        return len(self._wires)

    @contextlib.contextmanager
    def held(self, what: str) -> Iterator[None]:
        """Inside the block, ``requests``, ``replies`` or new ``connections`` are held back."""
        self._passes[what].clear()
        try:
            yield
        finally:
            self._passes[what].set()

    def slow(self, seconds: float) -> None:
        """From now on requests of new connections are taken piece by piece, with a pause after each."""
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 19)
        self.on_request = lambda _: time.sleep(seconds)

    def pool(self) -> None:
        """As PgBouncer does, new connections are told a number of their own in the place of the server process's, and
        the server is told their clients' places with their names (``application_name_add_host``).
        """
        places = count(1)
        named = re.compile(rb"(?<=\0application_name\0)[^\0]*")

        def with_place(octets: bytes) -> bytes:
            told = named.sub(lambda name: name[0] + b" - 127.0.0.1:%d" % next(places), octets[4:], count=1)
            return (4 + len(told)).to_bytes(4, "big") + told

        self.on_startup = with_place
        key = re.compile(rb"K\0\0\0\x0c.{8}", re.DOTALL)
        self.on_reply = lambda octets: key.sub(b"K\0\0\0\x0c\x7f\xff\xff\xff\0\0\0\0", octets, count=1)

    def cut(self) -> None:
        """Cut every connection on both sides; octets that are held back are lost."""
        with self._lock:
            wires, self._wires = self._wires, []
        for wire in wires:
            _shut(wire.client)
            _shut(wire.server)

    def freeze(self) -> None:
        """The connections there are now: they neither pass anything on nor close. New ones are well."""
        with self._lock:
            self._frozen += self._wires

    def cut_client_side(self) -> None:
        """Cut the client off, without the server noticing."""
        with self._lock:
            wires, self._wires = self._wires, []
            self._orphans += [wire.server for wire in wires]
        for wire in wires:
            _shut(wire.client)

    def give_up_orphans(self) -> None:
        """The server hears now that those clients are gone, as it would in time."""
        with self._lock:
            orphans, self._orphans = self._orphans, []
        for orphan in orphans:
            _shut(orphan)

    def close(self) -> None:
        self._closed = True
        for event in self._passes.values():
            event.set()
        self._listener.close()
        self.cut()
        for orphan in self._orphans:
            orphan.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._passes["connections"].wait()
            if self._closed:
                client.close()
                return
            family = socket.AF_UNIX if isinstance(self._upstream, str) else socket.AF_INET
            server = socket.socket(family)
            try:
                server.connect(self._upstream)
            except OSError:
                server.close()
                client.close()
                continue
            wire = _Wire(client, server)
            with self._lock:
                self._wires.append(wire)
            threading.Thread(target=self._pass, args=(wire, "requests"), daemon=True).start()
            threading.Thread(target=self._pass, args=(wire, "replies"), daemon=True).start()

    def _pass(self, wire: _Wire, what: str) -> None:
        source, sink = (wire.client, wire.server) if what == "requests" else (wire.server, wire.client)
        begins = what == "requests"
        with contextlib.suppress(OSError, ValueError):
            while octets := source.recv(1 << 16):
                if what == "requests":
                    self.on_request(octets)
                    octets = self.on_startup(octets) if begins else octets
                    begins = False
                else:
                    octets = self.on_reply(octets)
                self._passes[what].wait()
                if wire in self._frozen:
                    continue
                if wire not in self._wires:
                    return
                sink.sendall(octets)
        with self._lock:
            if wire not in self._wires:
                return
            self._wires.remove(wire)
        _shut(wire.client)
        _shut(wire.server)


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    """A wire to :func:`database_url`."""
    proxy = Proxy(database_url)
    try:
        yield proxy
    finally:
        proxy.close()
