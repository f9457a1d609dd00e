"""Connections that ask to be the only one of their container, and how they are answered (rule P15)."""

from __future__ import annotations

from typing import Any

from tests.wire.frames import Error, Open
from tests.wire.peer import Peer
from tests.wire.types import Symbol, UInt

CAPABILITY = "sole-connection-for-container"
POLICY = "sole-connection-enforcement-policy"
DETECTION = "sole-connection-detection-policy"
FAILED = "amqp:connection-establishment-failed"

REFUSE, CLOSE = UInt(0), UInt(1)
WEAK = 1


def alone(policy: UInt | None = None) -> dict[str, Any]:
    """The fields of an open that asks to be alone."""
    fields: dict[str, Any] = {"desired_capabilities": (CAPABILITY,)}
    if policy is not None:
        fields["properties"] = {Symbol(POLICY): policy}
    return fields


def opened(peer: Peer, container: str, **fields: Any) -> Open:
    """Send an open; the service's, which must come."""
    peer.send(Open(container_id=container, **fields))
    answer = peer.wait(Open)
    assert isinstance(answer, Open)
    peer.remote_open = answer
    return answer


def properties(answer: Open) -> dict[str, Any]:
    return {str(key): value for key, value in (answer.properties or {}).items()}


def offers(answer: Open) -> bool:
    return CAPABILITY in (answer.offered_capabilities or ())


def is_admitted(answer: Open) -> bool:
    return FAILED not in properties(answer)


def assert_refused(peer: Peer, answer: Open) -> None:
    """Section 3.2.1, refuse-connection: the open announces the close, which names the container-id."""
    assert properties(answer)[FAILED] is True
    error = peer.closed()
    assert error.condition == "amqp:invalid-field"
    assert error.info == {Symbol("invalid-field"): Symbol("container-id")}


def assert_closed_for_another(error: Error) -> None:
    """Section 3.2.1, close-existing."""
    assert error.condition == "amqp:resource-locked"
    assert error.info == {Symbol("sole-connection-enforcement"): True}


def lives(peer: Peer) -> bool:
    """A question that is answered."""
    peer.begin().sync()
    return True
