"""The supervisor runs the metrics in a child."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import structlog

from coordinator.process import logs
from coordinator.process.children import Handed
from coordinator.process.listeners import loopback
from coordinator.process.measuring import Measuring

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


def measure(handed: Handed) -> int:
    """Serve metrics and the API until the supervisor ends. It may be killed at any time, as a command may be."""
    # Loaded by then, where there are to be metrics (coordinator/commands/serve.py).
    from coordinator.http.access import Access
    from coordinator.http.acting import Acting
    from coordinator.http.api import Asking
    from coordinator.http.application import application
    from coordinator.http.server import Server

    logs.configure(handed.settings.log, process="metrics")
    measuring = Measuring(handed.database_url, handed.supervising, handed.settings, handed.tls)
    measuring.disk_low = handed.disk_low
    if handed.settings.tokens.issuer is not None:
        from coordinator.login.tokens import Tokens

        measuring.tokens = Tokens(handed.settings.tokens, handed.token_keys)
    local = all(loopback(each.getsockname()[0]) for each in handed.listeners)
    asking = Asking(handed.database_url, handed.settings.limits.disk_free_bytes, handed.data_dir)
    acting = Acting(handed.database_url, handed.settings.retention)
    answering = application(measuring, Access(measuring, local=local), asking, acting)
    server = Server(answering, handed.listeners, lambda: measuring.tls)
    threading.Thread(target=_serve, args=(server.run,), daemon=True).start()
    measuring.run()
    return 0


def _serve(run: Callable[[], None]) -> None:
    """Run the server; its end, by a defect, is that of the process, which is started again."""
    try:
        run()
    finally:
        _log.critical("process ended by an error", exc_info=True)
        os._exit(1)
