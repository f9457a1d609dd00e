"""What the pages and the docstrings name is there: files, modules, tests, functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

from tests.rules import ROOT

_PAGES = [
    *(ROOT / name for name in ("README.md", "examples/README.md")),
    *sorted((ROOT / "clients").glob("*/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_FOLDERS = ("alembic", "clients", "coordinator", "examples", "links", "spark", "store", "tests")
_SOURCES = [path for folder in _FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
_FILE = re.compile(rf"`((?:{'|'.join(_FOLDERS)}|docs|requirements|\.ci)/[\w./*-]*\.\w+)`")
_REFERENCE = re.compile(r":(?:mod|class|func|data|attr|meth):`~?((?:coordinator|links|spark|store|tests)\.[\w.]+)`")


def _missing(paths: list[Path], naming: re.Pattern[str], there: Callable[[str], bool]) -> list[tuple[str, str]]:
    """What the files name and there is not, each with its file."""
    return [
        (str(path.relative_to(ROOT)), named)
        for path in paths
        for named in naming.findall(path.read_text("utf-8"))
        if not there(named)
    ]


def test_files_that_are_named_are_there() -> None:
    assert _missing([*_PAGES, *_SOURCES], _FILE, lambda named: bool(list(ROOT.glob(named)))) == []


def test_what_a_docstring_refers_to_is_there() -> None:
    assert _missing(_SOURCES, _REFERENCE, _is_there) == []


def _is_there(named: str) -> bool:
    """A module, or a name in one."""
    parts = named.split(".")
    for count in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:count])
        module = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if module.exists():
            return set(parts[count:]) <= _names(module)
    return False


def _names(module: Path) -> set[str]:
    """All that is defined in it, at any depth."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def test_tests_that_the_page_of_clients_names_are_there() -> None:
    page = (ROOT / "docs" / "reference" / "clients.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and line.count("|") > 5]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    there = {
        name.removeprefix("test_")
        for path in (ROOT / "tests" / "acceptance").glob("test_*.py")
        for name in _names(path)
    }
    assert len(named) > 50
    assert named - there == set()


#: ``module.name`` in a page, where the module is one of ours.
_MEMBER = re.compile(r"`([a-z_]+)\.([a-z_]\w+)`")


def test_functions_that_the_traps_name_are_there() -> None:
    page = (ROOT / "docs" / "explanation" / "traps.md").read_text("utf-8")
    named = [(module, name) for module, name in _MEMBER.findall(page) if (ROOT / "links" / f"{module}.py").exists()]
    assert named
    assert [(module, name) for module, name in named if name not in _names(ROOT / "links" / f"{module}.py")] == []


def test_prose_is_no_wider_than_code() -> None:
    """Tables and code stand as they are."""
    wide = []
    for page in [*_PAGES, *sorted((ROOT / "examples").glob("*/README.md")), ROOT / "CHANGELOG.md"]:
        fenced = False
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
            fenced ^= line.lstrip().startswith("```")
            if len(line) > 120 and not fenced and not line.startswith(("|", "    ", "```")):
                wide.append(f"{page.relative_to(ROOT)}:{number}")
    assert wide == []


def test_programs_that_the_linter_does_not_read_are_no_wider() -> None:
    """Ruff looks at Python alone."""
    programs = [*(ROOT / ".ci").iterdir(), ROOT / "Makefile", *(ROOT / "clients").rglob("*.java"), ROOT / "mkdocs.yml"]
    programs += [*(ROOT / "examples").rglob("*.java"), *(ROOT / "examples" / "consumer_javascript").glob("*.js")]
    assert len(programs) > 20
    wide = [
        f"{program.relative_to(ROOT)}:{number}"
        for program in programs
        for number, line in enumerate(program.read_text("utf-8").splitlines(), 1)
        if len(line) > 120
    ]
    assert wide == []
