"""Which names are addresses, and which come to be by use."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordinator.address.addresses import AddressInvalid, AddressPolicy, NewAddress, NotMade, check_name, shown
from coordinator.settings import AddressPattern, AddressSettings
from tests.tables import all_cases


def _policy(create: Literal["on-use", "matching", "never"], *patterns: AddressPattern) -> AddressPolicy:
    return AddressPolicy(AddressSettings(create=create, patterns=patterns))


TOPICS = AddressPattern(match="news.*", routing="topic", on_expiry="dead-letter", max_attempts=3)


def test_by_default_any_name_becomes_a_queue() -> None:
    assert _policy("on-use").decide("orders") == NewAddress(name="orders")


def test_a_pattern_gives_its_policies() -> None:
    expected = NewAddress(name="news.uk", routing="topic", on_expiry="dead-letter", max_attempts=3)
    assert _policy("on-use", TOPICS).decide("news.uk") == expected
    assert _policy("matching", TOPICS).decide("news.uk") == expected


def test_the_first_pattern_that_matches_counts() -> None:
    decided = _policy("on-use", AddressPattern(match="news.uk"), TOPICS).decide("news.uk")
    assert isinstance(decided, NewAddress)
    assert decided.routing == "queue"


def test_case_counts() -> None:
    assert isinstance(_policy("matching", TOPICS).decide("News.uk"), NotMade)


def test_a_client_may_ask_for_a_topic_where_no_pattern_decides() -> None:
    policy = _policy("on-use", AddressPattern(match="q.*"))
    assert policy.decide("any", topic=True) == NewAddress(name="any", routing="topic")
    assert policy.decide("q.1", topic=True) == NewAddress(name="q.1", routing="queue")


@pytest.mark.parametrize(("create", "said"), [("matching", "matches no pattern"), ("never", "administration only")])
def test_others_are_not_found(create: Literal["matching", "never"], said: str) -> None:
    decided = _policy(create, TOPICS).decide("orders")
    assert isinstance(decided, NotMade)
    assert decided.condition == "not-found"
    assert said in decided.message


@pytest.mark.parametrize("name", ["$check/x", "$", "%DLQ%orders"])
def test_names_of_the_service_are_not_made_by_use(name: str) -> None:
    decided = _policy("on-use", AddressPattern(match="*")).decide(name)
    assert isinstance(decided, NotMade)
    assert decided.condition == "not-found"


@all_cases("name", ["a", "x" * 1024, "订" * 896, "straße", "订单", "a b", "a/b.c-d_e:f", "%dlq%x"])
def test_names_that_are_possible(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.rule("S7")
@all_cases(
    ("name", "said"),
    [
        ("", "empty"),
        ("x" * 1025, r"too long; expected 1 to 1024"),
        ("订" * 897, r"too long; .* at most 2,688 octets"),
        ("x" * 10_240, r"\(10240 characters\) is too long"),
        ("a\nb", r"'a\\nb' has U\+000A at character 2"),
        ("a\0", r"U\+0000 at character 2"),
        ("\x1b[2J", r"U\+001B at character 1"),
        ("a\u202eb", r"U\+202E"),
        ("\ud800", r"U\+D800"),
        ("orders::billing", "parts an address from a consumer group"),
    ],
)
def test_names_that_are_not(name: str, said: str) -> None:
    with pytest.raises(AddressInvalid, match=said) as caught:
        check_name(name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
    decided = _policy("on-use").decide(name)
    assert isinstance(decided, NotMade)
    assert decided.condition == "invalid"


@pytest.mark.rule("S7")
@given(st.text(max_size=3000))
@example("orders")
@example("two\nlines")
def test_whatever_a_client_sends_is_decided_in_one_printable_line(name: str) -> None:
    assert shown(name).isprintable()
    decided = _policy("on-use").decide(name)
    if isinstance(decided, NotMade):
        assert decided.message.isprintable()
        assert len(decided.message) < 900
    else:
        assert decided.name == name
        assert name.isprintable()
