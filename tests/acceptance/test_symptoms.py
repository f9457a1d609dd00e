"""Each symptom of ``docs/how-to/from-symptom-to-cause.md`` is provoked, and is as the page says: what commands print,
what clients are told, and the lines of the log.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from store.embedded.running import running_url
from store.permissions import Verb
from tests import prepared
from tests.fix_command import environment
from tests.fix_service import PATIENCE, REPOSITORY, Service, running_service
from tests.fix_standby import TwoServers
from tests.fix_users import PASSWORD, add_user
from tests.fix_wire import Ask, Begin, BeginAt
from tests.readme import blocks, section, steps
from tests.wire.checkable import accept, in_group, left
from tests.wire.frames import Modified
from tests.wire.messages import data
from tests.wire.peer import Peer, Session
from tests.wire.queues import NEVER, dead_letters, post
from tests.wire.sasl import Login, ScramClient
from tests.wire.types import UInt

PAGE = REPOSITORY / "docs" / "how-to" / "from-symptom-to-cause.md"

#: What is other each time: times, ids, ports, seconds, processes, octets.
_VARYING = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b"
    r"|\b\d{15,}\b|(?<=process )\d+|\d+(?= s,)|\d+(?= MiB)|(?<=folder )\S+(?=;)"
    r"|(?<=127\.0\.0\.1:)\d+|(?<![.\d])\d+\.\d+\b(?!\.)"
)
#: Names of a line of the log whose values are other each time.
_VARYING_NAMES = {"timestamp", "peer", "link", "data_dir"}

#: The service says sooner what takes long.
_BRIEF = {
    "coordinator.process.worker_reports.REPORT_SECONDS": 0.5,
    "coordinator.process.worker_reports.LONG_SECONDS": 2.0,
    "store.health._LONG_SECONDS": 1,
}


def _alike(text: str) -> str:
    """``text`` without what varies, and without the widths of columns."""
    lines = (" ".join(line.split()) for line in _VARYING.sub("~", text).strip().splitlines())
    return "\n".join(re.sub("-{2,}", "-", line) for line in lines)


def _of_a_line(line: dict[str, Any]) -> dict[str, object]:
    """Its names, with the values that are the same each time."""
    return {
        name: _alike(value) if isinstance(value, str) and name not in _VARYING_NAMES else None
        for name, value in line.items()
    }


class Symptom:
    """A section of the page."""

    def __init__(self, title: str) -> None:
        self._blocks = blocks(section(title, PAGE))

    def _texts(self, language: str) -> list[str]:
        found = [block.text for block in self._blocks if block.language == language]
        assert found, f"no block of {language}"
        return found

    def is_shown(self, service: Service, named: dict[str, str] | None = None, *, block: int | None = None) -> None:
        """Each command, or each of one block, prints what the page says. ``named``: ids of the test by the page's."""
        texts = self._texts("console")
        for step in [step for text in (texts if block is None else [texts[block]]) for step in steps(text)]:
            command = step.command
            for page, here in (named or {}).items():
                command = command.replace(page, here)
            coordinator, *arguments = shlex.split(command)
            assert coordinator == "coordinator", command
            done = service.command(*arguments)
            printed = _alike(done.stdout + done.stderr)
            wanted = ".*".join(re.escape(part.strip()) for part in _alike(step.expected).split("…"))
            assert re.fullmatch(wanted, printed, re.DOTALL), f"{command}\n{printed}\n--- the page:\n{step.expected}"

    def is_logged(self, lines: Callable[[], Iterable[dict[str, Any]]]) -> None:
        """Each line of the page comes in the log."""
        deadline = time.monotonic() + PATIENCE
        wanted = [_of_a_line(json.loads(text)) for text in self._texts("json")]
        while missing := [line for line in wanted if line not in map(_of_a_line, lines())]:
            assert time.monotonic() < deadline, f"{missing}\n{list(lines())}"
            time.sleep(0.1)

    def is_told(self, *told: str) -> None:
        """Clients were told the texts of the page, and no others."""
        assert {_alike(text) for text in self._texts("text")} == set(map(_alike, told))


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"bounds.unsettled_per_link": "3"}, _BRIEF) as service:
        yield service


def test_a_consumer_gets_nothing(service: Service, begin: Begin) -> None:
    session, consumer = begin(), begin()
    post(session, "orders", b"1", b"2", b"3")
    consumer.receiver("orders").take_many(3)
    consumer.receiver("orders::billing")
    control = in_group(session)
    txn = control.declare()
    accept(session.sender("orders"), b"4", txn)
    Symptom("A consumer gets nothing").is_shown(service)
    control.discharge(txn, fail=True)


def test_messages_come_again(service: Service, begin: Begin, ask: Ask) -> None:
    session = begin()
    post(session, "again", b"tea")
    service.cli("address", "set", "again", "--max-attempts", "3")
    consumer = session.receiver("again")
    ((half,),) = ask("select half_id from coordinator.entries where address = 'again'")
    symptom = Symptom("Messages come again")
    for _ in range(2):
        consumer.take().disposition(Modified(delivery_failed=True))
    third = consumer.take()
    symptom.is_shown(service, {"385273640607809537": str(half)}, block=0)
    third.disposition(Modified(delivery_failed=True))
    dead_letters(session, "again")
    symptom.is_shown(service, block=1)


def test_a_queue_grows(service: Service, begin: Begin) -> None:
    session = begin()
    post(session, "reports", *[b"%d" % number for number in range(6)])
    symptom = Symptom("A queue grows")
    symptom.is_shown(service)
    session.receiver("reports", credit=4).take()
    symptom.is_logged(service.log_lines)


def test_a_transaction_hangs(service: Service, begin: Begin, ask: Ask) -> None:
    session = begin(container_id="order-service")
    txn = in_group(session, check_immunity_ms=UInt(0)).declare()
    accept(session.sender("payments"), b"x", txn)
    session.peer.close_socket()
    left(ask, txn)
    Symptom("A transaction hangs").is_shown(service, {"01a22563-0fa8-7000-8000-0120df98083c": txn.hex()})


def test_commits_are_slow(service: Service, begin: Begin) -> None:
    session, symptom = begin(), Symptom("Commits are slow")
    post(session, "slow", b"1")
    since = len(service.log_lines())
    sender = session.sender("slow")
    with psycopg.connect(running_url(service.data_dir), application_name="psql") as holding:
        holding.execute("lock table coordinator.half in exclusive mode")
        number = sender.post(data(b"2"))
        symptom.is_logged(lambda: service.log_lines(since))
        symptom.is_shown(service)
    sender.answer_to(number)


def _description(state: Any) -> str:
    """Why it is refused: of a state, or of a detach."""
    return str(state.error.description)


def test_unknown_id(service: Service, begin: Begin) -> None:
    session, symptom = begin(), Symptom("Unknown id")
    since = len(service.log_lines())
    never = _description(session.control().discharge(NEVER))
    control, sender = session.control(), session.sender("late")
    txn = control.declare()
    sender.outcome(data(b"1"), txn=txn)
    control.detach()
    symptom.is_told(never, _description(sender.outcome(data(b"2"), txn=txn)))
    symptom.is_logged(lambda: service.log_lines(since))
    symptom.is_shown(service, {"01a22563-0fa8-7000-8000-0120df98083c": txn.hex()})


@pytest.fixture(scope="module")
def strict() -> Iterator[Service]:
    """With one user, for whom little is allowed."""
    with running_service({"addresses.create": "never", "limits.max_message_size_bytes": "1 KiB"}) as service:
        for address in ("orders", "parcels"):
            service.cli("address", "add", address)
        add_user(service, "shipping", [(Verb.SEND, "invoices"), (Verb.SEND, "parcels")])
        yield service


def _logged_in(service: Service, password: str) -> tuple[int, Peer]:
    """The code of the outcome, and the connection."""
    peer = Peer(service.port)
    return Login(peer).scram(ScramClient(user="shipping", password=password)).code, peer


def test_a_post_is_refused(strict: Service) -> None:
    code, peer = _logged_in(strict, PASSWORD)
    assert code == 0
    peer.open()
    session: Session = peer.begin()
    absent, forbidden = (session.sender(each).wait_detached() for each in ("invoices", "orders"))
    sender = session.sender("parcels")
    sender.post(data(bytes(2000)))
    symptom = Symptom("A post is refused")
    symptom.is_told(*map(_description, (absent, forbidden, sender.wait_detached())))
    symptom.is_logged(strict.log_lines)
    symptom.is_shown(strict)
    peer.close()


def test_a_client_cannot_log_in(strict: Service) -> None:
    code, peer = _logged_in(strict, "not the password")
    assert code == 1
    peer.close_socket()
    symptom = Symptom("A client cannot log in")
    symptom.is_logged(strict.log_lines)
    deadline = time.monotonic() + PATIENCE
    while "shipping" not in strict.cli("audit", "--what", "login-failed"):  # it is written now and then
        assert time.monotonic() < deadline
    symptom.is_shown(strict)


def test_the_disk_is_full(begin_at: BeginAt) -> None:
    """No disk has as much room as this service asks for."""
    symptom = Symptom("The disk is full")
    with running_service({"limits.disk_free_bytes": "1000 TiB"}) as service:
        symptom.is_told(_description(begin_at(service).sender("orders").outcome(data(b"1"))))
        symptom.is_logged(service.log_lines)
        symptom.is_shown(service)


@pytest.mark.night
def test_a_standby_is_late(two_servers: TwoServers, begin_at: BeginAt) -> None:
    symptom = Symptom("A standby is late")
    (sql,) = (block.text for block in blocks(section("A standby is late", PAGE)) if block.language == "sql")
    standbys, waiting = sql.strip().splitlines()
    with psycopg.connect(two_servers.first_url, autocommit=True) as primary:

        def ask(question: str) -> list[Any]:
            return primary.execute(question.encode()).fetchall()

        primary.execute("alter system set synchronous_standby_names = '*'")
        primary.execute("select pg_reload_conf()")
        while [row[2] for row in ask(standbys)] != ["sync"]:
            time.sleep(0.1)
        with running_service({"database_url": two_servers.url}, _BRIEF) as service:
            session = begin_at(service)
            post(session, "orders", b"1")
            two_servers.second.stop()
            sender = session.sender("orders")
            sender.post(data(b"2"))
            symptom.is_logged(service.log_lines)
            assert ask(standbys) == []
            assert {"coordinator batch 1", "coordinator heartbeat 1"} <= {row[0] for row in ask(waiting)}
            deadline = time.monotonic() + PATIENCE
            while "no instance is alive" not in service.command("check").stdout:
                assert time.monotonic() < deadline
            symptom.is_shown(service)
            seen = len(service.log_lines())
            primary.execute("alter system reset synchronous_standby_names")
            primary.execute("select pg_reload_conf()")
            # a worker that was given up meanwhile starts anew
            back = ("the database can be used again: clients are served", "worker ready")
            service.wait_for(lambda line: line.get("event") in back, since=seen)


@pytest.mark.night
def test_a_report_has_findings(begin_at: BeginAt, tmp_path: Path) -> None:
    """One delivery is taken out of the store."""
    with running_service() as service:
        post(begin_at(service), "shipments", b"1", b"2")
        with psycopg.connect(running_url(service.data_dir)) as connection:
            connection.execute(
                "delete from coordinator.entry where half_id = (select min(half_id) from coordinator.entry)"
            )
        service.cli("reconcile", "--out", str(tmp_path / "report"), "--store", status=1)
        Symptom("A report has findings").is_shown(service)


def test_the_service_does_not_start(service: Service, tmp_path: Path) -> None:
    symptom = Symptom("The service does not start")
    arguments = ["serve", "--listen", service.url, "--data-dir", str(tmp_path / "data")]
    done = prepared.run(arguments, environment(), timeout=PATIENCE)
    assert done.returncode == 1
    symptom.is_logged(lambda: map(json.loads, done.stderr.splitlines()))
    symptom.is_shown(Service(tmp_path, {}))


def test_each_symptom_has_a_test() -> None:
    titles = re.findall("^## (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert len(titles) == 12
    assert [title for title in titles if title.lower().replace(" ", "_") not in tests] == []
