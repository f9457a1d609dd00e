"""What the commands print for people: each value on its line, whatever its name is made of (S7)."""

from __future__ import annotations

import pytest

from coordinator.commands.administration import print_pairs, print_table

pytestmark = pytest.mark.rule("S7")


def test_a_long_name_is_whole_and_does_not_spread_the_lines_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([{"name": "n" * 1024, "count": 1}, {"name": "orders", "count": 2}], ["name", "count"])
    assert capsys.readouterr().out.splitlines() == ["name    count", "n" * 1024 + "  1", "orders  2"]


@pytest.mark.parametrize(("name", "shown"), [(" ", "' '"), ("a ", "'a '"), (" a", "' a'"), ("a b", "a b"), ("", "")])
def test_blanks_can_be_seen(capsys: pytest.CaptureFixture[str], name: str, shown: str) -> None:
    print_table([{"name": name, "end": "|"}], ["name", "end"])
    assert capsys.readouterr().out.splitlines()[1] == f"{shown.ljust(4)}  |"
    print_pairs({"name": name})
    assert capsys.readouterr().out == f"name: {shown}".rstrip() + ("\n" if shown else " \n")


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([{"name": "a\n\x1b[31mb"}], ["name"])
    assert capsys.readouterr().out == "name\na\\n\\x1b[31mb\n"
