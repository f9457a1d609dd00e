"""The tour of the README, in Python and in Java, and the tutorial, as a reader would type them, against a service on a
port of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fix_service import Service, running_service
from tests.readme import Block, Step, blocks, section, steps
from tests.rules import ROOT


class Reader:
    """A reader who takes the tour, with a shell in one terminal and the service in another."""

    def __init__(self, service: Service, folder: Path) -> None:
        self._service = service
        self._folder = folder
        self._served = False

    def follow(self, block: Block) -> None:
        if block.language in ("python", "java"):
            name = block.text.lstrip("#/ ").split(":", 1)[0].split()[0]
            (self._folder / name).write_text(self._at_our_place(block.text))
        elif block.language == "console":
            for step in steps(block.text):
                if step.command == "make serve":
                    # The service runs already; served a second time means that it was killed before.
                    self._serve()
                else:
                    self._type(step)

    def _serve(self) -> None:
        if self._served:
            self._service.kill()
            self._service.restart()
        self._served = True

    def _type(self, step: Step) -> None:
        # One shell for each step; what it sets goes on to the next through a file.
        variables = self._folder / "variables"
        variables.touch()
        script = f"set -e\n. {shlex.quote(str(variables))}\n{self._at_our_place(step.command)}\n"
        name, assigned, _ = step.command.partition("=")
        if assigned and name.isidentifier():
            script += f"declare -p {name} >> {shlex.quote(str(variables))}\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self._folder,
            env={**os.environ, "COORDINATOR_DATA_DIR": str(self._service.data_dir), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{step.command}\n{done.stdout}\n{done.stderr}"
        assert step.matches(done.stdout), f"{step}\nprinted: {done.stdout}\n{done.stderr}"

    def _at_our_place(self, text: str) -> str:
        """The same on the test's port, with the Python of the test."""
        python = shlex.quote(sys.executable)
        here = {
            "amqp://127.0.0.1:5672": self._service.url,
            ".venv/bin/coordinator": f"{python} -m coordinator",
            ".venv/bin/python": python,
            "--file examples ": f"--file {shlex.quote(str(ROOT / 'examples'))} ",
            "examples/orders_java": str(ROOT / "examples/orders_java"),
        }
        return re.sub("|".join(map(re.escape, here)), lambda found: here[found[0]], text)


@pytest.mark.rule("T8", "T9", "T11", "T20", "H15")
@pytest.mark.usefixtures("orders_java_classpath")  # the libraries that the Java program is run with, built once
def test_the_tour_goes_as_it_says(service: Service, tmp_path: Path) -> None:
    reader = Reader(service, tmp_path)
    tour = blocks(section("A tour of two minutes")) + blocks(section("The same with JMS"))
    assert {block.language for block in tour} == {"python", "java", "console"}
    for block in tour:
        reader.follow(block)


@pytest.mark.rule("T9", "H17")
def test_the_tutorial_goes_on_as_it_says(service: Service, tmp_path: Path) -> None:
    """At its end the order that the client has left is committed."""
    reader = Reader(service, tmp_path)
    (program,) = (each for each in blocks(section("A tour of two minutes")) if "# post.py" in each.text)
    page = (ROOT / "docs/tutorial/groups-failures-crashes.md").read_text("utf-8")
    for block in [program, *blocks(page)]:
        reader.follow(block)


@pytest.mark.rule("D9")
def test_a_refused_link_or_no_service_ends_the_program_with_the_reason(tmp_path: Path) -> None:
    """A link that is refused, and nothing that answers."""
    (program,) = (each for each in blocks(section("A tour of two minutes")) if "# post.py" in each.text)

    def problem(url: str) -> str:
        (tmp_path / "post.py").write_text(program.text.replace("amqp://127.0.0.1:5672", url))
        done = subprocess.run(
            [sys.executable, "post.py", "commit", "tea"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    with running_service({"addresses.create": "never"}) as service:
        assert "amqp:not-found" in problem(service.url)
    assert problem(service.url).startswith("no connection: ")
