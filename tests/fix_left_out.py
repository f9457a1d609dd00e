"""What a run left out is said once at its end: a line for each reason, with the files whose tests it concerns."""

from __future__ import annotations

from collections import defaultdict

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.getreports("skipped"):
        _, _, reason = report.longrepr
        by_reason[reason.removeprefix("Skipped: ")].append(report.nodeid.partition("::")[0])
    if not by_reason:
        return
    terminalreporter.write_sep("=", "not tested")
    for reason, files in sorted(by_reason.items()):
        tests = f"{len(files)} test{'s' if len(files) > 1 else ''}"
        terminalreporter.write_line(f"{tests} of {', '.join(sorted(set(files)))}: {reason}")
