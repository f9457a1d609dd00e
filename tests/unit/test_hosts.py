"""The order in which the hosts of a URL are asked."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from store.hosts import Hosts


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
    parts = [conninfo_to_dict(each) for each in Hosts(given).in_turn()]
    assert [f"{each.get('host')}:{each.get('port')}" for each in parts] == orders
    assert {each["dbname"] for each in parts} == {"d"}


def _chosen(hosts: Hosts) -> str:
    return str(conninfo_to_dict(hosts.choose())["host"])


def test_one_connection_goes_round() -> None:
    hosts = Hosts("host=a1,b1,c1")
    seen = []
    for _ in range(4):
        seen.append(_chosen(hosts))
        hosts.give_up()
    assert seen == ["a1", "b1", "c1", "a1"]


def test_all_begin_with_the_host_that_answered_last() -> None:
    given = "host=a2,b2,c2 port=1,2,3"
    hosts = Hosts(given)
    hosts.choose()
    hosts.give_up()
    assert _chosen(hosts) == "b2"
    hosts.answered()
    assert _chosen(Hosts(given)) == "b2"
    assert conninfo_to_dict(Hosts(given).in_turn()[0])["host"] == "b2,c2,a2"
    Hosts(given).answered_at("c2", 3)
    assert _chosen(Hosts(given)) == _chosen(hosts) == "c2"
    assert _chosen(Hosts("host=a2,b2 port=7")) == "a2", "c2 is none of these"


def test_a_host_that_fell_silent_comes_last_though_it_had_answered() -> None:
    hosts = Hosts("host=a3,b3")
    hosts.choose()
    hosts.answered()
    hosts.give_up()
    assert _chosen(hosts) == "b3"
    hosts.give_up()
    assert _chosen(hosts) == "a3"


def test_an_attempt_is_overtaken_where_another_host_answers_meanwhile() -> None:
    hosts, other = (Hosts("host=a4,b4") for _ in range(2))
    hosts.choose()
    assert not hosts.overtaken()
    other.answered_at("a4", 5432)
    assert not hosts.overtaken()
    other.answered_at("b4", 5432)
    assert hosts.overtaken()
    assert _chosen(hosts) == "b4"
    assert not hosts.overtaken()
