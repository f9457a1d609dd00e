"""What clients say about producer groups and checks."""

from __future__ import annotations

import pytest

from coordinator.checkable import NO_OWN_TERMS, CheckTerms, OwnCheckTerms, producer_group, read_check_terms, terms
from coordinator.errors import Condition, Refusal
from coordinator.settings import CheckSettings
from store.codec.values import Symbol
from tests.tables import all_cases


@pytest.mark.rule("H2")
@all_cases("name", ["orders", Symbol("orders"), "o", "ö" * 255, "a group", "$a::b"])
def test_a_producer_group(name: str) -> None:
    found = producer_group(name, "the property")
    assert found == name
    assert type(found) is str


@pytest.mark.rule("H2")
@all_cases("name", ["", "x" * 256, "two\nlines", b"orders", 7, None, ["orders"]])
def test_what_no_producer_group_can_be_called(name: object) -> None:
    with pytest.raises(Refusal, match=r"the property is .*1 to 255 printable characters") as refused:
        producer_group(name, "the property")
    assert refused.value.condition is Condition.INVALID_FIELD
    assert refused.value.description.isprintable()
    assert len(refused.value.description) < 300


@pytest.mark.rule("H7")
@pytest.mark.parametrize(
    ("name", "field", "least", "most", "what"),
    [
        ("check-immunity-ms", 0, 0, 3_600_000, "a number of milliseconds"),
        ("check-interval-ms", 1, 1_000, 86_400_000, "a number of milliseconds"),
        ("check-most", 2, 1, 1_000, "a number"),
    ],
)
def test_what_a_client_may_ask_for(name: str, field: int, least: int, most: int, what: str) -> None:
    for value in (least, least + 1, most):
        asked = read_check_terms({name: value, "other": "x"}, "the property ")
        assert asked == OwnCheckTerms(*(value if number == field else None for number in range(3)))
    for wrong in (least - 1, most + 1, True, 1.5, "6"):
        with pytest.raises(Refusal, match=f"expected {what} from {least} to {most}") as refused:
            read_check_terms({name: wrong}, "the property ")
        assert refused.value.description.startswith(f"the property {name} is '{wrong}'; ")
        assert refused.value.condition is Condition.INVALID_FIELD
    with pytest.raises(Refusal) as refused:
        read_check_terms({name: "6\n" * 1000}, "the property ")
    assert refused.value.description.isprintable()
    assert len(refused.value.description) < 300


@pytest.mark.rule("H7")
def test_what_the_client_does_not_ask_for_is_as_the_settings_say() -> None:
    assert read_check_terms({}, "") == NO_OWN_TERMS
    assert terms(CheckSettings()) == CheckTerms(6_000, 30_000, 15)
    assert terms(CheckSettings(interval_seconds=0.05, most=2)) == CheckTerms(6_000, 50, 2)


@pytest.mark.rule("H7")
def test_what_a_message_asks_for_goes_before_what_the_link_asked_for() -> None:
    link = OwnCheckTerms(1, 2_000, None)
    assert NO_OWN_TERMS.before(link) == link
    assert OwnCheckTerms(5, None, 3).before(link) == OwnCheckTerms(5, 2_000, 3)


@pytest.mark.rule("H7")
def test_the_terms_of_an_address_go_before_the_settings() -> None:
    settings = CheckTerms(6_000, 30_000, 15)
    assert OwnCheckTerms().over(settings) == settings
    assert OwnCheckTerms(0, None, 1).over(settings) == CheckTerms(0, 30_000, 1)
    assert OwnCheckTerms(interval_ms=5).over(settings) == CheckTerms(6_000, 5, 15)
