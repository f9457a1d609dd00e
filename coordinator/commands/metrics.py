"""The metrics, started by the supervisor only: ``python -m coordinator.commands.metrics FD``.

FD is a file in memory with a JSON object: ``settings``; ``database_url``; ``metrics``, the descriptors of listening
sockets; ``supervisor`` and ``parent`` (:mod:`coordinator.process.handed`).
"""

from __future__ import annotations

import json
import signal
import socket
import sys

from coordinator.process import handed, logs
from coordinator.process.measuring import Measuring
from coordinator.settings import Settings


def main(memory: int) -> None:
    message, supervising = handed.take(memory)
    settings = Settings.model_validate_json(json.dumps(message["settings"]))
    logs.configure(settings.log, process="metrics")
    # It may end at any time: it only reads.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    listeners = [socket.socket(fileno=each) for each in message["metrics"]]
    Measuring(message["database_url"], supervising, listeners).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
