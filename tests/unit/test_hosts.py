"""The order in which the hosts of a URL are asked."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from store.session import in_turn


@pytest.mark.parametrize(
    ("given", "orders"),
    [
        ("postgresql://h/d", ["h:None"]),
        ("postgresql:///d", ["None:None"]),
        ("postgresql://h:1,i:2,j:3/d", ["h,i,j:1,2,3", "i,j,h:2,3,1", "j,h,i:3,1,2"]),
        ("postgresql:///d?host=h,i&port=5", ["h,i:5", "i,h:5"]),
        ("postgresql:///d?host=/run/a,/run/b", ["/run/a,/run/b:None", "/run/b,/run/a:None"]),
    ],
)
def test_each_attempt_begins_with_another_host(given: str, orders: list[str]) -> None:
    parts = [conninfo_to_dict(each) for each in in_turn(given)]
    assert [f"{each.get('host')}:{each.get('port')}" for each in parts] == orders
    assert {each["dbname"] for each in parts} == {"d"}
