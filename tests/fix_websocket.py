"""A service that takes AMQP over WebSockets."""

from __future__ import annotations

from tests.fix_service import Service
from tests.wire.websocket import PATH


class WebSockets(Service):
    """In plain text at the first port, behind TLS at the second, and at the third without WebSockets."""

    @property
    def listens(self) -> list[str]:
        return [f"ws://127.0.0.1:{self.port}{PATH}", f"wss://127.0.0.1:0{PATH}", "amqp://127.0.0.1:0"]


class PlainWebSocket(Service):
    """In plain text alone."""

    @property
    def listens(self) -> list[str]:
        return [f"ws://127.0.0.1:{self.port}{PATH}"]
