"""Runs a case of the Java program with Apache Qpid JMS (tests/acceptance/jms) against a service."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.fix_service import PATIENCE, Service

Seen = dict[str, Any]


class Driver:
    """One run of the Java program."""

    def __init__(self, classpath: str, case: str, url: str, environment: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it lives as long as the process)
        self._process = subprocess.Popen(
            [
                *("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx512m"),
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                *("-cp", classpath, "acceptance.Driver", case, url),
            ],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def line(self) -> Seen:
        """The next line: the step at which it waits, or what it saw. Where it ends without one, the test fails with
        its errors."""
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if not text:
            status = self._process.wait(timeout=PATIENCE)
            self._errors.seek(0)
            pytest.fail(f"the client ended with {status}:\n{self._errors.read()}")
        line = json.loads(text)
        assert isinstance(line, dict)
        return line

    def go_on(self) -> None:
        """Let it leave the step at which it waits."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


#: Starts a case; it is gone when the test ends, however that is.
Jms = Callable[..., Driver]


@pytest.fixture
def jms(jms_classpath: str) -> Iterator[Jms]:
    drivers: list[Driver] = []

    def start(case: str, service: Service, **environment: str) -> Driver:
        driver = Driver(jms_classpath, case, service.url, environment)
        drivers.append(driver)
        return driver

    yield start
    for driver in drivers:
        driver.end()
