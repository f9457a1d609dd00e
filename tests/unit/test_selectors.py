"""JMS selectors (Jakarta Messaging 3.1, section 3.8) against SQLite, and case by case."""

from __future__ import annotations

import random
import sqlite3
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.codec.selectors import DEEPEST, LONGEST, MOST_TOKENS, Selector, TurnShare
from coordinator.errors import Condition, Refusal
from coordinator.group.entries import Entry
from coordinator.group.refused import Refused
from coordinator.group.selecting import Search
from tests.tables import all_cases
from tests.wire.frames import Record
from tests.wire.messages import APPLICATION_PROPERTIES, Header, Properties, data, section
from tests.wire.types import Byte, Char, Double, Float, Int, Long, Short, Symbol, Timestamp, UInt, ULong

pytestmark = pytest.mark.rule("P16")


def message(*sections: Record, **properties: Any) -> bytes:
    application = section(APPLICATION_PROPERTIES, properties) if properties else b""
    return b"".join(section(each.CODE, each.described().value) for each in sections) + application + data(b"body")


def three_valued(text: str, stored: bytes, attempts: int = 0) -> bool | None:
    """What the condition is: true where it holds, false where its negation does."""
    holds = Selector(text).matches(stored, attempts)
    negated = Selector(f"NOT ({text})").matches(stored, attempts)
    assert not (holds and negated)
    return True if holds else False if negated else None


# -- against SQLite

_COLUMNS = ("i", "j", "x", "y", "s", "t", "f", "g")
_WORDS = ("", "a", "ab", "abc", "b%", "a_c", "'", "ü", "aab", "abab")


class Expressions:
    """Random ones in the language that selectors and SQLite share, where operands are alike or null."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def rows(self, count: int) -> list[dict[str, Any]]:
        draw = self._random
        values: dict[str, Callable[[], Any]] = {
            "i": lambda: draw.randint(-5, 5), "j": lambda: draw.randint(-1000, 1000),
            "x": lambda: draw.choice((-2.5, -1.0, 0.0, 0.5, 1.0, 3.25)), "y": lambda: draw.uniform(-10, 10),
            "s": lambda: draw.choice(_WORDS), "t": lambda: draw.choice(_WORDS),
            "f": lambda: draw.random() < 0.5, "g": lambda: draw.random() < 0.5,
        }  # fmt: skip
        return [{name: None if draw.random() < 0.25 else make() for name, make in values.items()} for _ in range(count)]

    def _word(self, word: str) -> str:
        return self._random.choice((word, word.lower(), word.capitalize()))

    def number(self, deep: int) -> str:
        kind = self._random.randrange(9 if deep > 0 else 5)
        if kind < 2:
            return self._random.choice("ijxy")
        if kind == 2:
            return str(self._random.randint(0, 9))
        if kind == 3:
            return self._random.choice(("0.5", "2.", ".25", "1e1", "2.5E-1"))
        if kind == 4:
            return self._random.choice("ij")
        if kind == 5:
            return f"{self._random.choice('+-')} {self._atom(deep - 1)}"
        if kind == 6:
            return f"{self._atom(deep - 1)} {self._random.choice('*/')} {self._atom(deep - 1)}"
        return f"{self._atom(deep - 1)} {self._random.choice('+-')} {self._atom(deep - 1)}"

    def _atom(self, deep: int) -> str:
        found = self.number(deep)
        return f"({found})" if " " in found and self._random.random() < 0.6 else found

    def _string(self) -> str:
        return "'" + self._random.choice(_WORDS).replace("'", "''") + "'"

    def _pattern(self) -> str:
        return "'" + "".join(self._random.choice(("a", "b", "%", "_", "ü", "''")) for _ in range(4)) + "'"

    def condition(self, deep: int) -> str:
        choose = self._random.choice
        negation = choose(("", f" {self._word('NOT')}"))
        match self._random.randrange(11 if deep > 0 else 8):
            case 0 | 1:
                sign = choose(("=", "<>", "<", "<=", ">", ">="))
                return f"{self.number(2)} {sign} {self.number(2)}"
            case 2:
                return f"{choose('st')} {choose(('=', '<>'))} {choose(('s', 't', self._string()))}"
            case 3:
                between = f"{negation} {self._word('BETWEEN')}"
                return f"{self.number(1)}{between} {self.number(1)} {self._word('AND')} {self.number(1)}"
            case 4:
                strings = ", ".join(self._string() for _ in range(self._random.randint(1, 3)))
                return f"{choose('st')}{negation} {self._word('IN')} ({strings})"
            case 5:
                if choose((True, False)):
                    return f"{choose('st')}{negation} {self._word('LIKE')} {self._pattern()}"
                pattern = choose(("'a!_c'", "'b!%'", "'%!_%'", "'!!%'"))
                return f"{choose('st')}{negation} {self._word('LIKE')} {pattern} {self._word('ESCAPE')} '!'"
            case 6:
                return f"{choose(_COLUMNS)} {self._word('IS')}{negation} {self._word('NULL')}"
            case 7:
                return choose(("f", "g", "f = g", "f <> TRUE", "g = false", "TRUE", "FALSE"))
            case 8:
                return f"{self._word('NOT')} ({self.condition(deep - 1)})"
            case _:
                operator = self._word(choose(("AND", "OR")))
                terms = (self.condition(deep - 1) for _ in range(self._random.randint(2, 3)))
                return f" {operator} ".join(f"({each})" if choose((True, False)) else each for each in terms)


def _properties(row: dict[str, Any]) -> dict[str, Any]:
    """Each kind of number that AMQP has, by turns."""
    wire: dict[str, Any] = {
        "i": Byte,
        "j": Short if (row["i"] or 0) % 2 else Long,
        "x": Float,
        "y": Double,
        "f": bool,
        "g": bool,
    }
    return {name: wire.get(name, str)(value) for name, value in row.items() if value is not None}


@settings(max_examples=100)
@given(st.integers(0, 1 << 32))
def test_ten_thousand_expressions_mean_what_sqlite_means(seed: int) -> None:
    """A hundred seeds with a hundred expressions each, on ten messages."""
    expressions = Expressions(seed)
    rows = expressions.rows(10)
    messages = [message(**_properties(row)) for row in rows]
    database = sqlite3.connect(":memory:")
    database.execute("pragma case_sensitive_like = on")
    database.execute(f"create table message ({', '.join(_COLUMNS)})")
    database.executemany(
        f"insert into message values ({', '.join('?' * len(_COLUMNS))})", [[*row.values()] for row in rows]
    )
    for _ in range(100):
        text = expressions.condition(3)
        selector, negated = Selector(text), Selector(f"NOT ({text})")
        values = database.execute(f"select {text} from message order by rowid").fetchall()
        wanted = [None if value is None else bool(value) for (value,) in values]
        found = [
            True if selector.matches(each, 0) else False if negated.matches(each, 0) else None for each in messages
        ]
        assert found == wanted, text
    database.close()


# -- by hand

_PERSON = message(
    Header(durable=True, priority=UInt(12)),
    Properties(
        message_id="ID:one", subject="a type", correlation_id=ULong(7), creation_time=Timestamp(1_700_000_000_000),
        group_id="g", group_sequence=UInt(3), user_id=b"anna", reply_to="answers",
    ),
    age=Int(17), weight=Double(55.5), name="O'Neill", country=Symbol("UK"), member=True, born=Timestamp(5),
    letter=Char(97), key=uuid.UUID(int=1), octets=b"ab", half=Float(0.1),
    **{"with space": Int(1), 'a"b': Int(2), "a.b": Int(3), "naïve": Int(4)},
)  # fmt: skip


@all_cases(
    ("text", "wanted"),
    [
        # literals
        ("age = 17L AND age = 0x11 AND age = 021 AND age = 17.0 AND age = 1.7e1d", True),
        ("name = 'O''Neill'", True),
        ("-9223372036854775808 < age", True),
        ("TRUE", True),
        ("NOT FALSE", True),
        # names
        ("Age IS NULL", True),
        ("nUlL_ IS NULL and androgyny is null and $x is null and _y is null", True),
        ('"with space" = 1 AND "a""b" = 2 AND a.b = 3 AND naïve = 4', True),
        # like type values alone compare; others are false (section 3.8.1.2)
        ("age = '17'", False),
        ("age <> '17'", False),
        ("member = 1", False),
        ("name < age", False),
        ("letter = 'a' OR key = 'x' OR octets = 'ab' OR letter = 97", False),
        ("born = 5", True),
        ("country = 'UK'", True),
        ("half = 0.1", False),  # as in Java: a float is widened
        # null is unknown
        ("nothing = 1", None),
        ("nothing <> 'x'", None),
        ("nothing > 1 OR age = 17", True),
        ("nothing > 1 AND age = 17", None),
        ("nothing > 1 AND age = 18", False),
        ("NOT nothing = 1", None),
        ("nothing", None),
        ("age", None),
        ("member", True),
        ("nothing + 1 = 2", None),
        ("nothing BETWEEN 1 AND 2", None),
        ("nothing IN ('a')", None),
        ("nothing LIKE '%'", None),
        # arithmetic
        ("7 / 2 = 3 AND -7 / 2 = -3 AND 7 / 2. = 3.5", True),
        ("2 + 3 * 4 - 6 / 2 = 11 AND (2 + 3) * 4 = 20 AND 10 - 2 - 3 = 5", True),
        ("- age + 18 = 1", True),
        ("name + 1 = 1", None),
        ("age / 0 = 1", None),
        # between, in, like
        ("age BETWEEN 15 AND 19", True),
        ("age NOT BETWEEN 15 AND 19", False),
        ("name BETWEEN 1 AND 2", False),
        ("name NOT BETWEEN 1 AND 2", False),
        ("country IN ('FR', 'UK')", True),
        ("age IN ('17')", False),
        ("age NOT IN ('17')", True),
        ("name LIKE 'O_N%' AND name LIKE '%ll' AND name LIKE '%Ne%' AND name NOT LIKE 'o%'", True),
        ("age LIKE '1_'", False),
        ("name LIKE 'O\\_%' ESCAPE '\\'", False),
        # precedence
        ("age = 1 AND age = 2 OR age = 17", True),
        ("NOT age = 1 AND member", True),
        # headers
        ("JMSMessageID = 'ID:one' AND JMSType = 'a type' AND JMSCorrelationID = 'ID:AMQP_ULONG:7'", True),
        ("JMSPriority = 9 AND JMSDeliveryMode = 'PERSISTENT' AND JMSTimestamp = 1700000000000", True),
        ("JMSXGroupID = 'g' AND JMSXGroupSeq = 3 AND JMSXUserID = 'anna' AND JMSXDeliveryCount = 3", True),
        ("amqp.priority = 12 AND amqp.durable AND amqp.reply_to = 'answers' AND amqp.correlation_id = 7", True),
        ("amqp.ttl IS NULL AND amqp.to IS NULL", True),
    ],
)  # fmt: skip
def test_what_it_means(text: str, wanted: bool | None) -> None:
    assert three_valued(text, _PERSON, attempts=2) is wanted


@pytest.mark.parametrize(
    ("message_id", "shown"),
    [
        ("plain", "ID:AMQP_NO_PREFIX:plain"),
        ("ID:AMQP_ULONG:1", "ID:AMQP_STRING:ID:AMQP_ULONG:1"),
        (ULong(1), "ID:AMQP_ULONG:1"),
        (uuid.UUID(int=5), f"ID:AMQP_UUID:{uuid.UUID(int=5)}"),
        (bytes(15) + b"\x05", "ID:AMQP_BINARY:" + "00" * 15 + "05"),
    ],
)
def test_ids_are_those_that_qpid_jms_shows(message_id: Any, shown: str) -> None:
    stored = message(Properties(user_id=b"x", message_id=message_id))
    assert three_valued(f"JMSMessageID = '{shown}'", stored) is True


def test_a_message_of_a_body_alone_has_the_defaults() -> None:
    text = "JMSPriority = 4 AND JMSDeliveryMode = 'NON_PERSISTENT' AND JMSXDeliveryCount = 1 AND JMSMessageID IS NULL"
    assert three_valued(text, data(b"body")) is True


@all_cases(
    ("text", "place", "why"),
    [
        ("age =", "line 1, column 6", "ends too early"),
        ("age = 1\n  AND AND b", "line 2, column 7", "found AND"),
        ("age ~ 1", "line 1, column 5", "'~'"),
        ("name = 'x", "line 1, column 8", "no end"),
        ("age > 'x'", "line 1, column 7", "by = and <> only"),
        ("member >= TRUE", "line 1, column 11", "by = and <> only"),
        ("a = 1 AND 2", "line 1, column 11", "found a number where a condition"),
        ("'x'", "line 1, column 1", "found a string where a condition"),
        ("age + 'x' = 1", "line 1, column 7", "where a number"),
        ("(a = 1) IS NULL", "line 1, column 2", "needs a name"),
        ("'a' LIKE 'b'", "line 1, column 1", "needs a name"),
        ("a LIKE b", "line 1, column 8", "expected a string"),
        ("a LIKE 'x' ESCAPE 'yy'", "line 1, column 19", "one character"),
        ("a LIKE 'x!' ESCAPE '!'", "line 1, column 8", "neither % nor _"),
        ("a IN (1)", "line 1, column 7", "expected a string"),
        ("a = 1 b", "line 1, column 7", "found b"),
        ("a = 09", "line 1, column 5", "octal"),
        ("a = 99999999999999999999", "line 1, column 5", "64 bits"),
        ("JMSReplyTo = 'x'", "line 1, column 1", "cannot be selected by"),
        ("amqp.nothing = 1", "line 1, column 1", "no field"),
        ("NOT " * (DEEPEST + 2) + "a", "", "nested deeper"),
        ("a" * (LONGEST + 1), "", "at most"),
        ("(" * 2000 + "a = 1" + ")" * 2000, "line 1, column 513", "at most 512 names, values and signs"),
        (" OR ".join(["a=1"] * 1160), "", "at most 512 names, values and signs"),
    ],
)
def test_a_bad_one_says_where(text: str, place: str, why: str) -> None:
    with pytest.raises(Refusal) as error:
        Selector(text)
    assert error.value.condition is Condition.INVALID_FIELD
    assert place in error.value.description
    assert why in error.value.description


def test_as_many_tokens_as_are_allowed() -> None:
    names = ", ".join(f"'{number}'" for number in range((MOST_TOKENS - 4) // 2))
    assert Selector(f"s IN ({names})").matches(message(s="253"), 0)
    with pytest.raises(Refusal, match="at most"):
        Selector(f"s IN ({names}, 'one more')")


def test_neither_patterns_nor_nesting_blow_up() -> None:
    """Both would take longer than the world is old, or overflow the stack, were they done naively."""
    stored = message(s="a" * 20_000)
    assert three_valued("s LIKE '" + "%a" * 200 + "%b'", stored) is False
    assert three_valued("(" * 250 + "s IS NULL" + ")" * 250, stored) is False
    assert three_valued(" OR ".join(["s = 'b'"] * 125), stored) is False
    assert three_valued(" * ".join(["9223372036854775807"] * 250) + " * 1.0 > 1", stored) is None


@given(st.text("ab%_", max_size=12), st.text("ab", max_size=12))
def test_a_pattern_is_what_a_naive_matcher_says(pattern: str, text: str) -> None:
    def naive(at: int, of: int) -> bool:
        if at == len(pattern):
            return of == len(text)
        if pattern[at] == "%":
            return any(naive(at + 1, each) for each in range(of, len(text) + 1))
        return of < len(text) and pattern[at] in ("_", text[of]) and naive(at + 1, of + 1)

    assert three_valued(f"s LIKE '{pattern}'", message(s=text)) is naive(0, 0)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("s LIKE '%" + "a" * 8000 + "b%'", id="a long segment"),
        pytest.param("s LIKE '" + "%a_" * 2000 + "b%'", id="many with any character"),
        pytest.param("s LIKE '%" + "a_" * 3000 + "b%'", id="one long with any character"),
        pytest.param(" OR ".join(["s LIKE '%b%'"] * 125), id="many patterns"),
        pytest.param(" OR ".join(["s = t"] * 125), id="many comparisons"),
    ],
)
def test_too_much_work_for_one_message_is_unknown(text: str) -> None:
    """Neither the selector nor its negation holds; for a message of a usual size it does."""
    assert three_valued(text, message(s="a" * 900_000, t="a" * 899_999 + "b")) is None
    assert three_valued(text, message(s="a" * 400, t="a" * 399 + "b")) is False


def test_an_exact_number_that_outgrows_its_bits_is_unknown() -> None:
    stored = message(i=Long(256))
    assert three_valued(" * ".join(["i"] * 127) + " > 0", stored) is True
    assert three_valued(" * ".join(["i"] * 129) + " > 0", stored) is None


def test_a_consumer_without_room_does_not_put_off_the_next_look_at_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("coordinator.group.selecting.time", SimpleNamespace(monotonic=lambda: clock.now))
    timers: dict[str, float] = {}
    loop = SimpleNamespace(call_later=lambda seconds, call: timers.update({call.__name__: seconds}))
    queries = SimpleNamespace(ask=lambda *asked: None)
    instance: Any = SimpleNamespace(selecting=TurnShare(), peers=1, queries=queries, loop=loop)
    queue: Any = SimpleNamespace(
        instance=instance,
        searches=[],
        returning=0,
        group_id=1,
        held={},
        touch=lambda: None,
        entry_kind=Entry,
        browse=lambda *asked: None,
    )
    consumer: Any = SimpleNamespace(room=0, draining=False)
    search = Search(queue, consumer, Selector("a = 1"))
    queue.searches.append(search)
    search._read_all()
    for room in (0, 10):
        consumer.room = room
        search.advance()
        clock.now += 600 if not room else 0.5
    search._read(search._cursors[1], [])
    search.arrived(None, None)
    assert timers["_read_all"] == 9.5


def test_a_search_stops_where_selectors_have_used_up_their_share_of_the_turn() -> None:
    """What it has not looked at it asks for again, in the next turn."""
    share = TurnShare()
    instance: Any = SimpleNamespace(selecting=share, peers=0, queries=SimpleNamespace(ask=lambda *asked: None))
    touched: list[bool] = []
    queue: Any = SimpleNamespace(
        instance=instance, searches=[], returning=0, group_id=1, held={}, touch=lambda: touched.append(True)
    )
    queue.refused = Refused(queue)
    looked: list[bytes] = []

    class Slow(Selector):
        def matches(self, message: bytes, attempts: int) -> bool:
            looked.append(message)
            share.end = 1.0
            return False

    consumer: Any = SimpleNamespace(key=1, room=10, draining=False)
    queue.entry_kind = Entry
    search = Search(queue, consumer, Slow("a = 1"))
    queue.searches.append(search)
    rows: Any = [(number, number, b"%d" % number, 0, 0, b"", False, 4, 0) for number in (1, 2, 3)]
    for seen in ([b"1"], [b"1", b"2"], [b"1", b"2", b"3"]):
        share.renew()
        search._read(search._cursors[1], [row for row in rows if row[0] > search._cursors[1].at[1]])
        assert looked == seen
        assert search._cursors[1].stale
    assert len(touched) == 3
