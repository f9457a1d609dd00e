"""The list of what the standard asks: each test that it names is there, and nearly all is kept."""

from __future__ import annotations

import ast

from tests.rules import ROOT
from tests.standard import MUST, MUST_NOT, parted
from tests.standard.parts import PARTS
from tests.tables import all_cases

_ALL = [sentence for _, sentences in PARTS for sentence in sentences]


@all_cases("file", sorted({parted(test)[0] for each in _ALL for test in each.tests}))
def test_the_tests_that_it_names_are_there(file: str) -> None:
    tree = ast.parse((ROOT / "tests" / "acceptance" / file).read_text("utf-8"))
    there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    named = {name for each in _ALL for found, name in map(parted, each.tests) if found == file}
    assert named <= there


def test_a_sentence_is_kept_by_a_test_or_says_why_not() -> None:
    assert [each.text for each in _ALL if not each.tests and not each.why and not each.beside] == []


def test_no_sentence_stands_twice() -> None:
    assert len({(each.section, each.text) for each in _ALL}) == len(_ALL)


def test_more_is_kept_than_was() -> None:
    """It goes up as sentences are mended."""
    musts = [each for each in _ALL if each.level in (MUST, MUST_NOT) and not each.beside]
    assert sum(not each.why for each in musts) / len(musts) >= 0.95
