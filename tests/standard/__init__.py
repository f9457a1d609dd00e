"""What the standard asks of a server, sentence by sentence, and the tests that show that it is kept.

``python -m tests.reference`` writes ``docs/reference/standard.md`` from it. A sentence is in our own words. What is
asked of clients alone says so, and does not count; what is asked of both sides is here as far as the service's side
goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MUST, MUST_NOT, SHOULD, SHOULD_NOT = "MUST", "MUST NOT", "SHOULD", "SHOULD NOT"


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """``tests``: as "transfers: large_messages_both_ways", a file and a function of ``tests/acceptance``. ``why``: it
    is not kept, or not in full. ``beside``: why it asks nothing of the service.
    """

    section: str
    level: str
    text: str
    tests: tuple[str, ...] = ()
    why: str = ""
    beside: str = ""


def kept(section: str, level: str, text: str, *tests: str) -> Sentence:
    return Sentence(section=section, level=level, text=text, tests=tests)


def not_kept(section: str, level: str, text: str, why: str, *tests: str) -> Sentence:
    """``tests``: what they show of it all the same."""
    return Sentence(section=section, level=level, text=text, tests=tests, why=why)


def peers(section: str, level: str, text: str, beside: str = "The client's.") -> Sentence:
    """One that asks nothing of the service."""
    return Sentence(section=section, level=level, text=text, beside=beside)


def rows(sentences: tuple[Sentence, ...]) -> Iterator[str]:
    for each in sentences:
        shown = ", ".join(f"`{file}`: {name}" for file, name in map(parted, each.tests))
        said = f"**Not kept.** {each.why}{f' ({shown})' if shown else ''}" if each.why else each.beside or shown
        yield f"| {each.section} | {each.level} | {each.text} | {said} |"


def parted(test: str) -> tuple[str, str]:
    """The file of a test below ``tests/acceptance``, and its function."""
    file, _, name = test.partition(": ")
    return f"test_{file}.py", f"test_{name}"
