"""What the README says, taken apart: fenced blocks by section, links, and the targets of ``make`` that it names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.rules import ROOT

README = ROOT / "README.md"

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_TARGET = re.compile(r"\bmake ([a-z][a-z-]*)")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its language ("" where none is given) and its text."""

    language: str
    text: str


def section(title: str, path: Path = README) -> str:
    """The text under the heading ``## title``, up to the next of its kind."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"{path}: no section {title!r}")
    return found[1]


def blocks(text: str) -> list[Block]:
    return [Block(language=language, text=body) for language, body in _BLOCK.findall(text)]


def links(text: str) -> list[str]:
    """The targets of links, without those to other places of the web."""
    return [target for target in _LINK.findall(text) if "://" not in target]


def make_targets(text: str) -> set[str]:
    """The words after ``make`` in code: fenced blocks and `code` in the text."""
    code = [block.text for block in blocks(text)] + re.findall(r"`([^`\n]+)`", _BLOCK.sub("", text))
    return {target for part in code for target in _TARGET.findall(part)}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command of a console block and what it prints; ``…`` in it stands for anything."""

    command: str
    expected: str

    def matches(self, printed: str) -> bool:
        pattern = ".*".join(re.escape(part) for part in self.expected.strip().split("…"))
        return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def steps(console: str) -> list[Step]:
    """The steps of a console block: a line ``$ command``, then the lines it prints."""
    return [
        Step(command=command, expected=expected)
        for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", console, re.MULTILINE)
    ]
