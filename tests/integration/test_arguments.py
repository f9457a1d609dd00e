"""A database's URL on the command line is soon hidden from those who list processes (rule S8)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fix_command import Serve


@pytest.mark.rule("S8")
@pytest.mark.parametrize("joined", [False, True], ids=["two words", "one word"])
def test_the_url_is_overwritten_in_the_command_line(serve: Serve, database_url: str, joined: bool) -> None:
    url = f"{database_url}{'&' if '?' in database_url else '?'}password=hunter2"
    python = ("-s", "-m", "coordinator", "serve")  # not one that is forked, whose line is that of another
    given = [f"--database-url={url}"] if joined else ["--database-url", url]
    service = serve(*given, script=python)
    service.listening()
    shown = Path(f"/proc/{service.process.pid}/cmdline").read_bytes().split(b"\0")
    hidden = b"*" * len(url)
    assert (b"--database-url=" + hidden if joined else hidden) in shown
    assert b"serve" in shown
    for pid in service.values("worker ready", "pid"):
        assert b"hunter2" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert service.end() == 0
