"""A real Prometheus that scrapes services, and its answers to queries."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.fix_clients import need
from tests.fix_service import PATIENCE, REPOSITORY

_UNPACKED = REPOSITORY / ".venv" / "prometheus" / "usr" / "bin" / "prometheus"  # by .ci/bootstrap


class Sample(NamedTuple):
    labels: dict[str, str]
    value: float


class Prometheus:
    def __init__(self, place: str) -> None:
        self._place = place

    def query(self, expression: str, moment: float | None = None) -> list[Sample]:
        """What it answers for now, or for a ``moment``; a refusal is an error that says why."""
        asked = urllib.parse.urlencode({"query": expression} | ({} if moment is None else {"time": moment}))
        try:
            with urllib.request.urlopen(f"http://{self._place}/api/v1/query?{asked}", timeout=PATIENCE) as answer:
                told: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{expression}: {error.read().decode()}") from None
        assert told["status"] == "success", told
        assert told["data"]["resultType"] == "vector", told
        return [Sample(each["metric"], float(each["value"][1])) for each in told["data"]["result"]]


@pytest.fixture(scope="session")
def prometheus_program() -> str:
    program = shutil.which("prometheus") or str(_UNPACKED)
    need(program, "--version", (2, 42), "Debian: apt-get install prometheus")
    return program


@contextlib.contextmanager
def scraping(program: str, targets: Sequence[str]) -> Iterator[Prometheus]:
    """Started, and ready: it scrapes ``targets`` (host and port) each second."""
    with tempfile.TemporaryDirectory(prefix="coordinator-prometheus-") as name:
        folder = Path(name)
        jobs = [{"job_name": "coordinator", "static_configs": [{"targets": list(targets)}]}]
        settings = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(json.dumps(settings), "utf-8")  # JSON is YAML
        log = folder / "log"
        arguments = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address=127.0.0.1:0"]
        with log.open("w") as told:
            process = subprocess.Popen(
                [program, *arguments], cwd=folder, stdin=subprocess.DEVNULL, stdout=told, stderr=told
            )
        try:
            yield Prometheus(_listening(process, log))
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _listening(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        told = log.read_text("utf-8")
        found = re.search(r"Listening on\".* address=(\S+)", told)
        if found and "ready to receive web requests" in told:
            return found[1]
        time.sleep(0.02)
    raise AssertionError(f"Prometheus does not listen:\n{log.read_text('utf-8')}")
