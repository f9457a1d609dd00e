"""What ``store/sql`` writes out is what the Python code has as constants and as parts of statements."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from store import reasons, roles, tables, views
from store.channels import DECIDED, DUE, READY
from store.codec.encoding import MOST_PAIRS
from store.commit import terms
from store.ids import EPOCH_MS, OUTBOX
from store.locks import NAMES

FILES = {path.stem: path.read_text("utf-8") for path in (Path(tables.__file__).parent / "sql").glob("*.sql")}


def _plain(sql: str) -> str:
    return re.sub(r"\s+", " ", sql)


def test_each_file_is_run() -> None:
    assert set(FILES) == set(tables._FILES)


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("functions", f"interval '{tables.AUDIT_DAYS} days'"),
        ("functions", f"current_setting('{tables.DROPPING}', true)"),
        ("functions", f"e.lease = {tables.HELD} "),
        ("functions", f"(first - {EPOCH_MS} << 22)"),
        ("functions", f"(half_id >> 22) + {EPOCH_MS})"),
        ("functions", f"{terms.DEFAULT}::int2"),
        ("functions", f"'rollback', ask.txn, '{reasons.ASKED}'"),
        ("functions", f"'rollback', '{reasons.EXHAUSTED}', instance"),
        *(("functions", f"pg_notify('{channel}'") for channel in (DECIDED, DUE, READY)),
        ("views", f"{terms.DEFAULT}::int2"),
        ("views", views.STATE),
        ("views", views.THROUGH),
        ("messages", f"number + pairs > {MOST_PAIRS} then"),
        ("application", f"* 1000)::int8 - {EPOCH_MS}, millisecond + 1)"),
        ("application", f" << 22) | {OUTBOX << 12} |"),
        ("application", f"between 1 and {terms.LATEST // 1000 + 946_684_800_000} "),
        ("application", f"pg_notify('{DUE}'"),
        ("application", f"array_fill('{reasons.APPLICATION}'::text"),
    ],
)
def test_a_constant_is_as_the_code_has_it(file: str, part: str) -> None:
    assert _plain(part) in _plain(FILES[file])


def test_each_lock_that_is_taken_has_a_row() -> None:
    taken = {name for text in FILES.values() for name in re.findall(r"lock l where l\.name = '([^']*)'", text)}
    assert {"days", "places", "notice"} == taken <= set(NAMES)


def test_what_an_application_may_call_is_there() -> None:
    for signature in roles._CALLED:
        assert f"create function coordinator.{signature.partition('(')[0]}(" in FILES["application"]


_LOCK = re.compile(
    r"\bfor (no key )?(update|share)\b|\bfor key share\b|with_for_update|advisory_|\block table\b|locks\.(take|over)"
)


def test_a_file_that_takes_locks_names_their_places_in_the_order() -> None:
    """docs/explanation/lock-order.md has them all."""
    store = Path(tables.__file__).parent
    page = (store.parent / "docs" / "explanation" / "lock-order.md").read_text("utf-8")
    steps = set(re.findall(r"^\| (\w+) \|", page, re.MULTILINE))
    for path in sorted([*store.rglob("*.py"), *store.rglob("*.sql")]):
        text = path.read_text("utf-8")
        named = re.findall(r"[Ll]ock order: (\w+)", text)
        assert named or not _LOCK.search(text) or path.name == "locks.py", path
        assert set(named) <= {*steps, "as"}, path
