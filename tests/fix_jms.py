"""Runs a case of the Java program with Apache Qpid JMS (tests/acceptance/jms) against a service."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.fix_clients import REPOSITORY, alone, maven_classpath
from tests.fix_service import PATIENCE, Service

Seen = dict[str, Any]

_PROJECT = REPOSITORY / "tests" / "acceptance" / "jms"
#: What Java has read and checked of the classes of a case, which it maps at its next start: half of its time.
_CLASSES = _PROJECT / "target" / "cases.jsa"


def _java(classpath: str, option: str, case: str, url: str) -> list[str]:
    return [
        *("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx512m", "-Xlog:disable"),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        option,
        *("-cp", classpath, "acceptance.Driver", case, url),
    ]


class Driver:
    """One run of the Java program."""

    def __init__(self, classpath: str, case: str, url: str, environment: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it lives as long as the process)
        self._process = subprocess.Popen(
            _java(classpath, f"-XX:SharedArchiveFile={_CLASSES}", case, url),
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


@pytest.fixture(scope="session")
def jms_classpath() -> str:
    """The class path of the acceptance cases with Qpid JMS: jars, as Java maps the classes of no folder."""
    built = maven_classpath(_PROJECT)
    classes, _, libraries = built.partition(os.pathsep)
    jar = _CLASSES.with_suffix(".jar")
    classpath = os.pathsep.join([str(jar), libraries])
    with alone(_PROJECT):
        if not _CLASSES.exists():
            subprocess.run(["jar", "--create", "--file", jar, "-C", classes, "."], check=True)
            # Nothing listens there: it ends when it has loaded all that it takes to connect.
            nowhere = _java(classpath, f"-XX:ArchiveClassesAtExit={_CLASSES}", "browser", "amqp://127.0.0.1:1")
            subprocess.run(nowhere, capture_output=True, check=False)
    return classpath


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
