"""An upgrade is the request of an HTTP client to go on as a WebSocket, and the answer to it (S14; RFC 6455, section
4.2; AMQP WebSocket Binding, section 2).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from wsproto.connection import SERVER, Connection
from wsproto.events import AcceptConnection, RejectConnection, RejectData, Request
from wsproto.handshake import H11Handshake
from wsproto.utilities import RemoteProtocolError

from coordinator.printable import printable

#: the sub-protocol's name (AMQP WebSocket Binding, section 2.1)
SUBPROTOCOL = "amqp"
#: the most octets of a request with its headers
MOST_OCTETS = 8192

_METHOD = b"GET "
_VERSION = b" HTTP/1.1"
#: a Sec-WebSocket-Key: 16 octets in base64 (RFC 6455, section 4.1)
_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")
_END = b"\r\n\r\n"
#: headers by which a request has a body, that a WebSocket would take for frames
_OF_BODIES = (b"content-length", b"transfer-encoding")
#: characters of what a client said that are repeated to it
_LONGEST = 100


class Door(NamedTuple):
    """What a listener for WebSockets takes."""

    path: str
    #: where a web page may come from that connects, such as ``https://shop.example``
    origins: Collection[str]
    #: whether clients may come in without a login
    anonymous: bool


class Upgrade:
    """Handles the first octets of a connection. ``connection``: the WebSocket, once it is agreed on. ``refused``: why
    there is none.
    """

    def __init__(self, door: Door) -> None:
        self._door = door
        self._handshake = H11Handshake(SERVER)
        self._octets = b""
        self.connection: Connection | None = None
        self.refused = ""

    def take(self, octets: bytes) -> bytes:
        """Handle the next octets of the client; return the answer, empty while the request is incomplete."""
        searched = max(0, len(self._octets) - len(_END))
        self._octets += octets
        if not self._octets.startswith(_METHOD[: len(self._octets)]):
            return self._refuse(400, f"{self._expected}, which begins with GET")
        end = self._octets.find(_END, searched, MOST_OCTETS)
        if end >= 0:
            end += len(_END)
            request, self._octets = self._octets[:end], self._octets[end:]
            return self._answer(request)
        if len(self._octets) >= MOST_OCTETS:
            return self._refuse(431, f"expected at most {MOST_OCTETS} octets of a request and its headers")
        return b""

    @property
    def rest(self) -> bytes:
        """The octets behind the request."""
        return self._octets

    @property
    def _expected(self) -> str:
        return f"expected the request for a WebSocket with the sub-protocol {SUBPROTOCOL} at {self._door.path}"

    def _answer(self, octets: bytes) -> bytes:
        if octets.count(b"\n") != octets.count(b"\r\n"):  # of which a proxy in front may make something else
            return self._refuse(400, f"{self._expected}: it has a line that does not end by CRLF")
        try:
            self._handshake.receive_data(octets)
            requests = [event for event in self._handshake.events() if isinstance(event, Request)]
        except RemoteProtocolError as error:
            hint = error.event_hint
            assert isinstance(hint, RejectConnection)
            return self._refuse(hint.status_code, f"{self._expected}: {error}", hint.headers)
        except UnicodeError:
            return self._refuse(400, f"{self._expected}: a header has octets that are no ASCII")
        if not octets.partition(b"\r\n")[0].endswith(_VERSION):
            return self._refuse(400, f"{self._expected}: it comes by HTTP/1.1")
        return self._answer_request(requests[0])

    def _answer_request(self, request: Request) -> bytes:
        headers = request.extra_headers
        if any(name in _OF_BODIES for name, _ in headers):
            return self._refuse(400, f"{self._expected}: it has no body")
        keys = [value for name, value in headers if name == b"sec-websocket-key"]
        if len(keys) != 1 or not _KEY.fullmatch(keys[0]):
            return self._refuse(400, f"{self._expected}: it has one Sec-WebSocket-Key of 16 octets in base64")
        path = request.target.partition("?")[0]
        if path != self._door.path:
            return self._refuse(404, f"{self._expected}, not at {printable(path, _LONGEST)}")
        for origin in (value.decode("latin-1").lower() for name, value in headers if name == b"origin"):
            if origin not in self._door.origins and not self._is_own(origin, request.host.lower()):
                shown = printable(origin, _LONGEST)
                return self._refuse(403, f"pages of {shown} may not connect: it is not in websocket.origins")
        if SUBPROTOCOL not in request.subprotocols:
            offered = printable(", ".join(request.subprotocols), _LONGEST) or "none"
            return self._refuse(400, f"expected the sub-protocol {SUBPROTOCOL}, and the client offers {offered}")
        answer = self._handshake.send(AcceptConnection(subprotocol=SUBPROTOCOL))
        self.connection = self._handshake.connection
        return answer

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether the origin is the service's own host, which some clients send that are no browsers.

        A web page may connect wherever its reader's browser can, as to a port of this machine that asks for no login;
        and the owner of a name can have it lead there, after the page was read. So where no login is asked for, a host
        is the service's own by its address alone.
        """
        if origin not in (f"http://{host}", f"https://{host}"):
            return False
        return not self._door.anonymous or _is_address(origin)

    def _refuse(self, status: int, why: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
        self.refused = why
        body = f"{why}\n".encode()
        about = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        reject = RejectConnection(status_code=status, headers=[*headers, *about], has_body=True)
        return self._handshake.send(reject) + self._handshake.send(RejectData(data=body))


def _is_address(origin: str) -> bool:
    try:
        host = urlsplit(origin).hostname or ""
        return host == "localhost" or bool(ip_address(host))
    except ValueError:
        return False
