"""Why a connection was closed: each reason is told on the page, and the first that is named counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from links.close_reason import USUAL, CloseReason
from links.connection import Connection

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "watch-it-run.md"


def test_the_page_tells_of_each_reason_and_which_are_usual() -> None:
    rows = [line.split("|")[1].strip() for line in _PAGE.read_text().splitlines() if line.startswith("| `")]
    told = {row.split("`")[1]: row.endswith("*") for row in rows}
    assert {each.value: told.get(each.value) for each in CloseReason} == {
        each.value: each in USUAL for each in CloseReason
    }


class _Named:
    close_reason: CloseReason | None = None
    peer, container, user = "127.0.0.1:1", "c", None

    def list_end(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("reason", "level"), [(CloseReason.PROTOCOL_ERROR, "info"), (CloseReason.CLIENT_GONE, "debug")]
)
def test_the_first_reason_is_logged_once(reason: CloseReason, level: str) -> None:
    connection: Any = _Named()
    with capture_logs() as lines:
        Connection.ends(connection, reason, description="why")
        Connection.ends(connection, CloseReason.CLIENT_CLOSED)
    (line,) = lines
    assert (line["event"], line["reason"], line["log_level"]) == ("connection closed", reason.value, level)
    assert connection.close_reason is reason
