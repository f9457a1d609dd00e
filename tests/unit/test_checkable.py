"""What clients say about producer groups and checks."""

from __future__ import annotations

import pytest

from coordinator.checkable import CheckTerms, OwnCheckTerms, immunity_ms, producer_group, terms
from coordinator.codec.encoding import Symbol
from coordinator.errors import Condition, Refusal
from coordinator.settings import CheckSettings


@pytest.mark.rule("H2")
@pytest.mark.parametrize("name", ["orders", Symbol("orders"), "o", "ö" * 255, "a group", "$a::b"])
def test_a_producer_group(name: str) -> None:
    found = producer_group(name, "the property")
    assert found == name
    assert type(found) is str


@pytest.mark.rule("H2")
@pytest.mark.parametrize("name", ["", "x" * 256, "two\nlines", b"orders", 7, None, ["orders"]])
def test_what_no_producer_group_can_be_called(name: object) -> None:
    with pytest.raises(Refusal, match=r"the property is .*1 to 255 printable characters") as refused:
        producer_group(name, "the property")
    assert refused.value.condition is Condition.INVALID_FIELD
    assert refused.value.description.isprintable()
    assert len(refused.value.description) < 300


@pytest.mark.rule("H7")
def test_an_immunity_of_at_most_an_hour() -> None:
    assert [immunity_ms(each, "the property") for each in (0, 1, 3_600_000)] == [0, 1, 3_600_000]
    for wrong in (-1, 3_600_001, True, 1.5, "6", None):
        with pytest.raises(Refusal, match="expected a number of milliseconds from 0 to 3600000") as refused:
            immunity_ms(wrong, "the property")
        assert refused.value.description.startswith(f"the property is '{wrong}'; ")
    with pytest.raises(Refusal) as refused:
        immunity_ms("6\n" * 1000, "the property")
    assert refused.value.description.isprintable()
    assert len(refused.value.description) < 300


@pytest.mark.rule("H7")
def test_what_the_client_does_not_ask_for_is_as_the_settings_say() -> None:
    assert terms(CheckSettings()) == CheckTerms(6_000, 30_000, 15)
    assert terms(CheckSettings(interval_seconds=0.05, most=2), 0) == CheckTerms(0, 50, 2)


@pytest.mark.rule("H7")
def test_the_terms_of_an_address_go_before_the_settings() -> None:
    settings = CheckTerms(6_000, 30_000, 15)
    assert OwnCheckTerms().over(settings) == settings
    assert OwnCheckTerms(0, None, 1).over(settings) == CheckTerms(0, 30_000, 1)
    assert OwnCheckTerms(interval_ms=5).over(settings) == CheckTerms(6_000, 5, 15)
