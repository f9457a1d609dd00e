"""The index of what searches have read (rule P16)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from coordinator.bounds import Bounds
from coordinator.codec.selectors import Selector
from coordinator.group.index import Index
from coordinator.group.selecting import Search
from coordinator.memory import Account
from tests.fix_queue import Consumer, queue_of

pytestmark = pytest.mark.rule("P16")

_FAR = 1 << 40


@pytest.fixture
def memory() -> Account:
    return Account(Bounds(), 1 << 22)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("JMSCorrelationID = 'x'", ("JMSCorrelationID", "x")),
        ("'it''s' = colour", ("colour", "it's")),
        ("n > 1 AND JMSDeliveryMode = 'PERSISTENT' AND \"a b\" = 'x' AND c = 'y'", ('"a b"', "x")),
        ("(a = 'x' AND b = 'y') AND c IS NULL", None),
        ("a = 'x' OR b = 'y'", None),
        ("NOT a = 'x'", None),
        ("a <> 'x'", None),
        ("a = 5", None),
        ("a IN ('x')", None),
        ("'x' = 'x'", None),
    ],
)
def test_a_condition_that_has_to_hold_is_seen(text: str, wanted: tuple[str, str] | None) -> None:
    found = Selector(text).wanted
    assert (None if found is None else (found.name, found.value)) == wanted


def test_a_search_passes_what_has_another_value(memory: Account) -> None:
    index = Index("a", memory)
    for entry_id, value in ((3, "x"), (5, "y"), (8, 8), (9, "x"), (12, None)):
        assert index.note(value, entry_id, 0)
    places = {at: index.passes("x", at, _FAR) for at in (0, 2, 3, 9, 12, 20)}
    assert places == {0: 2, 2: 2, 3: 8, 9: 12, 12: 12, 20: 20}
    assert index.passes("nowhere", 0, _FAR) == 12
    assert index.passes("nowhere", 0, 7) == 7
    index.lower(4)
    assert [index.passes(value, 0, _FAR) for value in "xyz"] == [2, 4, 4]
    assert index.note("y", 7, 4)
    assert index.passes("y", 4, _FAR) == 4
    index.gone("x", 3)
    assert index.passes("x", 0, _FAR) == 7


def test_what_was_read_with_a_gap_is_not_covered(memory: Account) -> None:
    index = Index("a", memory)
    index.note("x", 10, 5)
    assert index.through == 0
    index.note("x", 4, 0)
    index.note("x", 6, 3)
    assert index.through == 6


def test_its_memory_is_bounded_and_given_back(memory: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("coordinator.group.index.time.monotonic", lambda: now[0])
    index = Index("a", memory)
    noted = [index.note(str(number), number, number - 1) for number in range(1, 5000)]
    room = noted.index(False)
    assert memory.indexes <= memory.share < memory.indexes + 200
    assert index.through == room
    assert not any(noted[room:])
    assert len(index._ids) == room, "a value for which there is no room takes none"
    index.renew()
    assert index.through == room
    now[0] = 61.0
    index.renew()
    assert (index.through, memory.indexes) == (0, 0)
    assert index.note("x", 1, 0)
    del index
    assert memory.indexes == 0


def test_a_search_for_another_field_replaces_an_index_that_no_search_uses() -> None:
    """Not while the search that made it is open."""
    queue = queue_of([])
    search = Search(queue, Consumer(1, 1), Selector("colour = 'x'"))
    queue.searches.append(search)
    of_colour = queue.index
    assert of_colour is not None
    assert of_colour.note("x", 1, 0)
    assert queue.indexed("JMSCorrelationID") is None
    assert queue.indexed("colour") is of_colour
    queue.searches.remove(search)
    search.end()
    del of_colour
    replaced = queue.indexed("JMSCorrelationID")
    assert replaced is not None
    assert (replaced.field, replaced.through) == ("JMSCorrelationID", 0)
    assert queue.instance.memory.indexes == 0
    assert queue.indexed("JMSCorrelationID") is replaced


@pytest.mark.parametrize("seed", range(20))
def test_it_passes_nothing_that_a_search_wants(memory: Account, seed: int) -> None:
    """Beside a list of all entries: some are read only after they have come back, by searches that begin anywhere."""
    chance = random.Random(seed)
    index = Index("a", memory)
    there: dict[int, Any] = {}
    hidden: set[int] = set()
    last = 0
    for _ in range(300):
        last += chance.randrange(1, 4)
        there[last] = chance.choice("abc")
        if chance.random() < 0.3:
            hidden.add(last)
        if hidden and chance.random() < 0.2:
            back = chance.choice(sorted(hidden))
            hidden.remove(back)
            index.lower(back - 1)
        wanted, at = chance.choice("abc"), chance.choice((0, 0, chance.randrange(last + 1)))
        found: list[int] = []
        expected = [each for each in sorted(there) if each > at and each not in hidden and there[each] == wanted]
        while True:
            at = index.passes(wanted, at, _FAR)
            page = [each for each in sorted(there) if each > at and each not in hidden][: chance.randrange(1, 9)]
            if not page:
                break
            for each in page:
                index.note(there[each], each, at)
            found += [each for each in page if there[each] == wanted]
            at = page[-1]
        assert found == expected
        for each in found[: chance.randrange(3)]:
            del there[each]
            index.gone(wanted, each)
