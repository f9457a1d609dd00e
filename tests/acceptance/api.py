"""Requests to the API of a service, and what operators act on."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.fix_service import PATIENCE, Service
from tests.wire.frames import Rejected
from tests.wire.messages import data
from tests.wire.peer import Peer, Session
from tests.wire.queues import dead_letters, post
from tests.wire.types import Symbol

TOKEN = "a-token-of-these-tests"
#: of anna
OPERATOR = "a-token-of-an-operator"


class Answer(NamedTuple):
    status: int
    #: of JSON
    value: Any
    headers: dict[str, str]


def settings(folder: Path) -> dict[str, str]:
    """Those of a service that answers the API, with its tokens in ``folder``."""
    for name, text in (("token", TOKEN), ("operators", f"bob another-{OPERATOR}\nanna {OPERATOR}\n")):
        (folder / name).touch(0o600)
        (folder / name).write_text(text)
    files = {f"metrics.{name}": str(folder / name) for name in ("token", "operators")}
    return {"metrics.listen": "http://127.0.0.1:0", **files}


def place(service: Service) -> str:
    lines = [line for line in service.log_lines() if line.get("event") == "metrics"]
    return str(lines[-1]["listen"][0])


def asked(service: Service, method: str, path: str, body: bytes | str | None = None, **headers: str) -> Answer:
    """Of what is below /api/v1, or of a whole path."""
    sent = {"Authorization": f"Bearer {OPERATOR}", "Content-Type": "application/json"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(place(service)).port, timeout=PATIENCE)
    whole = path if path.startswith("/api/v1") else f"/api/v1{path}"
    connection.request(method, whole, body, {name: value for name, value in sent.items() if value})
    with connection.getresponse() as answer:
        octets = answer.read()
        return Answer(answer.status, json.loads(octets) if octets else None, dict(answer.headers))


def done(service: Service, path: str, **given: object) -> Any:
    """What an act of the operator answers."""
    answer = asked(service, "POST", path, json.dumps(given))
    assert answer.status == 200, answer
    return answer.value


def refused(service: Service, path: str, **given: object) -> tuple[int, str]:
    """Status and sentence."""
    answer = asked(service, "POST", path, json.dumps(given))
    assert answer.headers["content-type"] == "application/problem+json", answer
    assert answer.value["status"] == answer.status
    return answer.status, answer.value["detail"]


def got(service: Service, path: str) -> Any:
    answer = asked(service, "GET", path)
    assert answer.status == 200, answer
    return answer.value


def left(service: Service, count: int = 1) -> list[str]:
    """Txn-ids of checkable transactions that are undecided, with a message each to orders."""
    peer = Peer(service.port)
    peer.open()
    session = peer.begin()
    control = session.control(properties={Symbol("coordinator:producer-group"): "shop"})
    sender = session.sender("orders")
    found = []
    for _ in range(count):
        txn = control.declare()
        sender.outcome(data(b"x"), txn=txn)
        found.append(txn.hex())
    peer.close_socket()
    return found


def buried(service: Service, session: Session, address: str, count: int) -> list[int]:
    """Messages that are dead letters, by their ids."""
    post(session, address, *(b"%d" % number for number in range(count)))
    consumer = session.receiver(address)
    for delivery in consumer.take_many(count):
        delivery.disposition(Rejected(), settled=False)
        delivery.settlement()
    consumer.detach()
    dead_letters(session, address).detach()
    shown: list[dict[str, int]] = []
    while len(shown) < count:
        shown = json.loads(service.cli("dead-letters", "show", address, "--json"))
    return [each["id"] for each in shown]
