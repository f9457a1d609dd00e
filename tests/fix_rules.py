"""The marker ``rule``: an unknown number is an error; at the end of a run, records which rules' tests passed."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.rules import RECORD, RULES, Record, read_rules

#: the property of a report that names a rule of its test
_RULE = "rule"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rules-record", type=Path, default=RECORD, metavar="FILE", help="where the end of the run says which passed"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(RulesRun(config), "rules-run")


class RulesRun:
    """What one run of the tests says of the rules: each report carries its test's, from whichever process it comes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tests: dict[str, list[str]] = {}
        # A test passes when its call passed and neither its setup nor its teardown failed.
        self._called: set[str] = set()
        self._failed: set[str] = set()

    @staticmethod
    def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
        known = read_rules()
        for item in items:
            numbers = {str(number) for mark in item.iter_markers("rule") for number in mark.args}
            if unknown := sorted(numbers - known.keys()):
                raise pytest.UsageError(f"{item.nodeid}: no such rule in {RULES.name}: {', '.join(unknown)}")
            item.user_properties += [(_RULE, number) for number in sorted(numbers)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        numbers = [str(number) for name, number in report.user_properties if name == _RULE]
        if numbers:
            self._tests[report.nodeid] = numbers
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self._called.add(report.nodeid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        whole = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        # a process that runs a part of the tests reports them to another
        if self._config.option.collectonly or not whole or hasattr(self._config, "workerinput"):
            return
        Record(
            command=shlex.join(["pytest", *self._config.invocation_params.args]),
            ended_at=datetime.now(UTC).isoformat(timespec="seconds"),
            tests=self._tests,
            passed=frozenset((self._called - self._failed) & self._tests.keys()),
        ).write(self._config.option.rules_record)
