"""Rules of the house that no linter has."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_test_file_takes_nothing_from_another(path: Path) -> None:
    """What several need has a file of its own: ``tests/fix_<subject>.py``, or a module named by its subject."""
    imported = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    assert not [node.module for node in imported if (node.module or "").rpartition(".")[2].startswith("test_")]
