"""The rules of ``docs/reference/rules.md``, and which of them the last run of the tests has shown to hold.

``python -m tests.rules`` (``make rules``) prints them, from the record that :mod:`tests.fix_rules` writes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Set
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.markup import escape

ROOT = Path(__file__).parent.parent
RULES = ROOT / "docs/reference/rules.md"
RECORD = ROOT / "build/rules.json"
TESTS = (ROOT / "tests", ROOT / "clients/python/tests")

_NOT_YET = "*Not yet.* "
_MARK = re.compile(r"\bmark\.rule\(([^)]*)\)")
_ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+) \|([^|]*)\|$", re.MULTILINE)


class State(Enum):
    """What the last run says of a rule."""

    PASSED = "passed"  # every test that carries it passed
    NOT_PASSED = "not passed"  # some test that carries it failed, or was skipped
    NOT_RUN = "not run"  # tests carry it, and none of them was in the run
    NO_TEST = "no test"  # no test carries it
    NOT_YET = "not yet"  # a promise of a later version


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One row of the table: ``number`` as "T8", what must hold, and the ``section`` it comes from (may be empty).

    ``later``: it is a promise of a later version.
    """

    number: str
    text: str
    section: str
    later: bool


def read_rules(path: Path = RULES) -> dict[str, Rule]:
    """The rules by number, in the order of the file; a number that stands twice is a ``ValueError``."""
    rules: dict[str, Rule] = {}
    for number, text, section in _ROW.findall(path.read_text("utf-8")):
        if number in rules:
            raise ValueError(f"{path}: rule {number} stands twice")
        later = text.startswith(_NOT_YET)
        rules[number] = Rule(number=number, text=text.removeprefix(_NOT_YET), section=section.strip(), later=later)
    return rules


def carried(*folders: Path) -> set[str]:
    """The numbers that tests carry, as their source says."""
    found: set[str] = set()
    for path in (path for folder in folders for path in folder.rglob("test_*.py")):
        for arguments in _MARK.findall(path.read_text("utf-8")):
            found.update(re.findall(r'"([A-Z]\d+)"', arguments))
    return found


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run of the tests: how it was started, when it ended (ISO 8601, UTC), and the tests that carry rules.

    ``tests`` maps a test's node id to its rules' numbers, ``passed`` holds the node ids of those that passed.
    """

    command: str
    ended_at: str
    tests: dict[str, list[str]]
    passed: frozenset[str]

    def write(self, path: Path = RECORD) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        fields = {
            "command": self.command,
            "ended_at": self.ended_at,
            "tests": self.tests,
            "passed": sorted(self.passed),
        }
        path.write_text(json.dumps(fields, indent=1) + "\n", "utf-8")

    @classmethod
    def read(cls, path: Path = RECORD) -> Self:
        fields = json.loads(path.read_text("utf-8"))
        return cls(**{**fields, "passed": frozenset(fields["passed"])})

    def states(self, rules: Iterable[Rule], carried: Set[str]) -> dict[str, State]:
        """What this run says of each rule; ``carried``: the numbers that any test carries, in the run or not."""
        passed: dict[str, bool] = {}
        for test, of_test in self.tests.items():
            for number in of_test:
                passed[number] = passed.get(number, True) and test in self.passed

        def state(rule: Rule) -> State:
            if rule.number in passed:
                return State.PASSED if passed[rule.number] else State.NOT_PASSED
            if rule.later:
                return State.NOT_YET
            return State.NOT_RUN if rule.number in carried else State.NO_TEST

        return {rule.number: state(rule) for rule in rules}


_STYLE = {
    State.PASSED: "green",
    State.NOT_PASSED: "red",
    State.NOT_RUN: "yellow",
    State.NO_TEST: "yellow",
    State.NOT_YET: "dim",
}


def main() -> int:
    """Print each rule with its state, and the sum. Exit status 1: there is no run to tell of."""
    console = Console(highlight=False)
    try:
        record = Record.read()
    except FileNotFoundError:
        print("no run of the tests is recorded: make test", file=sys.stderr)  # noqa: T201
        return 1
    rules = read_rules()
    states = record.states(rules.values(), carried(*TESTS))
    for number, state in states.items():
        console.print(f"[{_STYLE[state]}]{number:<4} {state.value:<11}[/] {escape(rules[number].text)}", soft_wrap=True)
    count = {state: sum(other is state for other in states.values()) for state in State}
    console.print(f"\nlast run: {escape(record.command)}, {record.ended_at}")
    console.print(
        f"{count[State.PASSED]} of {len(rules)} rules passed, {count[State.NOT_PASSED]} did not, "
        f"{count[State.NOT_RUN]} were not run; {count[State.NO_TEST]} have no test, "
        f"{count[State.NOT_YET]} are promises of later versions"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
