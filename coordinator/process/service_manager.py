"""The service manager that has started the service (systemd, with ``Type=notify``) is told when it serves and stops.

Where none asks for it, ``NOTIFY_SOCKET`` is not in the environment, and nothing is sent (sd_notify(3)).
"""

from __future__ import annotations

import os
import socket

import structlog

_log: structlog.stdlib.BoundLogger = structlog.get_logger()

READY = "READY=1"
STOPPING = "STOPPING=1"


class ServiceManager:
    """Takes the address out of the environment: PostgreSQL would report itself there."""

    def __init__(self) -> None:
        given = os.environ.pop("NOTIFY_SOCKET", "")
        # An abstract address is written with an @.
        self._address = "\0" + given[1:] if given.startswith("@") else given

    def tell(self, state: str) -> None:
        """Send a state; a manager that cannot be told is logged, and the service goes on."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
                told.setblocking(False)
                told.sendto(state.encode(), self._address)
        except OSError as error:
            _log.warning("service manager not told", state=state, reason=error.strerror or str(error))
