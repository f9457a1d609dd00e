"""``coordinator group seek`` that cannot be done says why, in a line (rule H17)."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from coordinator.__main__ import app
from tests.fix_store import Rows


@pytest.mark.rule("H17")
@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("never", "--back-to", "2026-01-01T00:00:00Z"), 1, "there is no address 'never'"),
        (("orders::never", "--back-to", "2026-01-01T00:00:00Z"), 1, "has no group 'never'"),
        (("orders",), 2, "give one of --to, --back-to and --forth-to"),
        (("orders", "--back-to", "1", "--forth-to", "2"), 2, "give one of --to, --back-to and --forth-to"),
        (
            ("orders", "--back-to", "yesterday"),
            2,
            "--back-to: expected a time such as 2026-11-22T12:00:00Z, or the id of",
        ),
        (("orders", "--back-to", "2026-01-01T00:00:00"), 2, "has no zone; write 2026-01-01T00:00:00Z for UTC"),
        (("orders", "--back-to", "2026-01-01"), 2, "has no zone"),
        (("orders", "--forth-to", "2100-01-01T00:00:00Z"), 2, "is in the future; it is 20"),
        (("orders", "--forth-to", "12"), 1, "--forth-to: the store has no message '12' of this address"),
        (("orders", "--back-to", "9" * 30), 1, "--back-to: the store has no message"),
        (("orders", "--back-to", "9" * 5000), 1, "--back-to: the store has no message"),
        (("orders", "--back-to", "-5"), 2, "expected a time"),
        (("orders", "--back-to", "1\n2"), 2, "expected a time"),
    ],
)
def test_what_cannot_be_done_says_why(
    rows: Rows, database_url: str, arguments: tuple[str, ...], status: int, says: str
) -> None:
    rows.entry(rows.queue("orders"))
    done = CliRunner().invoke(app, ["group", "seek", *arguments, "--database-url", database_url])
    assert (done.exit_code, done.stdout) == (status, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.rule("H17")
@pytest.mark.parametrize("option", ["--to", "--back-to", "--forth-to"])
def test_a_message_of_another_address_is_no_place(rows: Rows, database_url: str, option: str) -> None:
    """Nothing is moved or skipped."""
    orders = rows.queue("orders")
    rows.entry(orders)
    other = rows.entry(rows.queue("others"))
    done = CliRunner().invoke(app, ["group", "seek", "orders", option, str(other), "--database-url", database_url])
    said = f"error: {option}: the store has no message '{other}' of this address\n"
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", said)
    assert rows.entries(orders) == [(0, 0, None)]
    assert rows.ops() == []
