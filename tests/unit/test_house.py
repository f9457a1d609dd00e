"""Rules of the house that no linter has."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = [
    path
    for folder in ("alembic", "coordinator", "examples", "links", "spark", "store", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
TESTS = [path for path in SOURCES if path.name.startswith("test_")]

MOST_LINES_OF_A_FILE = 900
MOST_LINES_OF_A_FUNCTION = 60
#: How a docstring begins the sentence that says why its file is longer.
REASON = "One file because"


#: Each package, and those whose types it may name.
BELOW = {
    "store": set[str](),
    "spark": {"store"},
    "coordinator": {"store", "spark"},
    "links": {"coordinator", "store"},
}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_a_test_file_takes_nothing_from_another() -> None:
    """What several need has a file of its own: ``tests/fix_<subject>.py``, or a module named by its subject."""
    taken = [
        f"{_name(path)}: {node.module}"
        for path in TESTS
        for node in ast.walk(_parsed(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2].startswith("test_")
    ]
    assert not taken


@pytest.mark.parametrize("package", BELOW)
def test_a_package_names_no_type_of_one_above(package: str) -> None:
    """Imports that run are held by import-linter (setup.cfg); these are for the type checker alone."""
    named = {
        f"{_name(path)}: {node.module}"
        for path in (ROOT / package).rglob("*.py")
        for block in ast.walk(_parsed(path))
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in BELOW.keys() - BELOW[package]
        if not (node.module or "").startswith(package)
    }
    assert not named


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _files() -> Iterator[tuple[str, int]]:
    """Each that gives no reason for its length, with its lines."""
    for path in SOURCES:
        text = path.read_text("utf-8")
        if REASON not in (ast.get_docstring(_parsed(path)) or ""):
            yield _name(path), len(text.splitlines())


def _functions() -> Iterator[tuple[str, int]]:
    for path in SOURCES:
        for node in ast.walk(_parsed(path)):
            if isinstance(node, ast.FunctionDef):
                yield f"{_name(path)}:{node.name}", (node.end_lineno or 0) - node.lineno + 1


def _above(lengths: Iterator[tuple[str, int]], limit: float) -> set[str]:
    return {name for name, lines in lengths if lines > limit}


def test_a_long_file_says_why() -> None:
    long = _above(_files(), MOST_LINES_OF_A_FILE)
    assert not long, f"more than {MOST_LINES_OF_A_FILE} lines: split them, or say in the docstring: {REASON} ..."


def test_functions_are_short() -> None:
    long = _above(_functions(), MOST_LINES_OF_A_FUNCTION)
    assert not long, f"more than {MOST_LINES_OF_A_FUNCTION} lines: split them"


#: Words that make a reader ask which of the parts is meant.
UNCLEAR = re.compile(
    # in names, too, where `_` is a space; `nobody` in quotes, or before an @, is a user of the operating system
    r"(?<![a-z])(whoever|somebody|everybody|hears[ _]of|heard[ _]of)(?![a-z])|(?<!['\"`a-z])nobody(?!['\"`@a-z])",
    re.IGNORECASE,
)


def test_texts_say_who_does_what() -> None:
    unclear = [
        f"{_name(path)}: {found[0]}"
        for path in SOURCES
        if path != Path(__file__).resolve()
        for found in UNCLEAR.finditer(path.read_text("utf-8"))
    ]
    assert not unclear, "name the part: the instance, the consumer, the client, the store"


def test_the_linter_looks_at_nothing_of_a_reader(tmp_path: Path) -> None:
    """The README has the reader save `post.py` and `Invoices.java` in the project's folder."""
    for name in ("pyproject.toml", "store/planted.py", "post.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(
            "import os\n" if name.endswith(".py") else (ROOT / name).read_text("utf-8"), "utf-8"
        )
    ruff = Path(sys.executable).with_name("ruff")
    done = subprocess.run(
        [ruff, "check", "--no-cache", "--output-format=concise"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line.partition(":")[0] for line in done.stdout.splitlines() if "F401" in line]
    assert found == ["store/planted.py"], done.stdout + done.stderr


RULES = [path for path in SOURCES if _name(path).startswith(("coordinator/", "links/"))]


def _past_the_verbs(path: Path) -> Iterator[str]:
    """Where a file names the SQL of a question, or packs a number for the database."""
    nodes = list(ast.walk(_parsed(path)))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    questions = {
        name.asname or name.name for each in imports if each.module == "store.questions" for name in each.names
    }
    for each in imports:
        if (each.module or "").startswith("store.questions."):
            yield from (name.name for name in each.names if name.name.isupper())
    for node in nodes:
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in questions and node.attr.isupper():
                yield f"{node.value.id}.{node.attr}"
            if node.attr == "to_bytes" and not _name(path).startswith("store/codec/"):
                yield "to_bytes"


def test_the_rules_ask_the_store_by_its_verbs() -> None:
    past = [f"{_name(path)}: {found}" for path in RULES for found in _past_the_verbs(path)]
    assert not past, "call a function of store/questions: it has the SQL, the octets and the rows"
