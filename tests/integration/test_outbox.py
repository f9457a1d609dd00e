"""``coordinator.post`` in SQL (X2): what it makes of its arguments, what it refuses, and what it holds up."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from proton import Message
from psycopg import errors
from psycopg.types.json import Jsonb
from sqlalchemy import Connection, text

from coordinator.group.lanes import message_group
from store import removal
from store.codec.message import VALUE, examine
from tests.fix_application import Application, post, stored
from tests.fix_store import Rows
from tests.wire.messages import Header, Properties, data, section
from tests.wire.types import UByte, UInt, ULong

pytestmark = pytest.mark.rule("X2")

#: As large as the largest message that a service takes by its default settings.
MOST_OCTETS = 100 << 20

DURABLE = section(Header.CODE, Header(durable=True).described().value)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("tea", section(VALUE, "tea")),
        ("ä" * 300, section(VALUE, "ä" * 300)),
        ("", section(VALUE, "")),
        (b"tea", data(b"tea")),
        (b"\x00\xff" * 500, data(b"\x00\xff" * 500)),
        (b"x" * 255, data(b"x" * 255)),
        (b"x" * 256, data(b"x" * 256)),
    ],
    ids=["text", "long-text", "no-text", "octets", "many-octets", "255", "256"],
)
def test_a_body_is_encoded_as_a_client_does(
    application: Application, rows: Rows, body: str | bytes, expected: bytes
) -> None:
    rows.queue("orders")
    post(application, "orders", body)
    application.commit()
    assert stored(application) == [DURABLE + expected]
    client = Message(body=body, durable=True, inferred=True)
    found = Message()
    found.decode(stored(application)[0])
    assert (found.body, found.durable) == (client.body, True)


def test_json_is_data_of_its_content_type(application: Application, rows: Rows) -> None:
    rows.queue("orders")
    post(application, "orders", Jsonb({"item": "tea", "cents": [1, 2]}))
    post(application, "orders", Jsonb([]), properties=Jsonb({"content-type": "text/x"}))
    application.commit()
    for octets, kind, value in zip(
        stored(application), ("application/json", "text/x"), ({"item": "tea", "cents": [1, 2]}, []), strict=True
    ):
        found = Message()
        found.decode(octets)
        assert isinstance(found.body, bytes | memoryview)
        assert (found.content_type, json.loads(bytes(found.body))) == (kind, value)


def test_properties_and_headers_are_those_of_a_client(application: Application, rows: Rows) -> None:
    rows.queue("orders")
    given: dict[str, Any] = {
        "message-id": "m-1", "user-id": "shop", "to": "orders", "subject": "s" * 300, "reply-to": "answers",
        "correlation-id": 2**40, "content-type": "text/plain", "content-encoding": "none",
        "absolute-expiry-time": 4102444800000, "creation-time": 0, "group-id": "ä", "group-sequence": 4294967295,
        "reply-to-group-id": "g",
    }  # fmt: skip
    headers = {"b": True, "n": None, "i": 300, "s": "tea", "d": 0.5, "z": -1, "off": False}
    post(application, "orders", "tea", properties=Jsonb(given), headers=Jsonb(headers), priority=9)
    post(application, "orders", "tea", properties=Jsonb({"message-id": 0}), group_id="g", ttl=timedelta(seconds=1))
    application.commit()
    full, small = stored(application)
    found = Message()
    found.decode(full)
    assert (found.id, found.user_id, found.address, found.subject) == ("m-1", b"shop", "orders", "s" * 300)
    assert (found.reply_to, found.correlation_id, found.content_type) == ("answers", 2**40, "text/plain")
    assert (found.content_encoding, found.expiry_time, found.creation_time) == ("none", 4102444800, 0)
    assert (found.group_id, found.group_sequence, found.reply_to_group_id) == ("ä", 4294967295, "g")
    properties: object = found.properties
    assert (properties, found.priority) == (headers, 9)
    assert examine(full).priority == 9
    header, properties = Header(durable=True, ttl=1000), Properties(message_id=ULong(0), group_id="g")
    sections = [(each.CODE, each.described().value) for each in (header, properties)]
    assert small == b"".join(section(*each) for each in [*sections, (VALUE, "tea")])


@pytest.mark.parametrize("group_id", ["", "g", "ä" * 40, "x" * 127, "x" * 128, "x" * 129, "x" * 1000, "\U0001f375"])
def test_a_message_group_has_the_number_that_services_give_it(application: Application, group_id: str) -> None:
    found = application.execute("select coordinator.group_key(%s)", [group_id]).fetchone()
    assert found == (message_group(group_id),)


@pytest.mark.parametrize(
    ("given", "sqlstate", "says"),
    [
        ({"at": "nowhere"}, "CO006", 'there is no address "nowhere"'),
        ({"at": None}, "22004", "expected an address and a body, not null"),
        ({"body": None}, "22004", "expected an address and a body, not null"),
        ({"body": "x" * (MOST_OCTETS + 1)}, "54000", "at most 104857600 were expected"),
        ({"body": b"x" * (2 * MOST_OCTETS)}, "54000", "the message has 209715215 octets"),
        ({"body": b"x" * (MOST_OCTETS - 5)}, "54000", "the message has 104857"),
        ({"priority": 256}, "22023", "the priority is 256, expected 0 to 255"),
        ({"priority": -1}, "22023", "expected 0 to 255"),
        ({"delay": timedelta(seconds=-1)}, "22023", "expected 0 to 100 years"),
        ({"delay": timedelta(days=40_000)}, "22023", "expected 0 to 100 years"),
        ({"ttl": timedelta(0)}, "22023", "expected 1 millisecond to 49 days"),
        ({"ttl": timedelta(days=50)}, "22023", "expected 1 millisecond to 49 days"),
        ({"ttl": "300000 years"}, "22023", "expected 1 millisecond to 49 days"),
        ({"deliver_at": "infinity"}, "22023", "a time is infinite"),
        ({"deliver_at": "-infinity"}, "22023", "a time is infinite"),
        ({"properties": Jsonb({"colour": "red"})}, "22023", '"colour" is none of the properties'),
        ({"properties": Jsonb(["to"])}, "22023", "properties are an array, expected an object"),
        ({"properties": Jsonb({"to": 1})}, "22023", 'the property "to" is 1; expected a string'),
        ({"properties": Jsonb({"message-id": -1})}, "22023", "expected a string or a number from 0 on"),
        ({"properties": Jsonb({"group-sequence": 2**32})}, "22023", "expected a number from 0 to 4294967295"),
        ({"properties": Jsonb({"creation-time": "now"})}, "22023", "expected milliseconds since 1970"),
        ({"properties": Jsonb({"content-type": "tä"})}, "22023", "expected a string of ASCII"),
        ({"properties": Jsonb({"group-id": "a"}), "group_id": "b"}, "22023", 'the group-id is "b"'),
        ({"headers": Jsonb("x")}, "22023", "headers are an string, expected an object"),
        ({"headers": Jsonb({"x": {}})}, "22023", 'the header "x" is an object; expected a string'),
        ({"headers": Jsonb({"x": 2**63})}, "22023", "does not fit into 64 bits"),
        ({"at": "later"}, "CO007", 'the address "later" is of kind delay, and the message came without a delay'),
        ({"at": "certain", "delay": timedelta(1)}, "CO007", "its messages cannot be delivered later"),
        ({"at": "%DLQ%orders"}, "CO007", 'the address "%DLQ%orders" is the service\'s own, and takes no posts'),
    ],
)
def test_what_it_cannot_take_is_refused_by_name(
    application: Application, rows: Rows, given: dict[str, Any], sqlstate: str, says: str
) -> None:
    for name, kind in (("orders", "normal"), ("later", "delay"), ("certain", "transaction")):
        rows.queue(name, kind=kind)
    rows.queue("%DLQ%orders", origin="dead-letter")
    with pytest.raises(psycopg.Error) as refused:
        post(application, **{"address": given.pop("at", "orders"), "body": "tea", **given})
    assert (refused.value.sqlstate, says in str(refused.value)) == (sqlstate, True), str(refused.value)
    application.rollback()
    post(application, "certain", "tea")
    application.commit()
    assert len(stored(application)) == 1


def test_octets_of_a_client_go_through_as_they_are(application: Application, rows: Rows) -> None:
    rows.queue("orders")
    message = section(VALUE, "tea", large=True)
    application.execute("select coordinator.post_octets('orders', %s, priority => 7)", [message])
    application.commit()
    assert stored(application) == [message]
    for term in ("available_at", "expires_at"):
        for value in ("infinity", "-infinity"):
            with pytest.raises(errors.InvalidParameterValue, match="a time is infinite"):
                application.execute(f"select coordinator.post_octets('orders', %s, {term} => %s)", [message, value])
            application.rollback()


def test_in_the_order_of_the_posts_and_once(application: Application, rows: Rows, database: Connection) -> None:
    """More than one millisecond has ids for, in pieces of which some are rolled back; each leaves an entry of its own
    time.
    """
    group = rows.queue("orders")
    many = 10_000
    post(application, "orders", "first")
    application.execute("savepoint piece")
    post(application, "orders", "never")
    application.execute("rollback to piece")
    application.execute("select coordinator.post('orders', n::text) from generate_series(1, %s) n", [many])
    application.commit()
    expected = [DURABLE + section(VALUE, each) for each in ["first", *map(str, range(1, many + 1))]]
    assert stored(application) == expected
    found = application.execute(
        "select m.message from coordinator.entry e join coordinator.half m on m.id = e.half_id "
        "where e.group_id = %s order by e.available_at",
        [group],
    ).fetchall()
    assert [row[0] for row in found] == expected
    assert application.execute("select count(*) from coordinator.outbox").fetchone() == (0,)


@pytest.mark.parametrize(
    ("bodies", "kind", "expected"),
    [
        (["1", "2", "ä"], "text", [section(VALUE, each) for each in ("1", "2", "ä")]),
        ([b"1", b"\xff" * 300], "bytea", [data(b"1"), data(b"\xff" * 300)]),
        ([], "text", []),
    ],
    ids=["text", "octets", "none"],
)
def test_many_are_as_many_posts(
    application: Application, rows: Rows, bodies: list[Any], kind: str, expected: list[bytes]
) -> None:
    rows.queue("orders")
    many = f"select coordinator.post_many('orders', %s::{kind}[], ttl => '1 hour', priority => 7)"
    application.execute(many, [bodies])
    post(application, "orders", "behind them")
    application.commit()
    *found, last = stored(application)
    assert found == [section(Header.CODE, [True, UByte(7), UInt(3_600_000)]) + each for each in expected]
    assert last == DURABLE + section(VALUE, "behind them")


def test_many_of_json_have_their_content_type(application: Application, rows: Rows) -> None:
    rows.queue("orders")
    bodies = [Jsonb({"n": 1}), Jsonb([2])]
    post(application, "orders", bodies[0], headers=Jsonb({"a": 1}))
    post(application, "orders", bodies[1], headers=Jsonb({"a": 1}))
    application.execute("select coordinator.post_many('orders', %s::jsonb[], headers => %s)", [bodies, Jsonb({"a": 1})])
    application.commit()
    one, other, *many = stored(application)
    assert many == [one, other]


@pytest.mark.parametrize("bodies", [None, ["1", None]], ids=str)
def test_many_have_a_body_each(application: Application, rows: Rows, bodies: list[str | None] | None) -> None:
    rows.queue("orders")
    with pytest.raises(errors.NullValueNotAllowed, match="expected an address and a body, not null"):
        application.execute("select coordinator.post_many('orders', %s::text[])", [bodies])


def test_ids_that_another_session_has_taken_are_passed(application: Application, rows: Rows, database_url: str) -> None:
    """Of the second from now on, those that the row may have, and the one behind it."""
    rows.queue("orders")
    post(application, "orders", "1")
    taken = """
        insert into coordinator.half (id, address_id, message)
        select (((extract(epoch from now()) * 1000)::int8 - 1704067200000 + ms) << 22) | 4186112
               | ((select last_value from pg_sequences where sequencename = 'outbox_number_seq') & 4095),
               (select id from coordinator.address), 'taken'
          from generate_series(0, 1000) ms"""
    with psycopg.connect(database_url) as other:
        assert other.execute(taken).rowcount == 1001
    post(application, "orders", "2")
    application.commit()
    assert sorted(each for each in stored(application) if each != b"taken") == [
        DURABLE + section(VALUE, each) for each in ("1", "2")
    ]
    entries = "select count(*) from coordinator.entry e join coordinator.half h on h.id = e.half_id"
    assert application.execute(entries).fetchone() == (2,)


@pytest.mark.parametrize("first", ["rolled back", "kept"])
def test_a_savepoint_takes_its_posts_with_it(application: Application, rows: Rows, first: str) -> None:
    rows.queue("orders")
    if first == "kept":
        post(application, "orders", "1")
    application.execute("savepoint piece")
    post(application, "orders", "2")
    application.execute("rollback to piece")
    post(application, "orders", "3")
    application.commit()
    kept = ["1", "3"] if first == "kept" else ["3"]
    assert stored(application) == [DURABLE + section(VALUE, each) for each in kept]


@pytest.mark.parametrize("looks", [1, 3, 101])
def test_a_savepoint_takes_with_it_that_constraints_were_looked_at(
    application: Application, rows: Rows, looks: int
) -> None:
    """Also in a function, and where that was so often that it was taken for the commit."""
    rows.queue("orders")
    application.execute(
        "create function pg_temp.look() returns void language plpgsql as "
        f"$$begin {'set constraints all immediate; ' * looks}end$$".encode()
    )
    post(application, "orders", "1")
    application.execute("savepoint piece")
    application.execute("select pg_temp.look()")
    post(application, "orders", "never")
    application.execute("rollback to piece")
    post(application, "orders", "2")
    application.execute("savepoint piece")
    application.execute("select pg_temp.look()")
    application.execute("release piece")
    post(application, "orders", "3")
    application.commit()
    assert stored(application) == [DURABLE + section(VALUE, each) for each in ("1", "2", "3")]
    assert application.execute("select count(*) from coordinator.outbox").fetchone() == (0,)


def test_what_triggers_blocks_and_cursors_post_is_there(application: Application, rows: Rows) -> None:
    """At the commit, too, after the store's own trigger."""
    rows.queue("orders")
    for statement in (
        "create temporary table sale (item text)",
        "create function pg_temp.told() returns trigger language plpgsql as "
        "$$begin perform coordinator.post('orders', new.item); return null; end$$",
        "create constraint trigger told after insert on sale deferrable initially deferred for each row "
        "execute function pg_temp.told()",
    ):
        application.execute(statement.encode())
    post(application, "orders", "1")
    application.execute("insert into sale values ('3'), ('4')")
    application.execute(
        "do $$begin perform coordinator.post('orders', '2'); "
        "begin perform coordinator.post('orders', 'never'); raise 'no'; exception when others then end; end$$"
    )
    application.execute("declare held cursor with hold for select coordinator.post('orders', '5')")
    application.commit()
    assert stored(application) == [DURABLE + section(VALUE, each) for each in "12345"]


def test_a_procedure_that_commits_sends_what_it_has_posted(application: Application, rows: Rows) -> None:
    rows.queue("orders")
    application.autocommit = True
    post_each = "; ".join(
        f"perform coordinator.post('orders', '{body}'); set constraints all immediate; {end}"
        for body, end in (
            ("1", "commit"),
            ("never", "rollback"),
            ("2", "commit"),
            ("3", "set constraints all deferred"),
        )
    )
    application.execute(f"create procedure pg_temp.work() language plpgsql as $$begin {post_each}; end$$".encode())
    application.execute("call pg_temp.work()")
    assert stored(application) == [DURABLE + section(VALUE, each) for each in "123"]


def test_what_is_rolled_back_was_never_there(application: Application, rows: Rows) -> None:
    rows.queue("orders")
    post(application, "orders", "1")
    application.rollback()
    post(application, "orders", "2")
    application.close()
    assert rows.connection.scalar(text("select count(*) from coordinator.half")) == 0


def test_an_open_transaction_holds_up_no_removal_and_its_commit_fails(
    application: Application, rows: Rows, database: Connection
) -> None:
    """Nothing of it is there then, not the rows of the application either."""
    application.execute("create table sale (item text)")
    application.commit()
    rows.queue("orders")
    application.execute("insert into sale values ('tea')")
    post(application, "orders", "tea")
    removed = removal.remove(database, "orders", force=False)
    assert removed is not None
    assert removed.removed
    with pytest.raises(psycopg.Error) as refused:
        application.commit()
    assert refused.value.sqlstate == "CO003"
    assert "an address was removed after a message was posted to it" in str(refused.value)
    assert application.execute("select * from sale").fetchall() == []


def test_its_groups_are_those_of_the_commit(application: Application, rows: Rows) -> None:
    one = rows.queue("news", group="one", routing="topic")
    post(application, "news", "tea")
    other = rows.queue("news", group="other")
    application.commit()
    assert [len(rows.entries(each)) for each in (one, other)] == [1, 1]


def test_a_day_without_a_partition_is_refused_by_name(application: Application, rows: Rows) -> None:
    rows.queue("orders")
    day = application.execute("select to_char(now() at time zone 'UTC', 'YYYYMMDD')").fetchone()
    assert day is not None
    application.execute(f"drop table coordinator.half_{day[0]}")
    post(application, "orders", "tea")
    with pytest.raises(psycopg.Error, match="the store has no partition for today") as refused:
        application.commit()
    assert refused.value.sqlstate == "CO010"


def test_constraints_that_are_immediate_change_nothing(application: Application, rows: Rows, database_url: str) -> None:
    """It is the commit that writes, and locks, whatever the application looks at before."""
    rows.queue("orders")
    application.execute("set constraints all immediate")
    for body in ("1", "2", "3"):
        post(application, "orders", body)
        application.execute("set constraints all immediate")
        application.execute("set constraints all deferred")
    application.execute("do $$begin set constraints all immediate; end$$")
    application.execute(
        "create function pg_temp.look() returns void language plpgsql as "
        "$$begin set constraints all immediate; execute 'set constraints all immediate'; end$$"
    )
    for _ in range(2):
        application.execute("select pg_temp.look()")
    assert application.execute("select count(*) from coordinator.half").fetchone() == (0,)
    with psycopg.connect(database_url) as other:
        other.execute("select from coordinator.address for update nowait")
    application.commit()
    assert stored(application) == [DURABLE + section(VALUE, each) for each in ("1", "2", "3")]
    post(application, "orders", "4")
    application.execute("set constraints all immediate; commit")
    assert len(stored(application)) == 4


def test_a_transaction_that_is_to_be_prepared_is_refused(application: Application, rows: Rows) -> None:
    rows.queue("orders")
    post(application, "orders", "1")
    with pytest.raises(psycopg.Error, match=r"PREPARE|prepared transactions are disabled"):
        application.execute("prepare transaction 'one'")
    application.rollback()
    assert stored(application) == []


def test_outside_a_transaction_block_it_is_a_transaction_of_its_own(application: Application, rows: Rows) -> None:
    rows.queue("orders")
    application.autocommit = True
    post(application, "orders", "tea")
    assert stored(application) == [DURABLE + section(VALUE, "tea")]
