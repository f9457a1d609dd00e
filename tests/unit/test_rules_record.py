"""The record of rules, tried on a project of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fix_night import by_night
from tests.rules import ROOT, Record, Rule, State, carried, read_rules

_TESTS = """
import pytest

@pytest.mark.rule("T1", "T2")
def test_passes(): pass

@pytest.mark.rule("T2")
def test_fails(): assert False

@pytest.mark.rule("T3")
def test_is_skipped(): pytest.skip("not here")

@pytest.fixture
def broken():
    yield
    raise RuntimeError("teardown")

@pytest.mark.rule("T4")
def test_fails_in_teardown(broken): pass

@pytest.mark.rule("T5")
@pytest.mark.parametrize("number", [1, 2])
def test_passes_twice(number): pass
"""


def rules(*numbers: str) -> list[Rule]:
    return [Rule(number=number, text="", section="", later=False) for number in numbers]


def run(tmp_path: Path, tests: str, *args: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """pytest over ``tests`` with our plugin and settings, and the record that it writes."""
    (tmp_path / "test_it.py").write_text(tests)
    record = tmp_path / "rules.json"
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "setup.cfg"), "--rootdir", str(tmp_path)]
    command += ["-p", "tests.fix_rules", "-p", "no:cacheprovider", "--rules-record", str(record), *args]
    done = subprocess.run([*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    return done, record


@pytest.mark.parametrize("processes", ["0", by_night("2")])
def test_a_rule_passes_when_every_test_that_carries_it_passed(tmp_path: Path, processes: str) -> None:
    done, path = run(tmp_path, _TESTS, "--numprocesses", processes)
    assert done.returncode == 1, done.stdout
    states = Record.read(path).states(rules("T1", "T2", "T3", "T4", "T5", "T6"), set())
    assert states == {
        "T1": State.PASSED,
        "T2": State.NOT_PASSED,
        "T3": State.NOT_PASSED,
        "T4": State.NOT_PASSED,
        "T5": State.PASSED,
        "T6": State.NO_TEST,
    }


def test_a_deselected_test_says_nothing(tmp_path: Path) -> None:
    _, path = run(tmp_path, _TESTS, "-k", "test_passes")
    promise = Rule(number="X2", text="", section="", later=True)
    states = Record.read(path).states([*rules("T2", "T3", "T6"), promise], carried(tmp_path))
    assert states == {"T2": State.PASSED, "T3": State.NOT_RUN, "T6": State.NO_TEST, "X2": State.NOT_YET}


def test_a_promise_has_no_test() -> None:
    """With its test the rule holds today: its mark in docs/reference/rules.md goes."""
    kept = carried() & {rule.number for rule in read_rules().values() if rule.later}
    assert not kept, f"take the mark 'Not yet' from docs/reference/rules.md: {kept}"


def test_an_unknown_number_is_an_error(tmp_path: Path) -> None:
    done, path = run(tmp_path, 'import pytest\n@pytest.mark.rule("T8", "T99")\ndef test_it(): pass\n')
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_it.py::test_it: no such rule in rules.md: T99" in done.stderr
    assert not path.exists()


def test_the_rules_are_read_with_text_and_section() -> None:
    rules = read_rules()
    assert rules["T6"].text == "`declare` with a `global-id`: rejected with `amqp:not-implemented`."
    assert rules["T6"].section == "4.5.2"
    assert rules["P20"].section == ""
    assert [number for number in rules if number.startswith("F")] == ["F1", "F2", "F3", "F4", "F5", "F6"]


def test_a_rule_that_stands_twice_is_refused(tmp_path: Path) -> None:
    twice = tmp_path / "rules.md"
    twice.write_text("| T1 | one | 4.1 |\n| T1 | two | 4.1 |\n")
    with pytest.raises(ValueError, match="rule T1 stands twice"):
        read_rules(twice)
