"""The server answers HTTP on its listeners: each request within a time, and few at once (S5)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from email.utils import formatdate
from functools import partial

import structlog
from h11 import Data, EndOfMessage, Response
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from coordinator.login.logins import origin_of

#: A page of the console has five requests, and all that come by one proxy are of one host.
_MOST_REQUESTS = 64
_LONGEST_REQUEST_SECONDS = 10.0
#: Answers at one time that may last, as events and downloads do, beside the other requests; and for how long.
_MOST_LASTING = 32
_LONGEST_LASTING_SECONDS = 900.0
#: The pause after an accept for which the system has no descriptor left.
_ACCEPT_PAUSE_SECONDS = 1.0

#: What a browser may do with an answer (S11): pages of the console load their style, their
#: scripts and what these ask for, and send forms. A frame is for a report, which alone lets itself be embedded.
_POLICY = (
    *("default-src 'none'", "style-src 'self'", "script-src 'self'", "form-action 'self'"),
    *("connect-src 'self'", "frame-src 'self'"),
    *("base-uri 'none'", "frame-ancestors 'none'"),
)
_CONTENT_POLICY = "Content-Security-Policy"
#: A browser must not embed or keep an answer, nor run or show it as what it is not. A connection has one request.
_HEADERS = [
    ("Server", "coordinator"),
    ("Connection", "close"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
]

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Server:
    """Accepts connections, and gives each to uvicorn for one request. Long requests are cut off; if there are too many
    at once, one of the host with the most is, so that it does not exclude others. The application lets an answer last
    by ``request.state.last()``, which returns whether there is room for it.
    """

    def __init__(
        self, application: ASGIApp, listeners: Sequence[socket.socket], tls: Callable[[], ssl.SSLContext | None]
    ) -> None:
        """``tls`` returns the context of a new connection; None: without TLS."""
        self._listeners = listeners
        self._tls = tls
        self._config = Config(
            _with_policy(application),
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            headers=_HEADERS,
        )
        self._config.load()
        self._state = ServerState()
        #: the host of each request, or its IPv6 network of 64 bits, the oldest first
        self._hosts: dict[asyncio.Task[None], str] = {}
        #: the requests whose answers last
        self._lasting: set[asyncio.Task[None]] = set()

    def run(self) -> None:
        """Serve for ever."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        await asyncio.gather(*map(self._accept, self._listeners))

    async def _accept(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        while True:
            try:
                peer, address = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as error:
                _log.debug("a connection for HTTP was not accepted", reason=error.strerror)
                await asyncio.sleep(_ACCEPT_PAUSE_SECONDS)
            else:
                self.take(peer, address[0])

    def take(self, peer: socket.socket, host: str) -> None:
        """Answer the request of ``peer``, an accepted connection from ``host``; make room for it first."""
        if len(self._hosts) >= _MOST_REQUESTS:
            ((most, _),) = Counter(self._hosts.values()).most_common(1)
            oldest = next(task for task, of in self._hosts.items() if of == most)
            del self._hosts[oldest]
            oldest.cancel()
        task = asyncio.get_running_loop().create_task(self._answer(peer))
        self._hosts[task] = origin_of(host)
        task.add_done_callback(lambda task: self._close(task, peer))

    def _close(self, task: asyncio.Task[None], peer: socket.socket) -> None:
        """Close a connection whose task has ended, or was cut off before it began."""
        self._hosts.pop(task, None)
        self._lasting.discard(task)
        peer.close()

    def _last(self, task: asyncio.Task[None], limit: asyncio.Timeout) -> bool:
        """Let the answer of a request that is not cut off yet last, if there is room for it."""
        if len(self._lasting) >= _MOST_LASTING or self._hosts.pop(task, None) is None:
            return False
        self._lasting.add(task)
        limit.reschedule(asyncio.get_running_loop().time() + _LONGEST_LASTING_SECONDS)
        return True

    async def _answer(self, peer: socket.socket) -> None:
        """Last until the connection is closed: by uvicorn after the answer, by the peer, or cut off."""
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode()), *self._config.encoded_headers]
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        transport: asyncio.Transport | None = None
        try:
            # The peer may disconnect at any time, begin no handshake, or send what is no TLS.
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(_LONGEST_REQUEST_SECONDS) as limit:
                    task = asyncio.current_task()
                    assert task is not None
                    may_last = partial(self._last, task, limit)
                    transport, _ = await loop.connect_accepted_socket(
                        lambda: _Connection(self._config, self._state, ended, may_last), peer, ssl=self._tls()
                    )
                    await ended
        finally:
            if transport is not None:
                transport.abort()


def _with_policy(application: ASGIApp) -> ASGIApp:
    """Add the policy to each answer that has none of its own."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def begin(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault(_CONTENT_POLICY, "; ".join(_POLICY))
            await send(message)

        await application(scope, receive, begin)

    return answer


class _Connection(H11Protocol):
    """Uvicorn's connection, whose ``ended`` is done when it is lost."""

    def __init__(
        self, config: Config, state: ServerState, ended: asyncio.Future[None], may_last: Callable[[], bool]
    ) -> None:
        """``may_last`` returns whether there is room for an answer that lasts."""
        super().__init__(config, state, {"last": self._last})
        self._ended = ended
        self._may_last = may_last
        self._lasts = False

    def _last(self) -> bool:
        self._lasts = self._may_last()
        return self._lasts

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self._ended.done():
            self._ended.set_result(None)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open for the answer, unless that lasts; TLS has no such half."""
        cycle: RequestResponseCycle | None = self.cycle
        return self.scheme == "http" and cycle is not None and not cycle.response_complete and not self._lasts

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, without quoting it."""
        body = b"expected a request of HTTP/1.0 or HTTP/1.1\n"
        headers = [
            *self.server_state.default_headers,
            (_CONTENT_POLICY.lower().encode(), "; ".join(_POLICY).encode()),
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(body)),
        ]
        for event in (Response(status_code=400, headers=headers), Data(data=body), EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
