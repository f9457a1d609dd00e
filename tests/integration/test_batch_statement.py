"""The batch statement is text: held here against the tables, against a migrated database, and against its plans.

One file because all three look at the same combinations of parts.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import pq
from sqlalchemy import BigInteger, Boolean, DateTime, Integer, LargeBinary, SmallInteger, Text, Uuid
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

from store import arrays, asking
from store.commit import batch, checkable, terms
from store.commit import parts as statements
from store.commit.parameters import parts_of
from store.commit.terms import Rank
from store.errors import StoreError
from store.questions import entries, message_groups
from store.tables import SCHEMA, metadata
from tests.fix_store_driver import all_queries
from tests.plans import planned

_NAMES: dict[type[Any], str] = {
    BigInteger: "int8",
    Integer: "int4",
    SmallInteger: "int2",
    Text: "text",
    LargeBinary: "bytea",
    Uuid: "uuid",
    DateTime: "timestamptz",
    Boolean: "bool",
}
_OIDS = {"bool": 16, "int8": 20, "int2": 21, "int4": 23, "text": 25, "bytea": 17, "timestamptz": 1184, "uuid": 2950}
_ARRAY_OIDS = {
    "bool": 1000,
    "int8": 1016,
    "int2": 1005,
    "int4": 1007,
    "text": 1009,
    "bytea": 1001,
    "timestamptz": 1185,
    "uuid": 2951,
}

ROWS = 1_000_000


def _type(kind: TypeEngine[Any]) -> str:
    """PostgreSQL's short name of a column's type."""
    if isinstance(kind, ARRAY):
        return _type(kind.item_type) + "[]"
    return _NAMES[type(kind)]


def _split(text: str) -> list[str]:
    """Parts between the commas that are in no parentheses or brackets."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


def _aliases(sql: str, types: tuple[str, ...]) -> dict[str, str]:
    """``unnest({0}, {1}) u(g, i)`` or ``unnest({0}) g, unnest({1}) i`` -> the types of g and i."""
    if alone := re.findall(r"unnest\(\{(\d+)\}\) (\w+)", sql):
        return {name: types[int(number)].removesuffix("[]") for number, name in alone}
    found = re.search(r"unnest\((\{\d+\}(?:, \{\d+\})*)\) u\(([\w, ]+)\)", sql)
    assert found, sql
    names = _split(found[2])
    numbers = [int(number) for number in re.findall(r"\d+", found[1])]
    assert len(names) == len(numbers)
    return {name: types[number].removesuffix("[]") for name, number in zip(names, numbers, strict=True)}


def _assigned(part: str) -> list[tuple[str, str, str]]:
    """(table, column, type that is written into it or compared with it) of a part; type "" for a constant."""
    sql, types = statements.PARTS[part]
    if "unnest" not in sql:
        return _assigned_alone(sql, types)
    aliases = _aliases(sql, types)
    if insert := re.match(rf"insert into {SCHEMA}\.(\w+) \(([\w, ]+)\) select (.*?) from ", sql):
        table = insert[1]
        pairs = list(zip(_split(insert[2]), _split(insert[3]), strict=True))
    else:
        changed = re.match(rf"(?:delete from|update) {SCHEMA}\.(\w+) e ", sql)
        assert changed, sql
        table = changed[1]
        assignments = re.search(r" set (.*?) from unnest", sql)
        pairs = [tuple(each.split(" = ", 1)) for each in _split(assignments[1])] if assignments else []  # type: ignore[misc]
        pairs += re.findall(r"e\.(\w+) = (?:any\(array\[)?(u\.\w+)", sql)
    result = []
    for column, expression in pairs:
        if flat := re.search(r"\(\{(\d+)\}::(\w+\[\])\)\[lo:hi\]", expression):
            assert types[int(flat[1])] == flat[2]
            result.append((table, column, flat[2]))
            continue
        bare = re.sub(r"'[^']*'|\b(?:g|e)\.\w+|u\.\w+ >= 0", "", expression)
        used = [word for word in re.findall(r"\b[a-z]+\b", bare) if word in aliases]
        assert len(used) <= 1, expression
        result.append((table, column, aliases[used[0]] if used else ""))
    return result


def _assigned_alone(sql: str, types: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """The same of a part of one row, whose parameters are no arrays but where the column is one."""
    if insert := re.match(rf"insert into {SCHEMA}\.(\w+) \(([\w, ]+)\) values \((.*)\)$", sql):
        pairs = list(zip(_split(insert[2]), _split(insert[3]), strict=True))
        table = insert[1]
    else:
        deleted = re.match(rf"delete from {SCHEMA}\.(\w+) e ", sql)
        assert deleted, sql
        table, pairs = deleted[1], re.findall(r"e\.(\w+) = (\{\d\})", sql)
    numbers = [(column, re.findall(r"\{(\d)\}", expression)) for column, expression in pairs]
    assert all(len(found) <= 1 for _, found in numbers)
    return [(table, column, types[int(found[0])] if found else "") for column, found in numbers]


#: Parts that write no columns of their own.
_READ = ("mark", "there", "split", "queue", "wake", "free", "enlisted", "let_go", "owed", "taken", "decided")
#: Those that write what other parts give them.
_FED = ("concluded", "delivered")


@pytest.mark.parametrize("part", [part for part in statements.PARTS if part not in _READ + _FED])
def test_each_column_of_a_part_is_declared_with_its_type(part: str) -> None:
    written = _assigned(part)
    assert written
    for table, column, kind in written:
        declared = metadata.tables[f"{SCHEMA}.{table}"].c
        assert column in declared, f"{part}: {table} has no column {column}"
        if kind:
            assert kind == _type(declared[column].type), f"{part}: {table}.{column}"


_INSERTING = [part for part, (sql, _) in statements.PARTS.items() if sql.startswith("insert into")]


@pytest.mark.parametrize("part", _INSERTING)
def test_a_part_inserts_what_the_table_needs(part: str) -> None:
    sql, _ = statements.PARTS[part]
    insert = re.match(rf"insert into {SCHEMA}\.(\w+) \(([\w, ]+)\)", sql)
    assert insert is not None
    table = metadata.tables[f"{SCHEMA}.{insert[1]}"]
    given = _split(insert[2])
    for column in table.c:
        assert column.name in given or column.nullable or column.server_default is not None, f"{part}: {column}"


def _combinations() -> Iterator[tuple[str, ...]]:
    """Each that :func:`parts_of` can give, in its order; what is pinned comes with the group that is shared."""
    for chosen in itertools.product(
        ("", "half"), ("", "entry"), ("", "particular"), ("", "fan", "fan_others"), ("", "gone"), ("", "back"),
        ("", "yielded"), ("", "shared", "shared pinned"), ("", "commit"), ("", "op"), ("", "wake"), ("", "mark"),
    ):  # fmt: skip
        there = "there" if any(chosen[1:4]) else ""  # whatever makes an entry
        split = "split" if any(chosen[1:3]) else ""  # or one alone
        parts = tuple(" ".join((*chosen[:4], there, split, *chosen[4:])).split())
        traced = {"half", "commit", "op"} & set(parts)
        changes = {"gone", "back", "yielded", "shared"} & set(parts)
        if parts and ("mark" in parts) == (bool(changes) and not traced):
            yield from _forms(parts)
    for parts in _RARE:
        yield from _forms(parts)


def _rare() -> Iterator[tuple[str, ...]]:
    yield from (("registered",), ("forgotten",), ("half", "gone", "op", "registered", "forgotten", "wake"))
    yield ("half", "entry", "posted", "there", "split")
    post = ("half", "there", "pending")
    new, first = ("half", "there", "pending", "declared"), ("half", "there", "free", "pending", "listed")
    yield from (new, first, (*post, "enlisted"), ("free", "orphaned", "overdue"), ("gone", "free", "decided", "mark"))
    settled = ("settled", "concluded", "released", "unpended", "delivered")
    yield from ((*first[:4], "declared", *settled), ("there", "free", *settled))
    held = ("let_go", "owed", "taken", "holding", "retiring", "replaced")
    yield from (
        (*first[:4], "declared", "listed", "enlisted", "orphaned", "overdue", *held, "decided"),
        ("free", "listed", *held[3:5], "mark"),
    )


#: With a list of undecided transactions, and of checkable ones.
_RARE = tuple(_rare())


#: Instead of these, where each has one row.
_ALONE = {each.removeprefix("one_"): each for each in statements.PARTS if each.startswith("one_")}


def _forms(parts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """With many rows, and with one each; posted to several queues, and to one."""
    text = " ".join(parts)
    to_one_queue = text if "fan" in text else text.replace("there split", "queue")
    for places in sorted({text, to_one_queue}):
        several = tuple(places.split())
        yield from sorted({several, tuple(_ALONE.get(part, part) for part in several)})


def test_no_part_is_left_out_of_the_combinations() -> None:
    """Nor of the batches that are compared with them."""
    given = {parts_of(whole)[0] for whole in _batches()}
    assert {part for parts in _combinations() for part in parts} == set(statements.PARTS)
    assert {part for parts in given for part in parts} == set(statements.PARTS)
    assert given <= set(_combinations())


def test_each_combination_prepares_on_a_migrated_database(database_url: str) -> None:
    count = 0
    with psycopg.connect(database_url) as connection:
        connection.execute(statements.SETUP.encode())
        for parts in _combinations():
            prepared = connection.pgconn.prepare(b"", statements.statement(parts, 7).encode())
            assert prepared.status == pq.ExecStatus.COMMAND_OK, (parts, prepared.error_message)
            described = connection.pgconn.describe_prepared(b"")
            types = [kind for part in parts for kind in statements.PARTS[part][1]]
            expected = [_ARRAY_OIDS[kind[:-2]] if kind.endswith("[]") else _OIDS[kind] for kind in types]
            assert [described.param_type(number) for number in range(described.nparams)] == expected, parts
            count += 1
    # of 4,607 sets of parts and the rare ones, those with the five in two forms, those for queues alone in two
    assert count == 11_374


def test_arrays_say_the_types_that_the_statement_expects() -> None:
    made = {
        "bool": arrays.boolean([True]),
        "int8": arrays.int8([1]),
        "int4": arrays.int4([1]),
        "int2": arrays.int2([1]),
        "text": arrays.text([b"x"]),
        "bytea": arrays.bytea([b"x"]),
        "uuid": arrays.uuid([bytes(16)]),
        "timestamptz": arrays.timestamptz([1]),
    }
    for name, octets in made.items():
        assert int.from_bytes(octets[8:12], "big") == _OIDS[name]


class _Unit:
    """Implements :class:`store.commit.batch.Unit`."""

    owner = None

    def write(self, batch: batch.Batch) -> None: ...

    def durable(self) -> None: ...

    def refused(self, error: StoreError) -> None: ...


def _batches() -> Iterator[batch.Batch]:
    """With everything but what shuts each other out: a topic's message for all groups or for some, a row or a mark."""
    for of_each in (1, 2):
        yield _full_batch(of_each)
        for without in ([], [2]):
            whole = _full_batch(of_each)
            whole.fan(1, 1, terms.PLAIN, 2, without)
            yield whole
    changes = batch.Batch()
    changes.yield_entry(1, 4, attempts=0)
    yield changes
    listed = batch.Batch()
    listed.half(1, statements.NO_TXN, 1, b"m")
    listed.gone(1, 2)
    listed.op(bytes(15) + b"\1", b"accept", covers=[(1, 1)])
    listed.register(bytes(15) + b"\2", batch.Undecided(b"client", 0, 1, 2, 3))
    listed.forget(bytes(15) + b"\3")
    listed.notify(1, 1)
    yield listed
    for of_each in (1, 2):
        once = batch.Batch()
        for tag in range(of_each):
            once.half(tag, statements.NO_TXN, 1, b"m")
            once.entry(1, 1, tag, 0, terms.PLAIN)
            once.once(_Unit(), 1, "", "shop", b"%d" % tag, tag)
        yield once
    checked = batch.Batch()
    checked.half(1, bytes(15) + b"\4", 1, b"m")
    rows = checked.check_back()
    rows.pend(bytes(15) + b"\4", 1, 1, terms.PLAIN, [3])
    rows.declare(bytes(15) + b"\4", checkable.Declared(b"client", 0, 1, b"shop", 1, 2, 3, 4), new=True)
    rows.declare(bytes(15) + b"\x09", checkable.Declared(b"client", 0, 1, b"shop", 1, 2, 3, 4))
    rows.enlist(bytes(15) + b"\5")
    rows.orphaned[bytes(15) + b"\6"] = 0
    for listed_in in (rows.let_go, rows.owed, rows.overdue):
        listed_in.append(bytes(15) + b"\6")
    for known in (rows.retired, rows.replaced):
        known[bytes(15) + b"\5", 1, 1] = checkable.Retired(b"accept", "", 0, "", b"", 0, "", 0)
    rows.decide(bytes(15) + b"\x08", b"commit", "", [2], [3])
    yield checked
    settled = batch.Batch()
    settled.check_back().settle(bytes(15) + b"\x07", checkable.Settled([4], [5], 1, 1, [6], [7]), [1])
    yield settled


def _full_batch(of_each: int) -> batch.Batch:
    whole = batch.Batch()
    for _ in range(of_each):
        whole.half(1, statements.NO_TXN, 1, b"m")
        whole.entry(1, 1, 1, 7, terms.PLAIN)
        whole.gone(1, 2)
        whole.commit_ids.append(bytes(16))
        whole.commit_posted.append(1)
        whole.op(bytes(15) + b"\1", b"accept", covers=[(1, 1)])
    whole.entry(1, 1, 1, 7, terms.DeliveryTerms(priority=9))
    whole.back(1, 3, attempts=1, failures=1, lease=0)
    whole.yield_entry(1, 4, attempts=0)
    whole.share(1, [5])
    whole.notify(1, 1)
    return whole


def test_a_batch_gives_the_parameters_its_parts_take() -> None:
    widths = {"int8": 8, "int4": 4, "uuid": 16}
    for whole in _batches():
        names, parameters = parts_of(whole)
        types = [kind for name in names for kind in statements.PARTS[name][1]]
        for kind, octets in zip(types, parameters, strict=True):
            if kind.endswith("[]"):
                assert int.from_bytes(octets[8:12], "big") == _OIDS[kind[:-2]]
            else:
                assert len(octets) == widths.get(kind, len(octets))


@pytest.mark.parametrize("twice", sorted(_ALONE))
def test_rows_are_written_alone_where_there_is_one_of_each(twice: str) -> None:
    whole = batch.Batch()

    def commit() -> None:
        whole.commit_ids.append(bytes(16))
        whole.commit_posted.append(1)

    adds: dict[str, Callable[[], None]] = {
        "half": lambda: whole.half(1, statements.NO_TXN, 1, b"m"),
        "entry": lambda: whole.entry(1, 1, 1, 7, terms.PLAIN),
        "gone": lambda: whole.gone(1, 2),
        "commit": commit,
        "op": lambda: whole.op(bytes(15) + b"\1", b"accept"),
    }
    assert set(adds) == set(_ALONE)
    for add in adds.values():
        add()
    assert set(_ALONE.values()) < set(parts_of(whole)[0])
    adds[twice]()
    assert set(adds) < set(parts_of(whole)[0])


# -- plans


def _scans(connection: psycopg.Connection[Any], setup: str, sql: str) -> list[tuple[str, str, str]]:
    """(table, node type, index) of each scan of the store's large tables in the generic plan of ``sql``."""
    found = []
    for node in planned(connection, setup, sql):
        table = str(node.get("Relation Name", ""))
        if re.match(r"entry|half|message_group|op(_|$)", table) and node["Node Type"] != "ModifyTable":
            found.append((table, node["Node Type"], str(node.get("Index Name", ""))))
    return found


QUERIES = all_queries()
#: how entries of a rank are found
_INDEX = {
    Rank.URGENT: "entry_priority_idx",
    Rank.NORMAL: "entry_pkey",
    Rank.PATIENT: "entry_priority_idx",
}
#: those of the first step, and one for the single priorities
_LOOKS = {Rank.URGENT: 2, Rank.NORMAL: 1, Rank.PATIENT: 1}


#: how entries of a message group are found, and how those found are leased
_OF_GROUPS = {
    message_groups.SCAN: ["entry_message_group_idx"] * 2,  # and one that is not shown
    message_groups.CLAIM: ["entry_message_group_idx"],
    message_groups.LEASE: ["entry_message_group_idx", "entry_pkey"],
}


def _each_scan_is_by_index(connection: psycopg.Connection[Any]) -> None:
    for text in ("gone", "one_gone", "back", "yielded", "half entry gone back yielded op", "half fan gone"):
        parts = text.split()
        scans = _scans(connection, statements.SETUP, statements.statement(parts, 7))
        wanted = sum(part in ("gone", "one_gone", "back", "yielded") for part in parts)
        assert scans == [("entry", "Index Scan", "entry_pkey")] * wanted, parts
    for sql in (batch._PROBE_OP, batch._PROBE_HALF, batch._PROBE_MARK):
        for scan in _scans(connection, statements.SETUP, sql):
            assert scan[1] in ("Index Scan", "Index Only Scan"), scan
    for query in QUERIES:
        for table, node, index in _scans(connection, asking.SETUP, query.sql):
            assert node in ("Index Scan", "Index Only Scan"), (query.name, table, node)
            for rank, index_wanted in _INDEX.items():
                if query is entries.BROWSE[rank] and table == "entry":
                    assert (node, index) == ("Index Scan", index_wanted)
        if query in _OF_GROUPS:
            scans = _scans(connection, asking.SETUP, query.sql)
            assert sorted(index for table, _, index in scans if table == "entry") == _OF_GROUPS[query], query.name
        for rank, index_wanted in _INDEX.items():
            # the entries that are looked for, and those that are found by their key
            if query is entries.LEASE[rank]:
                scans = _scans(connection, asking.SETUP, query.sql)
                indexes = [index for table, _, index in scans if table == "entry"]
                assert sorted(indexes) == sorted([index_wanted] * _LOOKS[rank] + ["entry_pkey"]), query.name


@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.parametrize("parts", ["half entry there split", "one_half one_entry queue one_commit"])
def test_a_post_finds_what_it_locks_by_index(database_url: str, parts: str, analysed: bool) -> None:
    """Each row by its key, and in the order of ids without sorting them."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            f"insert into {SCHEMA}.address (name) select i::text from generate_series(1, 10000) i".encode()
        )
        connection.execute(f"insert into {SCHEMA}.consumer_group (address_id) select id from {SCHEMA}.address".encode())
        if analysed:
            connection.execute(b"analyze")
        sql = statements.statement(parts.split(), 7)
        nodes = [node for node in planned(connection, statements.SETUP, sql) if node["Node Type"] != "ModifyTable"]
        found = {node["Relation Name"]: node["Index Name"] for node in nodes if "Index Name" in node}
        assert found.pop("instance") in ("instance_pkey", "instance_slot_idx")
        assert found == {"address": "address_pkey", "consumer_group": "consumer_group_address_id_key"}
        others = {node["Node Type"] for node in nodes if "Index Name" not in node}
        assert others <= {"Result", "Aggregate", "CTE Scan", "Subquery Scan", "Function Scan", "LockRows"}


@pytest.mark.parametrize("analysed", [False, True])
def test_a_commit_of_checkable_transactions_finds_its_rows_by_index(database_url: str, analysed: bool) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            f"insert into {SCHEMA}.pending (txn_id, half_id, address_id) "
            f"select gen_random_uuid(), i, 1 from generate_series(1, 10000) i".encode()
        )
        if analysed:
            connection.execute(b"analyze")
        sql = statements.statement(("there", "settled", "concluded", "released", "unpended", "delivered"), 7)
        scans = [node for node in planned(connection, statements.SETUP, sql) if node["Node Type"] != "ModifyTable"]
        found = sorted(
            node["Index Name"] for node in scans if "Index Name" in node and node["Relation Name"] != "instance"
        )
        wanted = ["address_pkey", "consumer_group_address_id_key", "pending_pkey", "pending_pkey", "txn_pkey"]
        assert found == wanted
        assert not [node["Relation Name"] for node in scans if node["Node Type"] == "Seq Scan"]


def test_plans_of_a_store_that_was_never_analysed(database_url: str) -> None:
    """A plan that is made on the first day is kept for the life of its connection."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        _each_scan_is_by_index(connection)


@pytest.mark.parametrize("analysed", [False, True])
def test_plans_with_a_million_entries(database_url: str, analysed: bool) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            f"insert into {SCHEMA}.half (id, address_id, message) "
            f"select i, 1, 'x' from generate_series(1, {ROWS}) i".encode()
        )
        connection.execute(
            f"insert into {SCHEMA}.entry (group_id, id, half_id) "
            f"select 1 + i % 3, i, i from generate_series(1, {ROWS}) i".encode()
        )
        connection.execute(f"insert into {SCHEMA}.address (name) values ('a')".encode())
        connection.execute(
            f"insert into {SCHEMA}.consumer_group (address_id, name) "
            f"select (select max(id) from {SCHEMA}.address), i::text from generate_series(1, 3) i".encode()
        )
        if analysed:
            connection.execute(b"analyze")
        _each_scan_is_by_index(connection)
        # a load in the middle of the million reads what it takes, and no more
        connection.execute(asking.SETUP.encode())
        connection.execute(
            b"prepare lease (int4, int8[], int4, int8, int4) as " + entries.LEASE[Rank.NORMAL].sql.encode()
        )
        plan = connection.execute(
            f"explain (analyze, buffers, format json) execute lease (1, array[{ROWS // 2}], 100, 1000000, 7)".encode()
        ).fetchone()
        assert plan is not None
        top = plan[0][0]["Plan"]
        assert top["Actual Rows"] == 100
        assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] < 5000


def test_message_groups_behind_a_long_one(database_url: str) -> None:
    """What is looked at does not grow with what waits in a group: neither to find others, nor to read on."""
    count = 100_000
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            f"insert into {SCHEMA}.half (id, address_id, message) "
            f"select i, 1, 'x' from generate_series(1, {count}) i".encode()
        )
        connection.execute(
            f"insert into {SCHEMA}.entry (group_id, id, half_id, message_group) "
            f"select 1, i, i, case when i > {count - 10} then -i else -1 end "
            f"from generate_series(1, {count}) i".encode()
        )
        connection.execute(asking.SETUP.encode())
        for name, parameters, query, rows in (
            ("scan", f"1, {-(1 << 63)}, 2000, 100, 7", message_groups.SCAN, 12),
            ("claim", "1, array[-1, -2], 7", message_groups.CLAIM, 0),
            ("read", "1, array[-1], 50, 100000, 7, array[0]", message_groups.LEASE, 51),
        ):
            connection.execute(f"prepare {name} as {query.sql}".encode())
            plan = connection.execute(f"explain (analyze, buffers, format json) execute {name} ({parameters})".encode())
            row = plan.fetchone()
            assert row is not None
            top = row[0][0]["Plan"]
            assert top["Actual Rows"] == rows, name
            assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] < 1500, name
        claimed = connection.execute(f"select count(*) from {SCHEMA}.message_group".encode()).fetchone()
        assert claimed == (11,)
