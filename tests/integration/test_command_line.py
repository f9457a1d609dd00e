"""The command line, run as people run it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection
from typer.testing import CliRunner

from coordinator.__main__ import app
from store import migrations, reasons
from tests.fix_command import ROOT, Command, Serve, environment
from tests.fix_night import by_night
from tests.fix_store import Rows


@pytest.fixture
def run(command: Command, database_url: str) -> Command:
    """Commands on the test's own store."""

    def on_store(*arguments: str) -> object:
        return command(*arguments, COORDINATOR_DATABASE_URL=database_url)

    return on_store  # type: ignore[return-value]


def test_addresses(run: Command) -> None:
    made = run("address", "add", "orders", "--max-attempts", "3")
    assert (made.returncode, made.stdout, made.stderr) == (0, "made the queue 'orders'\n", "")
    assert run("address", "add", "news", "--topic", "--on-expiry", "dead-letter").returncode == 0
    listed = json.loads(run("address", "list", "--json").stdout)
    assert [(line["name"], line["routing"], line["ready"]) for line in listed] == [
        ("news", "topic", 0),
        ("orders", "queue", 0),
    ]
    assert [line.split()[:2] for line in run("address", "list").stdout.splitlines()] == [
        ["name", "routing"],
        ["news", "topic"],
        ["orders", "queue"],
    ]
    shown = json.loads(run("address", "show", "orders", "--json").stdout)
    assert (shown["max_attempts"], [group["group"] for group in shown["groups"]]) == (3, [""])
    assert ["max-attempts:", "3"] in [line.split() for line in run("address", "show", "orders").stdout.splitlines()]


@pytest.mark.rule("S7")
@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("address", "add", "x" * 10_240), 2, "(10240 characters) is too long"),
        by_night(("address", "add", "$check/orders"), 2, "names that begin with $ are the service's own"),
        (("address", "add", "a\nerror: forged"), 2, r"'a\nerror: forged' has U+000A at character 2"),
        by_night(("address", "add", ""), 2, "the address is empty"),
        by_night(
            ("address", "add", "a", "--on-expiry", "burn"), 2, "--on-expiry: expected drop or dead-letter, not 'burn'"
        ),
        by_night(("address", "show", "none"), 1, "there is no address 'none'"),
        by_night(("address", "purge", "none"), 1, "there is no address 'none'"),
        by_night(("transaction", "show", "xyz"), 2, "TXN-ID: expected 32 hexadecimal digits, not 'xyz'"),
        (("transaction", "show", "0" * 32), 1, "is not known"),
        by_night(("transaction", "resolve", "0" * 32, "--rollback", "--reason", "x"), 1, "no undecided transaction"),
        by_night(("transaction", "resolve", "0" * 32, "--rollback"), 2, "--reason is needed: say why"),
        by_night(("transaction", "resolve", "0" * 32, "--commit"), 2, "--reason is needed: say why"),
        (
            ("transaction", "resolve", "0" * 32, "--rollback", "--reason", ""),
            2,
            "--reason: expected 1 to 1000 characters",
        ),
        by_night(("transaction", "resolve", "0" * 32, "--reason", "x"), 2, "give one of --commit and --rollback"),
        by_night(("transaction", "resolve", "0" * 32, "--commit", "--rollback", "--reason", "x"), 2, "give one of"),
        by_night(("address", "list", "--config", "/none.toml"), 2, "settings file /none.toml: No such file"),
    ],
)
def test_what_cannot_be_done_is_one_line(run: Command, arguments: tuple[str, ...], status: int, said: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (status, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert len(line) < 400


def test_an_address_is_there_once(run: Command) -> None:
    run("address", "add", "orders")
    again = run("address", "add", "orders")
    assert (again.returncode, again.stderr) == (1, "error: there is an address 'orders' already\n")


@pytest.mark.rule("H15", "S7")
def test_undecided_transactions_are_listed_and_resolved(run: Command, rows: Rows) -> None:
    txn_id = str(rows.txn(3, owner="shop\n\x1b[2J", posted=7))
    (line,) = json.loads(run("transaction", "list", "--json").stdout)
    assert (line["txn_id"], line["owner"], line["posted"]) == (txn_id, "shop\n\x1b[2J", 7)
    table = run("transaction", "list").stdout
    assert len(table.splitlines()) == 2
    assert r"shop\n\x1b[2J" in table
    assert json.loads(run("transaction", "show", txn_id.replace("-", ""), "--json").stdout)["outcome"] == "undecided"
    refused = run("transaction", "resolve", txn_id, "--commit", "--reason", "x")
    assert refused.returncode == 1
    assert "its messages are not in the store before its client commits" in refused.stderr
    done = run("transaction", "resolve", txn_id, "--rollback", "--reason", "the client is gone")
    assert (done.returncode, done.stdout) == (0, f"transaction {txn_id} is rolled back\n")
    outcome = json.loads(run("transaction", "show", txn_id, "--json").stdout)
    assert (outcome["outcome"], outcome["reason"]) == ("rollback", "the client is gone")
    assert "outcome:      rollback" in run("transaction", "show", txn_id).stdout
    shown = run("transaction", "show", str(rows.decision("commit"))).stdout.splitlines()
    assert [line.split(maxsplit=1) for line in shown[1:3]] == [["outcome:", "commit"], ["reason:", "discharged"]]
    again = run("transaction", "resolve", txn_id, "--rollback", "--reason", "y")
    assert again.returncode == 1
    assert "decided already: rollback (the client is gone) at " in again.stderr
    assert json.loads(run("transaction", "list", "--json").stdout) == []


@pytest.mark.rule("S10")
@pytest.mark.parametrize("word", [reasons.APPLICATION, reasons.TIMEOUT, "check-exhausted", "rollback-only: amqp:x"])
def test_an_operator_does_not_decide_in_the_words_of_the_service(run: Command, rows: Rows, word: str) -> None:
    """``transaction show`` and the metrics would name another as the one who has decided."""
    txn_id = str(rows.txn(3))
    refused = run("transaction", "resolve", txn_id, "--rollback", "--reason", word)
    assert (refused.returncode, refused.stdout) == (2, "")
    said = f"error: --reason: {word} is a word of the service's own for why a transaction is decided; these are "
    assert refused.stderr == f"{said}{', '.join(reasons.WORDS)}\n"
    assert json.loads(run("transaction", "show", txn_id, "--json").stdout)["outcome"] == "undecided"


def test_purge(run: Command, rows: Rows) -> None:
    group = rows.queue("orders")
    rows.entry(group)
    rows.entry(group, lease=2)
    assert run("address", "purge", "orders").stdout.startswith("purged 1, left 1 ")


@pytest.mark.parametrize(("answer", "purged"), [(b"n\n", b"Aborted"), (b"y\n", b"purged 1")])
def test_purge_asks_first_on_a_terminal(database_url: str, rows: Rows, answer: bytes, purged: bytes) -> None:
    rows.entry(rows.queue("orders"))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "coordinator", "address", "purge", "orders"]
    own = environment(COORDINATOR_DATABASE_URL=database_url)
    with subprocess.Popen(command, cwd=ROOT, env=own, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.write(ours, answer)
        seen = b""
        while purged not in seen:
            seen += os.read(ours, 4096)
        assert b"Throw away all messages that wait at 'orders'? [y/N]" in seen
    assert process.returncode == (0 if answer == b"y\n" else 1)
    more = subprocess.run([*command, "--yes"], cwd=ROOT, env=own, stdin=theirs, capture_output=True, check=True)
    os.close(ours)
    os.close(theirs)
    assert more.stdout.startswith(b"purged 0" if answer == b"y\n" else b"purged 1")


def test_migrate_says_what_it_did(command: Command, empty_database_url: str) -> None:
    said = command("migrate", "--database-url", empty_database_url).stdout
    assert said == f"database schema is at {migrations.REVISIONS[-1]} now, was at none\n"
    said = command("migrate", "--database-url", empty_database_url).stdout
    assert said == f"database schema is at {migrations.REVISIONS[-1]} already\n"


@pytest.mark.rule("X2")
def test_applications_post_before_the_first_service_starts(command: Command, empty_database_url: str) -> None:
    store = ("--database-url", empty_database_url)
    for again in ("drop table coordinator.half_{}", ""):
        assert command("migrate", *store).returncode == 0
        command("address", "add", "orders", *store)
        with psycopg.connect(empty_database_url) as application:
            application.execute("select coordinator.post('orders', 'tea')")
            application.commit()
            # a store that no service has served for weeks, and that is at the newest schema already
            application.execute(again.format(f"{datetime.now(UTC):%Y%m%d}").encode())


def test_the_store_of_a_running_service_is_found_by_its_folder(
    command: Command, serve: Serve, open_folder: Path, database_url: str
) -> None:
    folder = open_folder / "found"
    stopped = command("address", "list", "--data-dir", str(folder))
    assert stopped.returncode == 1
    assert (
        stopped.stderr
        == f"error: no coordinator runs with the data folder {folder}; start one, or give --config or --database-url\n"
    )
    serve("--data-dir", str(folder)).listening()
    # The folder of the flag is meant, not the URL of the environment.
    made = command("address", "add", "orders", "--data-dir", str(folder), COORDINATOR_DATABASE_URL=database_url)
    assert made.returncode == 0
    assert command("address", "list", "--json", COORDINATOR_DATABASE_URL=database_url).stdout == "[]\n"
    assert "orders" in command("address", "list", COORDINATOR_DATA_DIR=str(folder)).stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--data-dir", ""),
        ("address", "list", "--data-dir", ""),
        ("archive", "on", ""),
        ("archive", "restore", "2026-11-01", "--archive", ""),
        ("transaction", "show", "0" * 32, "--archive", ""),
        ("reconcile", "--out", ""),
        ("watch", "--checkpoint", ""),
        ("repair", ""),
    ],
)
def test_a_folder_without_a_name_is_not_the_current_one(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "error: a folder is given as an empty text; the current one is .\n"


def test_a_folder_and_a_url_of_the_command_line_are_not_both_taken(command: Command) -> None:
    done = command("address", "list", "--data-dir", "/tmp/x", "--database-url", "postgresql://h/shop")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --data-dir: a database URL is given too; leave one out\n"


@pytest.mark.rule("S8")
@pytest.mark.parametrize(
    ("url", "status", "said"),
    [
        ("postgresql://u:hunter2@127.0.0.1:1/shop", 1, "database at 127.0.0.1:1/shop: Connection refused"),
        ("mysql://u:hunter2@h/shop", 2, "flag --database-url: database_url: expected postgresql://"),
        ("postgresql://u:hunter2%zz@h/shop", 2, "the database URL cannot be read"),
        ("postgresql://u:hunter2@127.0.0.1:1/shop?sslmode=bogus", 2, "gives sslmode a value that it cannot have"),
        ("postgresql://u:hunter2@127.0.0.1:1/shop?keepalives=x", 2, "gives keepalives a value that it cannot have"),
    ],
)
def test_a_database_that_cannot_be_used_is_named_without_its_password(
    command: Command, url: str, status: int, said: str
) -> None:
    done = command("address", "list", "--database-url", url)
    assert done.returncode == status
    assert said in done.stderr
    assert "hunter2" not in done.stderr


def test_a_database_that_only_reads_need_be_no_standby(
    command: Command, database: Connection, database_url: str
) -> None:
    url = f"{database_url}{'&' if '?' in database_url else '?'}options=-cdefault_transaction_read_only%3Don"
    done = command("address", "add", "orders", "--database-url", url)
    assert (done.returncode, done.stdout) == (1, "")
    said = "error: the database only reads: a standby, or a role or database set to read only (SQLSTATE 25006)\n"
    assert done.stderr == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("serve", "--prot", "1"), "No such option: --prot"), (("serv",), "No such command 'serv'")],
)
def test_unknown_flags_and_commands(command: Command, arguments: tuple[str, ...], said: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_an_unknown_setting(command: Command, tmp_path: Path) -> None:
    done = command("serve", COORDINATOR_WORKER="2")
    assert done.returncode == 2
    assert done.stderr == "error: environment variable COORDINATOR_WORKER: there is no such setting\n"


def test_version(command: Command) -> None:
    assert command("--version").stdout.startswith("coordinator ")


def test_administration_does_not_wait_for_what_it_does_not_use(tmp_path: Path) -> None:
    """Spark and Proton take seconds to load; `coordinator transaction list` loads neither."""
    code = """
import sys
from coordinator.__main__ import main
sys.argv = ["coordinator", "transaction", "list", "--data-dir", sys.argv[1]]
try:
    main()
except SystemExit:
    print(sorted({"pyspark", "pandas", "pyarrow", "proton", "links", "spark", "alembic"} & set(sys.modules)))
"""
    arguments = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout == "[]\n"


def test_a_shell_completes_commands(command: Command) -> None:
    typed = {"COMP_WORDS": "coordinator dead-letters re", "COMP_CWORD": "2", "_COORDINATOR_COMPLETE": "complete_bash"}
    done = command(**typed)
    assert (done.returncode, done.stdout) == (0, "replay\n")
