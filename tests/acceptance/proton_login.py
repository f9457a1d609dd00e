"""The client that python-qpid-proton ships logs in, as the environment says, with the one mechanism that it allows; and
attaches links to an address, where that names one.

``python -m tests.acceptance.proton_login URL`` prints one line of JSON with what the client saw.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from proton import ConnectionException, SSLDomain
from proton.utils import BlockingConnection, LinkDetached

#: Seconds for what must arrive.
PATIENCE = 60.0


def login(url: str) -> dict[str, object]:
    domain = None
    if url.startswith("amqps:"):
        domain = SSLDomain(SSLDomain.MODE_CLIENT)
        domain.set_trusted_ca_db(os.environ["LOGIN_CA"])
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
        if "LOGIN_CERTIFICATE" in os.environ:
            domain.set_credentials(os.environ["LOGIN_CERTIFICATE"], os.environ["LOGIN_KEY"], None)
    try:
        connection = BlockingConnection(
            url,
            timeout=PATIENCE,
            ssl_domain=domain,
            user=os.environ["LOGIN_USER"],
            password=os.environ["LOGIN_PASSWORD"],
            allowed_mechs=os.environ["LOGIN_MECHANISM"],
            sasl_enabled=True,
            allow_insecure_mechs=True,
        )
    except ConnectionException as error:
        return {"refused": str(error)}
    seen: dict[str, object] = {"in": True}
    address = os.environ.get("LOGIN_ADDRESS")
    if address is not None:
        seen["send"] = _refusal(lambda: connection.create_sender(address))
        seen["receive"] = _refusal(lambda: connection.create_receiver(address))
    connection.close()
    return seen


def _refusal(attach: Callable[[], object]) -> str | None:
    """As the client shows it."""
    try:
        attach()
    except LinkDetached as error:
        return str(error)
    return None


def main() -> None:
    (url,) = sys.argv[1:]
    sys.stdout.write(json.dumps(login(url)) + "\n")


if __name__ == "__main__":
    main()
