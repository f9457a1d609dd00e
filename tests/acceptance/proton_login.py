"""The client that python-qpid-proton ships logs in, as the environment says, with the one mechanism that it allows.

``python -m tests.acceptance.proton_login PORT`` prints one line of JSON with what the client saw.
"""

from __future__ import annotations

import json
import os
import sys

from proton import ConnectionException
from proton.utils import BlockingConnection

#: Seconds for what must arrive.
PATIENCE = 60.0


def login(url: str) -> dict[str, object]:
    try:
        connection = BlockingConnection(
            url,
            timeout=PATIENCE,
            user=os.environ["LOGIN_USER"],
            password=os.environ["LOGIN_PASSWORD"],
            allowed_mechs=os.environ["LOGIN_MECHANISM"],
            sasl_enabled=True,
            allow_insecure_mechs=True,
        )
    except ConnectionException as error:
        return {"refused": str(error)}
    connection.close()
    return {"in": True}


def main() -> None:
    (port,) = sys.argv[1:]
    sys.stdout.write(json.dumps(login(f"amqp://127.0.0.1:{port}")) + "\n")


if __name__ == "__main__":
    main()
