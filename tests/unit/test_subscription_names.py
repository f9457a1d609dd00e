"""What the groups of lasting subscriptions are called (rule D1)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordinator.address.groups import anyones, subscription

pytestmark = pytest.mark.rule("D1")

_PART = st.text(alphabet="@%254x0", max_size=6)


@pytest.mark.parametrize(
    ("link", "container", "name"),
    [
        ("prices", "me@example.org", "prices@me@example.org"),
        ("100%", "c", "100%@c"),
        ("x@y", "z", "x%40y@z"),
        ("x%40y", "z", "x%2540y@z"),
        ("x%25y", "z", "x%2525y@z"),
    ],
)
def test_only_what_could_be_taken_for_another_is_written_otherwise(link: str, container: str, name: str) -> None:
    assert subscription(container, link, shared=False, globally=False) == name


@given(st.tuples(_PART, _PART), st.tuples(_PART, _PART))
@example(("x@y", "z"), ("x", "y@z"))
@example(("x@", "z"), ("x%40", "z"))
def test_two_links_have_two(one: tuple[str, str], other: tuple[str, str]) -> None:
    names = {subscription(container, link, shared=False, globally=False) for link, container in (one, other)}
    assert len(names) == len({one, other})


@pytest.mark.parametrize("link", ["prices", "x@y", "x%40y"])
def test_one_of_all_containers_is_found_by_its_name(link: str) -> None:
    assert anyones(f"{link}|global") == subscription("", link, shared=True, globally=True)
