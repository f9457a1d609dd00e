"""Where more waits than a batch takes, connections take turns; and one whose batches fail does not stop the others."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from store.commit.batch import Batch
from store.commit.group_commit import Limits
from store.errors import StoreInTrouble
from store.tables import SCHEMA
from tests.fix_store_driver import Post, Store, Truth, running

_POISON = f"""
create sequence public.refused;
create function public.poison() returns trigger language plpgsql as $$
begin
  if octet_length(new.message) = 666 then
    perform nextval('public.refused');
    raise exception 'no' using errcode = '53200';
  end if;
  return new;
end $$;
create trigger poison before insert on {SCHEMA}.half for each row execute function public.poison()
"""


def _batches(store: Store) -> list[list[Post]]:
    """The units of each batch that is sent from now on."""
    batches: list[list[Post]] = []
    send = store.commit._send

    def sending(batch: Batch, send: Any = send) -> None:
        batches.append([unit for unit in batch.units if isinstance(unit, Post)])
        send(batch)

    store.commit._send = sending  # type: ignore[method-assign]
    return batches


@pytest.mark.rule("S5")
@pytest.mark.usefixtures("truth")
def test_who_has_little_does_not_wait_for_who_has_much(database_url: str) -> None:
    with running(database_url, Limits(messages=10)) as store:
        batches = _batches(store)
        much = [Post(store, owner="much") for _ in range(200)]
        little = [Post(store, owner="little") for _ in range(3)]
        store.add(*much, *little)
        store.settle()
        assert set(little) <= set(batches[0])
        for units in (much, little):
            assert [unit for unit in store.heard if unit in units] == units
        assert all(unit.heard == [None] for unit in store.heard)


@pytest.mark.rule("S5")
@pytest.mark.usefixtures("truth")
def test_turns_are_counted_in_rows_and_octets(database_url: str) -> None:
    """Not in units: a message to many groups, or a large one, is more of a batch than a small one."""
    with running(database_url, Limits(messages=100, octets=100_000)) as store:
        batches = _batches(store)
        rows = [Post(store, 20, owner="rows") for _ in range(50)]
        octets = [Post(store, size=20_000, owner="octets") for _ in range(50)]
        small = [Post(store, owner="small") for _ in range(400)]
        store.add(*rows, *octets, *small)
        store.settle()
        assert all(unit.heard == [None] for unit in [*rows, *octets, *small])
        for batch in batches[1:5]:  # all three have more than enough
            shares = Counter(str(unit.owner) for unit in batch)
            assert 1 <= shares["rows"] <= 3
            assert 1 <= shares["octets"] <= 3
            assert shares["small"] >= 20


@pytest.mark.rule("S5")
@pytest.mark.usefixtures("truth")
def test_who_comes_does_not_catch_up(database_url: str) -> None:
    """The turns begin when something waits: what one did not want before is not made good."""
    with running(database_url, Limits(messages=10)) as store:
        batches = _batches(store)
        store.add(*(Post(store, owner="first") for _ in range(200)))
        store.loop.run_until(lambda: len(batches) > 5)
        store.add(*(Post(store, owner="second") for _ in range(100)))
        sent = len(batches)
        store.settle()
        for batch in batches[sent + 1 : sent + 8]:
            assert Counter(str(unit.owner) for unit in batch) == {"first": 5, "second": 5}


@pytest.mark.rule("S5", "T8")
def test_what_the_server_cannot_take_stops_its_own_connection_alone(store: Store, truth: Truth) -> None:
    truth.run(_POISON)
    poison = Post(store, size=666, owner="poisoner")
    after = [Post(store, owner="poisoner") for _ in range(5)]
    beside = [Post(store, owner="neighbour") for _ in range(5)]
    store.add(*beside[:2], poison, *after[:2], *beside[2:4])
    store.loop.run_until(lambda: all(unit.heard for unit in beside[:4]))
    assert not poison.heard
    store.add(after[2], beside[4], *after[3:])
    store.loop.run_until(lambda: bool(beside[4].heard))
    assert not poison.heard
    store.settle()
    assert [type(each) for each in poison.heard] == [StoreInTrouble]
    assert all(unit.heard == [None] for unit in [*after, *beside])
    assert [unit for unit in store.heard if unit.owner == "poisoner"] == [poison, *after]
    assert truth.halves() == sorted(id_ for unit in [*after, *beside] for id_ in unit.ids)


@pytest.mark.rule("T8")
@pytest.mark.parametrize("size", [10, 666])
def test_what_waits_for_its_next_attempt_comes_before_what_its_connection_adds(
    store: Store, truth: Truth, size: int
) -> None:
    """Trouble that ends: everything is taken, and in its order, whether what comes later is in trouble as well."""
    truth.run(
        _POISON.replace(
            "perform nextval('public.refused');", "if nextval('public.refused') > 3 then return new; end if;"
        )
    )
    units = [Post(store, size=666, owner="unlucky"), *(Post(store, size=size, owner="unlucky") for _ in range(20))]
    store.add(units[0])
    store.loop.run_until(lambda: bool(store.pausing))
    for unit in units[1:]:
        store.add(unit)
        store.loop.turn(0.005)
    store.settle()
    assert store.heard == units
    assert all(unit.heard == [None] for unit in units)
    assert truth.rows("select last_value >= 4 from public.refused") == [(True,)]


@pytest.mark.rule("S5", "T8")
def test_others_go_on_while_the_units_that_cannot_be_taken_are_found(store: Store, truth: Truth) -> None:
    """One by one in the end; what the connection adds meanwhile is behind them."""
    truth.run(_POISON)
    batches = _batches(store)
    units = [Post(store, size=666, owner="poisoner") for _ in range(64)]
    store.add(*units)
    store.loop.run_until(lambda: any(1 < len(batch) < 64 for batch in batches))
    sent = len(batches)
    beside, after = Post(store, owner="neighbour"), Post(store, owner="poisoner")
    store.add(after, beside)
    store.loop.run_until(lambda: bool(beside.heard))
    assert len(batches) <= sent + 4
    assert not units[-1].heard
    store.settle()
    assert [type(unit.heard[0]) for unit in units] == [StoreInTrouble] * 64
    assert (beside.heard, after.heard) == ([None], [None])
    assert [unit for unit in store.heard if unit.owner == "poisoner"] == [*units, after]
    assert truth.halves() == sorted((*beside.ids, *after.ids))


@pytest.mark.rule("S5")
@pytest.mark.usefixtures("truth")
def test_who_always_comes_back_with_one_more_does_not_stop_who_waits(database_url: str) -> None:
    """Each has a transaction as large as a batch, and the next when it is committed: never two that wait."""
    with running(database_url, Limits(messages=10)) as store:

        class Again(Post):
            def durable(self) -> None:
                super().durable()
                if not all(unit.heard for unit in waiting):
                    store.add(Again(store, 10, owner=self.owner))

        batches = _batches(store)
        waiting = [Post(store, owner="waiting") for _ in range(60)]
        store.add(*(Again(store, 10, owner=number) for number in range(8)), *waiting)
        store.loop.run_until(lambda: len(batches) > 100 or all(unit.heard for unit in waiting))
        assert all(unit.heard == [None] for unit in waiting)
        store.settle()
