"""``coordinator sql`` opens psql on the store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from store.embedded import programs
from store.embedded.server import EmbeddedServer
from tests.fix_command import Command
from tests.fix_postgres import log_in

_SECRET = "s3cret %/@'"
_PLAIN = ("--no-psqlrc", "--tuples-only", "--no-align", "--command")


@pytest.fixture
def with_password(own_server: tuple[EmbeddedServer, str]) -> str:
    _, url = own_server
    with psycopg.connect(url, autocommit=True) as connection:
        quoted = _SECRET.replace("'", "''")
        connection.execute(f"create role me login superuser password '{quoted}'".encode())
        log_in(connection, "me", "scram-sha-256")
    return url.replace(f"//{urlsplit(url).username}@", f"//me:{quote(_SECRET, safe='')}@")


def test_it_reads_and_writes_where_that_is_asked_for(own_server: tuple[EmbeddedServer, str], command: Command) -> None:
    data_dir = str(own_server[0].data_dir)
    statement = "insert into coordinator.lock values ('mine') returning name"
    refused = command("sql", "--data-dir", data_dir, "--", *_PLAIN, statement)
    assert refused.returncode == 1
    assert "read-only transaction" in refused.stderr
    assert command("sql", "--data-dir", data_dir, "--write", "--", *_PLAIN, statement).stdout.splitlines()[0] == "mine"
    read = command(
        "sql", "--data-dir", data_dir, "--", *_PLAIN, "select count(*) from coordinator.lock where name = 'mine'"
    )
    assert (read.returncode, read.stdout) == (0, "1\n")


@pytest.mark.rule("S8")
def test_the_password_is_not_among_its_arguments(with_password: str, command: Command) -> None:
    shown = command("sql", COORDINATOR_DATABASE_URL=with_password)
    assert shown.returncode == 0, shown.stderr
    told = command(
        *("sql", "--", *_PLAIN, "select current_user", "--command", r"\! tr '\0' '\n' < /proc/$PPID/cmdline"),
        COORDINATOR_DATABASE_URL=with_password,
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("me\n")
    assert "application_name='coordinator sql'" in told.stdout, told.stdout
    assert "s3cret" not in told.stdout


def test_a_parameter_that_only_its_arguments_could_have_is_refused(with_password: str, command: Command) -> None:
    refused = command("sql", "--database-url", f"{with_password}&sslpassword=hidden")
    assert refused.returncode == 2
    assert "the database URL gives sslpassword" in refused.stderr
    assert "hidden" not in refused.stderr


def test_without_psql_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_programs_found", dict)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(programs.BinariesMissing, match=r"no psql found: \S+ -m pip install"):
        programs.psql()
    mine = tmp_path / "psql"
    mine.write_text("")
    mine.chmod(0o755)
    assert programs.psql() == mine


def test_without_a_service_it_says_so(tmp_path: Path, command: Command) -> None:
    refused = command("sql", "--data-dir", str(tmp_path))
    assert refused.returncode == 1
    assert "no coordinator runs with the data folder" in refused.stderr
