"""One worker, started by the supervisor only: ``python -m coordinator.commands.worker FD``.

FD is a file in memory with a JSON object: ``settings``; ``database_url``; ``listeners``, for each worker the file
descriptors of its listening sockets; ``supervisor`` and ``parent`` (:mod:`coordinator.process.handed`).

It loads everything, then waits until the supervisor tells it which worker it is (``number``): at once, or much later in
the place of one that died. It says ``ready`` when it serves.
"""

from __future__ import annotations

import json
import socket
import sys

import structlog

from coordinator.process import handed, logs
from coordinator.process.supervisor import STATUS_UNFIT
from coordinator.settings import Settings
from links import worker
from store.database import prepare
from store.errors import SchemaMismatch


def main(memory: int) -> int:
    message, supervising = handed.take(memory)
    settings = Settings.model_validate_json(json.dumps(message["settings"]))
    prepare()
    told = supervising.hear()
    if not told:
        return 0
    number = told[0]["number"]
    disk_low = bool(told[-1].get("disk_low"))  # each line has it: the last one counts
    logs.configure(settings.log, worker=number)
    listeners = []
    for index, descriptors in enumerate(message["listeners"]):
        for each in (socket.socket(fileno=descriptor) for descriptor in descriptors):
            each.set_inheritable(False)
            if index == number:
                listeners.append(each)
            else:
                each.close()
    try:
        return worker.main(settings, listeners, message["database_url"], supervising, disk_low=disk_low)
    except SchemaMismatch as error:
        # Another start would fail as well.
        structlog.get_logger().error("cannot work", reason=str(error))
        return STATUS_UNFIT


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
