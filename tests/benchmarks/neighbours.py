"""How long a neighbour's commits take while another client does its worst: ``python -m tests.benchmarks.neighbours``.

One service of one worker. The neighbour commits one transaction of one message after the other; the figures are of its
commits during each attack, in milliseconds. ``given up`` must stay 0.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable

import psycopg

from store.embedded import running_url
from store.tables import SCHEMA
from tests.acceptance.engine_client import Client
from tests.fix_service import Service, running_service
from tests.wire.frames import Declare, Target
from tests.wire.messages import data
from tests.wire.peer import Peer, Session
from tests.wire.types import Symbol

_POISON = f"""
create function public.poison() returns trigger language plpgsql as $$
begin
  if new.message like '%poison%'::bytea then raise exception 'no' using errcode = '53200'; end if;
  return new;
end $$;
create trigger poison before insert on {SCHEMA}.half for each row execute function public.poison()
"""


def _run(service: Service, statement: str) -> None:
    with psycopg.connect(running_url(service.data_dir), autocommit=True) as connection:
        connection.execute(statement.encode())


def _session(service: Service) -> Session:
    peer = Peer(service.port)
    peer.open()
    return peer.begin()


def declares(service: Service, until: float) -> None:
    """Transactions without end, each with a message, none discharged."""
    session = _session(service)
    sender = session.sender("declared")
    while time.monotonic() < until:
        control = session.control()
        sent = [control.request(Declare()) for _ in range(800)]
        for number in sent:
            sender.post(data(b"x"), txn=control.answer_to(number).state.txn_id, settled=True)  # type: ignore[union-attr]


def fan_out(service: Service, until: float) -> None:
    """Messages for 500 subscriptions."""
    session = _session(service)
    sender = session.sender(Target(address="wide", capabilities=(Symbol("topic"),)))
    _run(
        service,
        f"insert into {SCHEMA}.consumer_group (address_id, name) "
        f"select id, 'g' || i from {SCHEMA}.address, generate_series(1, 500) i where name = 'wide'; "
        "select pg_notify('coordinator_address', 'wide')",
    )
    while time.monotonic() < until:
        for number in [sender.post(data(b"x")) for _ in range(200)]:
            sender.answer_to(number)


def poison(service: Service, until: float) -> None:
    """Messages that the server cannot take."""
    _run(service, _POISON)
    session = _session(service)
    sender, control = session.sender("poisoned"), session.control()
    while time.monotonic() < until:
        txn = control.declare()
        sender.post(data(b"poison"), txn=txn, settled=True)
        control.discharge(txn)


ATTACKS: dict[str, Callable[[Service, float], None]] = {each.__name__: each for each in (declares, fan_out, poison)}


def measure(attack: Callable[[Service, float], None], seconds: float) -> dict[str, float]:
    with running_service() as service:
        client = Client(service.port, "neighbour")
        sender = client.sender("neighbour")
        until = time.monotonic() + seconds
        attacker = threading.Thread(target=attack, args=(service, until), daemon=True)
        attacker.start()
        took: list[float] = []
        while attacker.is_alive():
            begun = time.monotonic()
            txn = client.declare()
            client.post(sender, "x", txn=txn)
            assert client.discharge(txn, fail=False).accepted
            took.append((time.monotonic() - begun) * 1000)
        given_up = sum(line.get("event") == "worker ended" for line in service.log_lines())
    took.sort()
    return {
        "commits": len(took),
        "p50": round(took[len(took) // 2], 2),
        "p99": round(took[len(took) * 99 // 100], 2),
        "slowest": round(took[-1], 2),
        "given up": given_up,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attacks", nargs="*", default=list(ATTACKS), help=", ".join(ATTACKS))
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    for name in given.attacks:
        sys.stdout.write(json.dumps({"attack": name, **measure(ATTACKS[name], given.seconds)}) + "\n")


if __name__ == "__main__":
    main()
