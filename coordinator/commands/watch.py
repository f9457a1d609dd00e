"""The watch over the instances, started by the supervisor only: ``python -m coordinator.commands.watch FD``.

FD is a file in memory with a JSON object: ``settings``; ``database_url``; ``supervisor`` and ``parent``
(:mod:`coordinator.process.handed`).
"""

from __future__ import annotations

import json
import signal
import sys

from coordinator.process import handed, logs
from coordinator.process.watching import Watching
from coordinator.settings import Settings


def main(memory: int) -> None:
    message, supervising = handed.take(memory)
    settings = Settings.model_validate_json(json.dumps(message["settings"]))
    logs.configure(settings.log, process="watch")
    # It may end at any time: the database undoes what it had begun.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Watching(message["database_url"], supervising).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
