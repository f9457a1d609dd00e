"""One worker, started by the supervisor only: ``python -m coordinator.commands.worker FD``.

FD is a file in memory with a JSON object: ``settings``; ``database_url``; ``listeners``, the file descriptors of
listening sockets; ``ready``, that of a pipe to write a byte to when it serves; ``number``; ``parent``, the supervisor.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

import structlog

from coordinator import logs
from coordinator.settings import Settings
from coordinator.supervisor import STATUS_UNFIT
from links import worker
from store.errors import SchemaMismatch
from store.processes import die_with_parent


def main(handed: int) -> int:
    with os.fdopen(handed, "rb") as stream:
        stream.seek(0)
        message = json.load(stream)
    die_with_parent(signal.SIGKILL, int(message["parent"]))
    settings = Settings.model_validate_json(json.dumps(message["settings"]))
    logs.configure(settings.log, worker=message["number"])
    listeners = [socket.socket(fileno=number) for number in message["listeners"]]
    for number in (*message["listeners"], message["ready"]):
        os.set_inheritable(number, False)

    def ready() -> None:
        os.write(message["ready"], b"\n")
        os.close(message["ready"])

    try:
        return worker.main(settings, listeners, message["database_url"], ready)
    except SchemaMismatch as error:
        # To start again would not help.
        structlog.get_logger().error("cannot work", reason=str(error))
        return STATUS_UNFIT


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
