"""How long a neighbour's commits take while another client does its worst: ``python -m tests.benchmarks.neighbours``.

One service of one worker. The neighbour commits one transaction of one message after the other; the figures are of its
commits during each attack, in milliseconds. ``done``: transactions declared, messages posted, entries removed, or
discharges answered by the attack. ``given up`` must stay 0.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import psycopg

from store.embedded.running import running_url
from store.tables import SCHEMA
from tests.acceptance.engine_client import Client
from tests.fix_service import Service, running_service
from tests.wire.frames import Declare, Declared, Target
from tests.wire.links import Control
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


#: Commits of applications that have a row here wait for an advisory lock, after they have decided what they discharge.
_TURN = 4711
_HELD = f"""
create table public.held (round int);
create function public.hold() returns trigger language plpgsql as $$
begin
  if new.round < 3 then insert into public.held values (new.round + 1);
  else perform pg_advisory_xact_lock_shared({_TURN});
  end if;
  return null;
end $$;
create constraint trigger hold after insert on public.held deferrable initially deferred
  for each row execute function public.hold()
"""
_AT_WORK = b"select count(*) from pg_locks where locktype = 'advisory' and not granted"

#: of one statement of the preparations
_FILLED_AT_ONCE = 100_000


def _run(service: Service, statement: str) -> None:
    with psycopg.connect(running_url(service.data_dir), autocommit=True) as connection:
        connection.execute(statement.encode())


@contextmanager
def _session(service: Service) -> Iterator[Session]:
    peer = Peer(service.port)
    try:
        peer.open()
        yield peer.begin()
    finally:
        peer.close_socket()


def declares(service: Service, seconds: float, begun: threading.Event) -> int:
    """Transactions without end, each with a message, none discharged."""
    begun.set()
    until = time.monotonic() + seconds
    declared = 0
    while time.monotonic() < until:
        with _session(service) as session:
            declared += _declares(session, until)
    return declared


def _declares(session: Session, until: float) -> int:
    """Until the connection has as many as it may have."""
    sender = session.sender("declared")
    declared = 0
    while time.monotonic() < until:
        control = session.control()
        sent = [control.request(Declare()) for _ in range(800)]
        for state in [control.answer_to(number).state for number in sent]:
            if not isinstance(state, Declared):
                return declared
            sender.post(data(b"x"), txn=state.txn_id, settled=True)
            declared += 1
    return declared


def fan_out(service: Service, seconds: float, begun: threading.Event) -> int:
    """Messages for 500 subscriptions."""
    until = time.monotonic() + seconds
    posted = 0
    with _session(service) as session:
        sender = session.sender(Target(address="wide", capabilities=(Symbol("topic"),)))
        _run(
            service,
            f"insert into {SCHEMA}.consumer_group (address_id, name) "
            f"select id, 'g' || i from {SCHEMA}.address, generate_series(1, 500) i where name = 'wide'; "
            "select pg_notify('coordinator_address', 'wide')",
        )
        begun.set()
        while time.monotonic() < until:
            for number in [sender.post(data(b"x")) for _ in range(200)]:
                sender.answer_to(number)
                posted += 1
    return posted


def poison(service: Service, seconds: float, begun: threading.Event) -> int:
    """Messages that the server cannot take."""
    _run(service, _POISON)
    begun.set()
    until = time.monotonic() + seconds
    posted = 0
    with _session(service) as session:
        sender, control = session.sender("poisoned"), session.control()
        while time.monotonic() < until:
            txn = control.declare()
            sender.post(data(b"poison"), txn=txn, settled=True)
            control.discharge(txn)
            posted += 1
    return posted


def removal(service: Service, seconds: float, begun: threading.Event, *, entries: int = 100_000) -> int:
    """An address with so many messages is removed, however long that takes."""
    with _session(service) as session:
        session.sender("full")
    for first in range(0, entries, _FILLED_AT_ONCE):
        _run(
            service,
            f"insert into {SCHEMA}.entry (group_id, id, half_id) select g.id, i, i from {SCHEMA}.consumer_group g "
            f"join {SCHEMA}.address a on a.id = g.address_id and a.name = 'full', "
            f"generate_series({first + 1}, {min(entries, first + _FILLED_AT_ONCE)}) i",
        )
    begun.set()
    service.cli("address", "remove", "full", "--force")
    return entries


def applications(service: Service, seconds: float, begun: threading.Event, *, commits: int = 20) -> int:
    """Commits of applications that are long at work, each of a transaction that its client discharges meanwhile, again
    and again. ``done``: discharges that were answered.
    """
    _run(service, _HELD)
    url = running_url(service.data_dir)
    answered: list[int] = []
    at_work = threading.Barrier(commits + 1)

    def commit(txn: bytes) -> None:
        with psycopg.connect(url) as own:
            own.execute("insert into public.held values (1)")
            own.execute("select coordinator.discharge(%s)", [uuid.UUID(bytes=txn)])
            at_work.wait()

    def discharge(control: Control, txn: bytes) -> None:
        number = 0
        while time.monotonic() < until:
            control.discharge(txn)
            number += 1
        answered.append(number)

    with ExitStack() as stack, psycopg.connect(url, autocommit=True) as turn:
        turn.execute("select pg_advisory_lock(%s)", [_TURN])
        threads = []
        for number in range(commits):
            session = stack.enter_context(_session(service))
            control = session.control(properties={Symbol("coordinator:producer-group"): "shop"})
            txn = control.declare()
            sender = session.sender(f"held-{number}")
            sender.answer_to(sender.post(data(b"x"), txn=txn))
            threads += [
                threading.Thread(target=commit, args=[txn]),
                threading.Thread(target=discharge, args=[control, txn]),
            ]
        for thread in threads[::2]:
            thread.start()
        at_work.wait()
        while turn.execute(_AT_WORK).fetchone() != (commits,):
            time.sleep(0.01)
        until = time.monotonic() + seconds
        begun.set()
        for thread in threads[1::2]:
            thread.start()
        time.sleep(max(0.0, until - time.monotonic()))
        turn.execute("select pg_advisory_unlock(%s)", [_TURN])
        for thread in threads:
            thread.join()
    return sum(answered)


Attack = Callable[[Service, float, threading.Event], int]
ATTACKS: dict[str, Attack] = {each.__name__: each for each in (declares, fan_out, poison, removal, applications)}


def measure(attack: Attack, seconds: float) -> dict[str, float]:
    with running_service() as service:
        client = Client(service.port, "neighbour")
        sender = client.sender("neighbour")
        begun, done = threading.Event(), [0]
        attacker = threading.Thread(target=lambda: done.append(attack(service, seconds, begun)), daemon=True)
        attacker.start()
        begun.wait()
        took: list[float] = []
        while attacker.is_alive():
            at = time.monotonic()
            txn = client.declare()
            client.post(sender, "x", txn=txn)
            assert client.discharge(txn, fail=False).accepted
            took.append((time.monotonic() - at) * 1000)
        given_up = sum(line.get("event") == "worker ended" for line in service.log_lines())
    total = sum(took) / 1000
    took.sort()
    return {
        "done": done[-1],
        "seconds": round(total, 1),
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
    parser.add_argument("--entries", type=int, default=100_000, help="that are removed")
    given = parser.parse_args()
    attacks: dict[str, Attack] = {**ATTACKS, "removal": partial(removal, entries=given.entries)}
    for name in given.attacks:
        sys.stdout.write(json.dumps({"attack": name, **measure(attacks[name], given.seconds)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
