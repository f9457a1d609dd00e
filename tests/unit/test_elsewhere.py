"""Which addresses another service has (rule P23)."""

from __future__ import annotations

import pytest

from coordinator.address.elsewhere import Elsewhere
from coordinator.errors import Condition, Redirect, Refusal
from coordinator.settings import AddressElsewhere
from tests.tables import all_cases

pytestmark = pytest.mark.rule("P23")

TABLE = Elsewhere(
    [
        AddressElsewhere(match="orders.*", url="amqp://orders.example"),
        AddressElsewhere(match="orders.eu", url="amqp://never.example"),
        AddressElsewhere(match="*", url="amqps://[2001:db8::1]:5600"),
    ]
)


def _sent(name: str, asked: str = "") -> tuple[str, int, str]:
    with pytest.raises(Redirect) as refused:
        TABLE.check_link(name, asked or name)
    assert refused.value.condition == Condition.REDIRECT
    return refused.value.host, refused.value.port, refused.value.address


def test_the_first_that_matches_counts() -> None:
    assert _sent("orders.eu") == ("orders.example", 5672, "orders.eu")
    assert _sent("Orders.eu") == ("2001:db8::1", 5600, "Orders.eu")


def test_a_link_is_sent_on_with_its_group() -> None:
    assert _sent("orders.eu", "orders.eu::billing") == ("orders.example", 5672, "orders.eu::billing")


@all_cases("name", ["$dynamic/0195a3c0", "TRANS_CHECK_MAX_TIME_TOPIC"])
def test_what_the_service_makes_for_itself_is_here(name: str) -> None:
    TABLE.check_link(name, name)
    TABLE.check_post(name)


def test_without_a_table_all_is_here() -> None:
    Elsewhere([]).check_link("orders.eu", "orders.eu")


def test_a_post_is_refused_by_name() -> None:
    with pytest.raises(Refusal) as refused:
        TABLE.check_post("orders.eu")
    assert refused.value.condition == Condition.NOT_FOUND
    assert refused.value.description == (
        "the service at amqp://orders.example:5672 has the address 'orders.eu': post it there; no transaction spans "
        "both"
    )
