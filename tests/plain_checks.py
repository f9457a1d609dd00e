"""The checks of a reconciliation in plain Python, row by row, as docs/explanation/reconciliation.md has them: written
apart from ``spark/``, so that one can be held against the other. And faults at random, to have something to find.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

from store.ids import moment_of
from tests.fix_store_rows import NOW, Row, StoreRows

#: (kind, txn_id, half_id, the name of the address, the name of the group)
Found = tuple[str, str | None, int | None, str | None, str | None]
#: What is found here; other kinds are about moments, and are tested apart.
KINDS: Final = (
    *("overdue", "orphan-op", "double-decision", "lost-delivery", "orphan-entry", "phantom-delivery"),
    *("double-delivery", "stuck-delivery", "order", "unbalanced"),
)
_ENDS: Final = ("commit", "accept", "expire", "dead-letter", "purge")
_MINUTE: Final = timedelta(minutes=1)


@dataclass
class _Pair:
    expected: bool = False
    ops: list[Row] = field(default_factory=list)
    entries: list[Row] = field(default_factory=list)

    @property
    def finals(self) -> int:
        names = [op["decision"] for op in self.ops]
        return sum(name in _ENDS for name in names) - names.count("replay")


class PlainChecks:
    """All that is wrong in ``rows``, seen at ``NOW``."""

    def __init__(self, rows: StoreRows) -> None:
        self._rows = rows.rows
        self._names = {row["id"]: row["name"] for row in rows.rows["address"]}
        self._halves = {row["id"]: row for row in rows.rows["half"]}
        self._listed = {row["id"]: row for row in rows.rows["txn"]}
        self._decisions: dict[str, list[Row]] = defaultdict(list)
        for op in rows.rows["op"]:
            if op["decision"] in ("commit", "rollback") and op["posted"] is not None:
                self._decisions[op["id"]].append(op)
        self._pairs: dict[tuple[int, int], _Pair] = defaultdict(_Pair)

    def found(self) -> Counter[Found]:
        self._pair_up()
        return Counter([*self._of_transactions(), *self._of_pairs(), *self._of_hours()])

    def _pair_up(self) -> None:
        for half in self._rows["half"]:
            for group in self._rows["consumer_group"]:
                self._pairs[half["id"], group["id"]].expected = self._receives(group, half)
        for op in self._rows["op"]:
            for half, group in zip(op["half_ids"] or (), op["group_ids"] or (), strict=True):
                self._pairs[half, group].ops.append(op)
        for entry in self._rows["entry"]:
            self._pairs[entry["half_id"], entry["group_id"]].entries.append(entry)

    def _receives(self, group: Row, half: Row) -> bool:
        made = next((row["created_at"] for row in self._rows["address"] if row["id"] == half["address_id"]), None)
        if made is None or group["address_id"] != half["address_id"] or self._state(half["id"]) != "committed":
            return False
        later: datetime = group["created_at"]
        return bool(later <= made or half["posted_at"] >= later + timedelta(seconds=10))

    def _state(self, half_id: int) -> str | None:
        half = self._halves.get(half_id)
        if half is None:
            return None
        if half["txn_id"] is None:
            return "committed"
        names = {op["decision"] for op in self._decisions[half["txn_id"]]}
        return "committed" if "commit" in names else "rolled-back" if names else "open"

    def _of_transactions(self) -> Iterator[Found]:
        halves: dict[str, list[Row]] = defaultdict(list)
        for half in self._rows["half"]:
            if half["txn_id"] is not None:
                halves[half["txn_id"]].append(half)
        for txn_id in {*halves, *self._listed, *(each for each, ops in self._decisions.items() if ops)}:
            stored, ops = halves[txn_id], self._decisions[txn_id]
            where = self._names.get(min((half["address_id"] for half in stored), default=0))
            if not ops and (txn_id not in self._listed or self._is_late(self._listed[txn_id])):
                yield "overdue", txn_id, None, where, None
            if len(ops) > 1:
                yield "double-decision", txn_id, None, where, None
            if any(op["decision"] == "commit" for op in ops):
                posted = max(op["posted"] for op in ops)
                if posted != len(stored):
                    yield "orphan-op" if posted > len(stored) else "unbalanced", txn_id, None, where, None

    def _is_late(self, listed: Row) -> bool:
        due = listed["next_check_at"] or (listed["timeout_at"] if listed["checks"] == 0 else None)
        return listed["producer_group"] is not None and due is not None and due < NOW - 2 * _MINUTE

    def _of_pairs(self) -> Iterator[Found]:
        live = {row["id"] for row in self._rows["instance"] if row["ended_at"] is None}
        groups = {row["id"]: row["name"] for row in self._rows["consumer_group"]}
        for (half_id, group_id), pair in self._pairs.items():
            half, state = self._halves.get(half_id), self._state(half_id)
            about = half_id, self._names.get(half["address_id"]) if half else None, groups.get(group_id)
            txn_id = half["txn_id"] if half else None
            wrong = {
                "orphan-op": half is None and pair.ops,
                "lost-delivery": pair.expected and not pair.entries and not pair.finals,
                "orphan-entry": pair.entries and group_id not in groups,
                "phantom-delivery": state != "committed" and (pair.entries or (half and pair.ops)),
                "double-delivery": half and (pair.finals > 1 or (pair.finals and pair.entries)),
                "stuck-delivery": any(each["lease"] > 0 and each["lease"] not in live for each in pair.entries),
                "order": half and pair.expected and self._is_early(half, pair.ops),
            }
            for kind, holds in wrong.items():
                if holds:
                    yield kind, txn_id, *about

    def _is_early(self, half: Row, ops: list[Row]) -> bool:
        decided = [op["decided_at"] for op in self._decisions[half["txn_id"]]] if half["txn_id"] else []
        sent = min(decided, default=half["posted_at"])
        return any(op["decided_at"] < sent - _MINUTE for op in ops)

    def _of_hours(self) -> Iterator[Found]:
        """What was posted was decided; and what was to be received was, or waits."""
        surplus: Counter[tuple[int, datetime]] = Counter()
        owed: Counter[tuple[int, datetime]] = Counter()
        for half in self._rows["half"]:
            hour = half["address_id"], moment_of(half["id"]).replace(minute=0, second=0, microsecond=0)
            if half["txn_id"] is not None:
                names = {op["decision"] for op in self._decisions[half["txn_id"]]}
                surplus[hour] += len(names) + (not names and half["txn_id"] in self._listed) - 1
            for group in self._rows["consumer_group"]:
                pair = self._pairs[half["id"], group["id"]]
                if pair.expected:
                    owed[hour] += 1 - pair.finals - len(pair.entries)
        for sums in (surplus, owed):
            for (address, _), difference in sums.items():
                if difference:
                    yield "unbalanced", None, None, self._names.get(address), None


def break_at_random(rows: StoreRows, random: Random, times: int) -> None:
    """One row is taken away, is there again, or says something else: so often in each way."""
    rows.rows["instance"].append({**rows.rows["instance"][0], "id": 2, "ended_at": NOW - timedelta(hours=1)})
    faults = [*_FAULTS] * times
    random.shuffle(faults)
    for fault in faults:
        fault(rows, random)


def _any(rows: StoreRows, random: Random, table: str, fits: Callable[[Row], Any] = lambda _: True) -> Row:
    return random.choice([row for row in rows.rows[table] if fits(row)])


def _is_decision(op: Row) -> bool:
    return op["posted"] is not None


def _delivers(op: Row) -> bool:
    return bool(op["half_ids"])


def _lose(table: str) -> Callable[[StoreRows, Random], None]:
    def lose(rows: StoreRows, random: Random) -> None:
        rows.rows[table].remove(_any(rows, random, table))

    return lose


def _leave_undecided(rows: StoreRows, random: Random) -> None:
    at = NOW - timedelta(hours=3)
    txn_id = rows.uuid_v7(at)
    rows.half(random.randint(1, 5), at, txn_id)
    due = random.choice((-30, 1, 30))
    if due < 30:
        rows.undecided(txn_id, at, checks=random.randint(0, 1), next_check_at=NOW + due * _MINUTE)


def _decide_again(rows: StoreRows, random: Random) -> None:
    op = _any(rows, random, "op", _is_decision)
    rows.rows["op"].append(
        {**op, "decision": random.choice(("commit", "rollback")), "half_ids": None, "group_ids": None}
    )


def _post_another_number(rows: StoreRows, random: Random) -> None:
    _any(rows, random, "op", _is_decision)["posted"] += random.choice((-1, 1))


def _end_again(rows: StoreRows, random: Random) -> None:
    op = _any(rows, random, "op", _delivers)
    decision = random.choice(("accept", "expire", "dead-letter", "purge", "modify", "release"))
    rows.op(decision, op["decided_at"], covers=list(zip(op["half_ids"], op["group_ids"], strict=True)))


def _take_back(rows: StoreRows, random: Random) -> None:
    op = _any(rows, random, "op", lambda op: op["decision"] == "accept")
    covers = list(zip(op["half_ids"], op["group_ids"], strict=True))
    rows.op("replay", op["decided_at"], covers=covers, reason="accepted")
    if random.random() < 0.5:
        rows.entry(op["group_ids"][0], op["half_ids"][0])


def _end_early(rows: StoreRows, random: Random) -> None:
    _any(rows, random, "op", _delivers)["decided_at"] -= timedelta(hours=1)


def _end_elsewhere(rows: StoreRows, random: Random) -> None:
    op = _any(rows, random, "op", _delivers)
    op["group_ids"] = [random.randint(1, 8) for _ in op["group_ids"]]


def _enter(rows: StoreRows, random: Random) -> None:
    rows.entry(random.randint(1, 8), _any(rows, random, "half")["id"], lease=random.choice((0, 1, 2, 77)))


def _enter_elsewhere(rows: StoreRows, random: Random) -> None:
    _any(rows, random, "entry")["group_id"] = random.choice((1, 2, 900))


def _post_elsewhere(rows: StoreRows, random: Random) -> None:
    _any(rows, random, "half")["address_id"] = random.randint(1, 5)


_FAULTS: Final = (
    *(_lose("half"), _lose("op"), _lose("entry"), _leave_undecided),
    *(_decide_again, _post_another_number, _end_again, _take_back, _end_early, _end_elsewhere),
    *(_enter, _enter_elsewhere, _post_elsewhere),
)
