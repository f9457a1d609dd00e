"""Where the service cannot run it says why in one line, and ends with status 2."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from store.tables import SCHEMA
from tests.fix_service import PATIENCE, REPOSITORY


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="coordinator-start-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _refused(*arguments: str) -> str:
    """The reason why ``coordinator serve`` did not start."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COORDINATOR_")}
    done = subprocess.run(
        [sys.executable, "-m", "coordinator", "serve", *arguments],
        cwd=REPOSITORY,
        env={**environment, "PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "error"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stderr.splitlines()]
    errors = [line for line in lines if line["level"] == "error"]
    assert [line["event"] for line in errors] == ["cannot start"], done.stderr
    return str(errors[0]["reason"])


def test_the_port_is_in_use(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        reason = _refused("--listen", f"amqp://127.0.0.1:{port}", "--data-dir", str(folder / "data"))
    assert f"127.0.0.1:{port}" in reason
    assert "in use" in reason.lower()


def test_the_data_folder_cannot_be_made(folder: Path) -> None:
    (folder / "file").touch()
    reason = _refused("--listen", "amqp://127.0.0.1:0", "--data-dir", str(folder / "file" / "data"))
    assert str(folder / "file") in reason


def test_the_data_folder_is_of_another_version(folder: Path) -> None:
    cluster = folder / "data" / "postgresql"
    cluster.mkdir(parents=True)
    (cluster / "PG_VERSION").write_text("9.6\n")
    reason = _refused("--listen", "amqp://127.0.0.1:0", "--data-dir", str(folder / "data"))
    assert "9.6" in reason


@pytest.mark.parametrize("what", ["newer", "none"])
def test_the_schema_is_another(database_url: str, empty_database_url: str, what: str) -> None:
    url = empty_database_url
    if what == "newer":
        url = database_url
        with psycopg.connect(url) as connection:
            connection.execute(f"update {SCHEMA}.alembic_version set version_num = '9999'".encode())
    reason = _refused("--listen", "amqp://127.0.0.1:0", "--database-url", url)
    assert "newer" in reason if what == "newer" else "coordinator migrate" in reason


def test_the_database_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    reason = _refused(
        "--listen", "amqp://127.0.0.1:0", "--database-url", f"postgresql://me:secret-word@127.0.0.1:{port}/store"
    )
    assert "refused" in reason.lower()
    assert "secret-word" not in reason


def test_the_password_is_wrong(server_url: str, database_url: str) -> None:
    """A server that asks for one is played by a socket that speaks the beginning of its protocol."""
    import threading

    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                while True:
                    length = int.from_bytes(connection.recv(4), "big")
                    if length == 0:
                        break
                    body = connection.recv(length - 4)
                    if body[:4] in (b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30"):  # TLS or GSS asked for: no
                        connection.sendall(b"N")
                        continue
                    connection.sendall(b"R\0\0\0\x08\0\0\0\x03")  # a password in clear
                    connection.recv(1 << 12)
                    fields = b'SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed for user "me"\0\0'
                    connection.sendall(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)
                    break

    threading.Thread(target=serve, daemon=True).start()
    port = listener.getsockname()[1]
    try:
        reason = _refused(
            "--listen", "amqp://127.0.0.1:0", "--database-url", f"postgresql://me:secret-word@127.0.0.1:{port}/store"
        )
    finally:
        listener.close()
    assert "password" in reason
    assert "secret-word" not in reason
