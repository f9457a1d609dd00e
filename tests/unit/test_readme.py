"""What the README names is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.readme import README, Step, blocks, links, make_targets, steps
from tests.rules import ROOT
from tests.tables import all_cases

_TEXT = README.read_text("utf-8")
_PAGES = [
    *(README, ROOT / "CHANGELOG.md"),
    *sorted((ROOT / "clients").glob("*/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


@all_cases("page", _PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [
        target for target in links(page.read_text("utf-8")) if not (page.parent / target.partition("#")[0]).exists()
    ]
    assert missing == []


@all_cases("page", _PAGES)
def test_anchors_of_links_are_headings(page: Path) -> None:
    targets = [target.partition("#") for target in links(page.read_text("utf-8")) if "#" in target]
    missing = [
        f"{name}#{anchor}"
        for name, _, anchor in targets
        if name.endswith(".md") or not name
        if anchor not in _anchors(page.parent / name if name else page)
    ]
    assert missing == []


def _anchors(page: Path) -> set[str]:
    """Those of its headings: small letters, dashes for spaces, and no other marks. No page has a heading twice."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@all_cases("page", sorted((ROOT / "examples").glob("*/README.md")))
def test_examples_make_the_folder_build_before_they_use_it(page: Path) -> None:
    """A clean clone has none."""
    commands = [step.command for block in blocks(page.read_text("utf-8")) for step in steps(block.text)]
    using = [command for command in commands if re.search(r"\bbuild\b", command)]
    assert using == [] or using[0].startswith("mkdir -p build")


def test_targets_of_make_exist() -> None:
    targets = make_targets(_TEXT)
    assert {"serve", "test", "rules"} <= targets
    for target in sorted(targets):
        done = subprocess.run(
            ["make", "--dry-run", target], cwd=ROOT, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_targets_are_phony() -> None:
    """A file or folder named as a target would hide it."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    phony = set(" ".join(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)).split())
    assert targets == phony


def test_steps_of_a_console_block() -> None:
    console = "$ one\n$ two words\na … c\nb\n$ three\n…\n"
    assert steps(console) == [
        Step(command="one", expected=""),
        Step(command="two words", expected="a … c\nb\n"),
        Step(command="three", expected="…\n"),
    ]


@all_cases(
    ("expected", "printed", "matches"),
    [
        ("", "", True),
        ("", "anything", False),
        ("tea\nmilk\n", "tea\nmilk\n", True),
        ("tea\n", "tea\nmilk\n", False),
        ("…commit…\n", "outcome  commit\nposted 2\n", True),
        ("a.c\n", "abc\n", False),
    ],
)
def test_what_is_expected_is_compared_whole(expected: str, printed: str, matches: bool) -> None:
    assert Step(command="", expected=expected).matches(printed) is matches
