"""JMS message selectors (rule P16; Jakarta Messaging 3.1, section 3.8): parsed once, evaluated against stored messages.

A selector is a condition in a subset of SQL-92. It matches if it is true: for a delivery false and unknown are equal,
for ``NOT`` they differ. The rules where the specification leaves room, or readers expect otherwise:

* Values of different types compare as false, with ``<>`` too; only numbers have an order. A literal that can never have
  the type that its operator needs is an error of the selector.
* Arithmetic on other values than numbers is unknown, and so is a division by zero. Exact numbers divide as in Java:
  ``7 / 2`` is 3. They do not overflow up to 1,024 bits.
* A condition that is neither true nor false (a property that is a string, say) is unknown.
* Names are those of the JMS mapping: ``JMSMessageID``… as Qpid JMS returns them, application properties unchanged.
  In addition ``amqp.message_id``, ``amqp.subject``… name the fields of AMQP's header and properties, and a name in
  double quotes is an application property, whatever its characters.

The cost of a selector is bounded: its text, its tokens, its nesting, and the work of one evaluation, in octets compared
(``MOST_WORK``). Beyond that the selector is unknown for the message, which is then not selected.

One file because the grammar and its compilation belong together: a function for each kind of node.
"""

from __future__ import annotations

import operator
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, cast
from uuid import UUID
from weakref import WeakValueDictionary, finalize

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedToken

from coordinator.errors import Condition, Refusal
from coordinator.printable import printable
from store.codec.encoding import DecodeError, contents, pairs, scalar, skip
from store.codec.message import APPLICATION_PROPERTIES, FIELD_NAMES, HEADER, PROPERTIES, fields_of, sections

if TYPE_CHECKING:
    from coordinator.memory import Account


# Patterns of LIKE (Jakarta Messaging 3.1, section 3.8.1.2) are matched in a time of at most text times pattern.


class _Segment:
    """A part of a pattern between two ``%``; it matches texts of its own length."""

    __slots__ = ("_expression", "_literal", "cost", "length")

    def __init__(self, characters: list[str]) -> None:
        self.length = len(characters)
        self._literal = "".join(characters)
        self._expression = None
        #: work for each character of a text: :meth:`str.find` skips most comparisons, an expression does not
        self.cost = 1 + self.length // 8
        if "" in characters:
            self.cost = self.length
            self._expression = re.compile("".join(re.escape(each) or "." for each in characters), re.DOTALL)

    def is_at(self, text: str, at: int) -> bool:
        if self._expression is None:
            return text.startswith(self._literal, at)
        return self._expression.match(text, at) is not None

    def find(self, text: str, at: int, end: int) -> int:
        """Return its first place in ``text[at:end]``; below 0 if there is none."""
        if self._expression is None:
            return text.find(self._literal, at, end)
        found = self._expression.search(text, at, end)
        return -1 if found is None else found.start()


class Pattern:
    """A pattern of LIKE. Each part between two ``%`` is matched at its first place only: if the pattern matches with a
    later place, it matches with the first as well.
    """

    __slots__ = ("_between", "_first", "_last", "cost")

    def __init__(self, segments: list[list[str]]) -> None:
        first, *others = segments
        self._first = _Segment(first)
        #: None: the pattern has no %
        self._last = _Segment(others[-1]) if others else None
        self._between = [_Segment(each) for each in others[:-1] if each]
        #: work for each character of a text
        self.cost = sum(each.cost for each in (self._first, self._last, *self._between) if each is not None)

    def matches(self, text: str) -> bool:
        at = self._first.length
        if self._last is None:
            return len(text) == at and self._first.is_at(text, 0)
        end = len(text) - self._last.length
        if end < at or not self._first.is_at(text, 0) or not self._last.is_at(text, end):
            return False
        for segment in self._between:
            found = segment.find(text, at, end)
            if found < 0:
                return False
            at = found + segment.length
        return True


# A view gives selectors a stored message by the names of the JMS mapping, of AMQP's fields, and of its properties.

#: the most work of one evaluation: octets of the strings compared, for LIKE times the characters of the pattern
MOST_WORK = 1 << 22

Evaluate = Callable[["View"], object]


class TooMuchWork(Exception):
    """The evaluation has exceeded its bound of work."""


class View:
    """Gives selectors the fields of a message; its sections are decoded on first access."""

    __slots__ = (
        "_application",
        "_decoded",
        "_header",
        "_message",
        "_properties",
        "_properties_at",
        "_work",
        "attempts",
    )

    def __init__(self, message: bytes, attempts: int) -> None:
        self._message = message
        self.attempts = attempts
        self._header: list[object] | None = None
        self._properties: list[object] = []
        self._properties_at = -1
        #: encoded keys and values
        self._application: dict[object, bytes] = {}
        self._decoded: dict[str, object] = {}
        self._work = 0

    def spend(self, octets: int) -> None:
        """Count the work of comparing so many octets."""
        self._work += octets
        if self._work > MOST_WORK:
            raise TooMuchWork

    def _read(self) -> list[object]:
        header: list[object] = []
        self._header = header
        message = self._message
        try:
            for code, _, value, _ in sections(message, APPLICATION_PROPERTIES):
                if code == HEADER:
                    self._header = header = fields_of(message, value, HEADER)
                elif code == PROPERTIES:
                    self._properties = fields_of(message, value, PROPERTIES)
                    self._properties_at = value
                elif code == APPLICATION_PROPERTIES:
                    self._application = {key: pair for key, pair in pairs(message, value) if isinstance(key, str)}
        except DecodeError:
            pass  # sections that cannot be decoded count as missing
        return header

    def header(self, index: int) -> object:
        fields = self._header
        if fields is None:
            fields = self._read()
        return fields[index] if len(fields) > index else None

    def property(self, index: int) -> object:
        if self._header is None:
            self._read()
        fields = self._properties
        return fields[index] if len(fields) > index else None

    def application(self, name: str) -> object:
        if self._header is None:
            self._read()
        pair = self._application.get(name)
        if pair is None:
            return None
        if name not in self._decoded:
            self.spend(len(pair))
            found: object = (
                None  # undecodable values, and those that no property may have (section 3.2.5), count as missing
            )
            with suppress(DecodeError):
                found = scalar(pair, skip(pair, 0))[0]
            self._decoded[name] = found
        return self._decoded[name]

    def is_uuid(self, index: int) -> bool:
        """Whether the property, octets once decoded, is a uuid."""
        at = contents(self._message, self._properties_at)[0]
        for _ in range(index):
            at = skip(self._message, at)
        return self._message[at] == 0x98


_HEADER_FIELDS, PROPERTY_FIELDS = (
    tuple(name.replace("-", "_") for name in FIELD_NAMES[code]) for code in (HEADER, PROPERTIES)
)
_MESSAGE_ID, _USER_ID, _SUBJECT, _CORRELATION_ID = 0, 1, 3, 5
_CREATION_TIME, _GROUP_ID, _GROUP_SEQUENCE = 9, 10, 11
_DEFAULT_PRIORITY = 4
#: prefix that Qpid JMS puts before string ids that look like its own forms of other types
_ESCAPED_IDS = ("ID:AMQP_BINARY:", "ID:AMQP_UUID:", "ID:AMQP_ULONG:", "ID:AMQP_STRING:", "ID:AMQP_NO_PREFIX:")


def _id(view: View, index: int) -> str | None:
    """Return a message-id or correlation-id as Qpid JMS does; None if there is none."""
    found = view.property(index)
    if type(found) is int:
        return f"ID:AMQP_ULONG:{found}"
    if isinstance(found, bytes):
        return f"ID:AMQP_UUID:{UUID(bytes=found)}" if view.is_uuid(index) else f"ID:AMQP_BINARY:{found.hex().upper()}"
    return None


def _message_id(view: View) -> object:
    found = view.property(_MESSAGE_ID)
    if not isinstance(found, str):
        return _id(view, _MESSAGE_ID)
    if found.startswith(_ESCAPED_IDS):
        return f"ID:AMQP_STRING:{found}"
    return found if found.startswith("ID:") else f"ID:AMQP_NO_PREFIX:{found}"


def _correlation_id(view: View) -> object:
    found = view.property(_CORRELATION_ID)
    if not isinstance(found, str):
        return _id(view, _CORRELATION_ID)
    return f"ID:AMQP_STRING:{found}" if found.startswith(_ESCAPED_IDS) else found


def _priority(view: View) -> object:
    found = view.header(1)
    return min(found, 9) if type(found) is int else _DEFAULT_PRIORITY


def _user_id(view: View) -> object:
    found = view.property(_USER_ID)
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else None


JMS_FIELDS: dict[str, Evaluate] = {
    "JMSMessageID": _message_id,
    "JMSCorrelationID": _correlation_id,
    "JMSType": lambda view: view.property(_SUBJECT),
    "JMSPriority": _priority,
    "JMSDeliveryMode": lambda view: "PERSISTENT" if view.header(0) is True else "NON_PERSISTENT",
    "JMSTimestamp": lambda view: view.property(_CREATION_TIME),
    "JMSXUserID": _user_id,
    "JMSXGroupID": lambda view: view.property(_GROUP_ID),
    "JMSXGroupSeq": lambda view: view.property(_GROUP_SEQUENCE),
    "JMSXDeliveryCount": lambda view: view.attempts + 1,
}
NOT_SELECTABLE = frozenset(("JMSDestination", "JMSReplyTo", "JMSExpiration", "JMSRedelivered", "JMSDeliveryTime"))


def _field(index: int, read: Callable[[View, int], object]) -> Evaluate:
    return lambda view: read(view, index)


AMQP_FIELDS: dict[str, Evaluate] = {
    **{f"amqp.{name}": _field(index, View.header) for index, name in enumerate(_HEADER_FIELDS)},
    **{f"amqp.{name}": _field(index, View.property) for index, name in enumerate(PROPERTY_FIELDS)},
}


#: the most characters of a selector
LONGEST = 8192
#: the most names, values and signs of a selector: parsing takes some 50 microseconds for each
MOST_TOKENS = 512
#: the most levels of nested conditions
DEEPEST = 100
#: the most bits of an exact number; a larger one is unknown
_WIDEST = 1024
#: seconds that all selectors together may use in one turn
_TURN_SECONDS = 0.02

_GRAMMAR = r"""
?start: disjunction
?disjunction: conjunction (OR conjunction)*
?conjunction: negation (AND negation)*
?negation: NOT negation -> negated
    | predicate
?predicate: sum
    | sum COMPARISON sum -> comparison
    | sum NOT? BETWEEN sum AND sum -> between
    | sum NOT? IN "(" STRING ("," STRING)* ")" -> membership
    | sum NOT? LIKE STRING (ESCAPE STRING)? -> like
    | sum IS NOT? NULL -> null
?sum: product (SIGN product)*
?product: signed (FACTOR signed)*
?signed: SIGN signed -> sign
    | atom
?atom: NAME | QUOTED | EXACT | APPROXIMATE | STRING | TRUE | FALSE
    | "(" disjunction ")"

COMPARISON: "=" | "<>" | "<=" | ">=" | "<" | ">"
SIGN: "+" | "-"
FACTOR: "*" | "/"
APPROXIMATE.2: /(\d+\.\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?|\d+[eE][+-]?\d+[fFdD]?|\d+[fFdD]/
EXACT: /0[xX][0-9a-fA-F]+[lL]?|\d+[lL]?/
STRING: /'(''|[^'])*'/
QUOTED: /"(""|[^"])+"/
NAME: /[^\W\d][\w$.]*|\$[\w$.]*/
%declare AND OR NOT BETWEEN IN LIKE ESCAPE IS NULL TRUE FALSE
%ignore /[ \t\r\n\f]+/
"""
KEYWORDS = frozenset(("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"))
_TERMINALS = {
    "COMPARISON": "a comparison", "SIGN": "+ or -", "FACTOR": "* or /", "APPROXIMATE": "a number",
    "EXACT": "a number", "STRING": "a string", "QUOTED": "a name", "NAME": "a name", "LPAR": "(", "RPAR": ")",
    "COMMA": ",", "$END": "the end",
}  # fmt: skip


class Kind(Enum):
    """The type that an expression can have, known from its text alone."""

    ANY = "a property"
    NUMBER = "a number"
    STRING = "a string"
    TRUTH = "a condition"


class _Compiled(NamedTuple):
    kind: Kind
    evaluate: Evaluate


class Wanted(NamedTuple):
    """A condition on a field that has to hold for a selector to match: it equals a string. ``name``: of the field."""

    name: str
    read: Evaluate
    value: str

    def found(self, message: bytes) -> object:
        """Return the value of the field in a stored message; None: it has none, or reading it is too much work."""
        try:
            return self.read(View(message, 0))
        except TooMuchWork:
            return None


class Selector:
    """A compiled selector. ``octets``: an upper bound of its memory, from measurements; ``wanted``: a condition that
    has to hold, or None. An invalid ``text`` raises a refusal (``amqp:invalid-field``) with line and column.
    """

    __slots__ = ("__weakref__", "_condition", "octets", "text", "wanted")

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > LONGEST:
            raise Refusal(Condition.INVALID_FIELD, f"a selector has at most {LONGEST} characters, not {len(text)}")
        node, tokens = _parse(text)
        self._condition = _condition(node, 0)
        self.octets = _octets(text, tokens)
        self.wanted = _wanted(node)

    def matches(self, message: bytes, attempts: int) -> bool:
        """Whether the selector is true for a stored message; ``attempts``: deliveries so far that a client may have
        seen.
        """
        try:
            return self._condition(View(message, attempts)) is True
        except TooMuchWork:
            return False


def _wanted(node: _Node) -> Wanted | None:
    """Return the first condition of a conjunction by which a name equals a string; None: there is none."""
    terms = node.children[::2] if isinstance(node, Tree) and node.data == "conjunction" else [node]
    for term in terms:
        if isinstance(term, Tree) and term.data == "comparison" and term.children[1] == "=":
            left, _, right = term.children
            if isinstance(left, Token) and isinstance(right, Token):
                name, value = (right, left) if left.type == "STRING" else (left, right)
                # nearly all messages have one of two values in it
                if name.type in ("NAME", "QUOTED") and value.type == "STRING" and name != "JMSDeliveryMode":
                    return Wanted(str(name), _compile(name, 0).evaluate, _unquoted(value))
    return None


def _octets(text: str, tokens: int) -> int:
    """Return an upper bound of the memory of a compiled selector, from measurements: of its tokens, its strings, the
    parts of its patterns, and the expressions of parts with a ``_``.
    """
    parts = text.count("%")
    return 1000 + 420 * tokens + 8 * len(text) + 80 * parts + 600 * min(text.count("_"), parts + tokens)


class TurnShare:
    """Limits the time of selectors in one turn of the reactor; remaining work waits for the next turn."""

    __slots__ = ("end",)

    def __init__(self) -> None:
        #: the monotonic time at which the share ends; 0: no selector was applied in this turn
        self.end = 0.0

    def renew(self) -> None:
        self.end = 0.0

    @property
    def used_up(self) -> bool:
        now = time.monotonic()
        if not self.end:
            self.end = now + _TURN_SECONDS
        return now >= self.end


# -- text


@cache
def _parser() -> Lark:
    def keyword(token: Token) -> Token:
        upper = token.upper()
        return Token.new_borrow_pos(upper, token, token) if upper in KEYWORDS else token

    return Lark(_GRAMMAR, parser="lalr", lexer="basic", propagate_positions=True, lexer_callbacks={"NAME": keyword})


def _parse(text: str) -> tuple[_Node, int]:
    """Parse a text; return the tree, and the number of its tokens."""
    parsing = _parser().parse_interactive(text)
    last: Token | None = None
    number = -1
    try:
        for number, last in enumerate(parsing.iter_parse()):
            if number == MOST_TOKENS:
                what = f"a selector has at most {MOST_TOKENS} names, values and signs; this one goes on"
                raise _bad(last.line or 1, last.column or 1, what)
        return cast(_Node, parsing.feed_eof(last)), number + 1  # type: ignore[no-untyped-call]
    except UnexpectedCharacters as error:
        character = error.char
        what = f"the text after {character} has no end" if character in "'\"" else f"{character!r} begins nothing known"
        raise _bad(error.line, error.column, what) from None
    except UnexpectedEOF as error:
        raise _bad(error.line, error.column, "it ends too early") from None
    except UnexpectedToken as error:
        wanted = sorted({_TERMINALS.get(name, name) for name in error.expected})
        expected = f", expected {', '.join(wanted[:-1])}{' or ' if wanted[1:] else ''}{wanted[-1]}"
        if error.token.type == "$END":
            line = text.count("\n") + 1
            raise _bad(line, len(text) - text.rfind("\n"), f"it ends too early{expected}") from None
        raise _bad(error.line, error.column, f"found {_shown(error.token)}{expected}") from None


def _shown(token: str) -> str:
    return printable(token, 40)


def _bad(line: int, column: int, what: str) -> Refusal:
    return Refusal(Condition.INVALID_FIELD, f"the selector cannot be used, line {line}, column {column}: {what}")


_Node = Tree[Token] | Token


def _bad_at(node: _Node, what: str) -> Refusal:
    if isinstance(node, Token):
        return _bad(node.line or 1, node.column or 1, what)
    return _bad(node.meta.line, node.meta.column, what)


# -- compilation: each node of the tree becomes a closure over the closures of its children


def _compile(node: _Node, deep: int) -> _Compiled:
    if isinstance(node, Token):
        return _LEAVES[node.type](node)
    if deep > DEEPEST:
        raise _bad_at(node, f"conditions nested deeper than {DEEPEST}")
    return _NODES[node.data](node, deep + 1)


def _condition(node: _Node, deep: int) -> Evaluate:
    """Compile a condition, the whole or an operand of AND, OR and NOT: true, false or unknown."""
    kind, evaluate = _compile(node, deep)
    if kind is Kind.TRUTH:
        return evaluate
    if kind is not Kind.ANY:
        raise _bad_at(node, f"found {kind.value} where a condition was expected")

    def truth(view: View) -> object:
        found = evaluate(view)
        return found if type(found) is bool else None

    return truth


def _numeric(node: _Node, deep: int) -> Evaluate:
    kind, evaluate = _compile(node, deep)
    if kind not in (Kind.NUMBER, Kind.ANY):
        raise _bad_at(node, f"found {kind.value} where a number was expected")
    return evaluate


def _constant(kind: Kind, value: object) -> _Compiled:
    return _Compiled(kind, lambda view: value)


def _name(token: Token) -> _Compiled:
    name = str(token)
    found = JMS_FIELDS.get(name, AMQP_FIELDS.get(name))
    if found is None:
        if name in NOT_SELECTABLE:
            raise _bad_at(token, f"{name} cannot be selected by; of the JMS headers {', '.join(JMS_FIELDS)} can")
        if name.startswith("amqp."):
            raise _bad_at(token, f"{_shown(name)} is no field; expected one of {', '.join(AMQP_FIELDS)}")
        found = _application(name)
    return _Compiled(Kind.ANY, found)


def _application(name: str) -> Evaluate:
    return lambda view: view.application(name)


def _exact(token: Token) -> _Compiled:
    text = token.rstrip("lL")
    octal = text[0] == "0" and text.isdigit()
    try:
        value = int(text, 8 if octal else 0)
    except ValueError:
        raise _bad_at(token, f"{_shown(token)} begins with 0 and is no octal number") from None
    if value > 1 << 63:
        raise _bad_at(token, f"{_shown(token)} does not fit 64 bits")
    return _constant(Kind.NUMBER, value)


def _unquoted(token: Token) -> str:
    quote = token[0]
    return token[1:-1].replace(quote * 2, quote)


def _any_of(node: Tree[Token], deep: int) -> _Compiled:
    terms = [_condition(term, deep) for term in node.children[::2]]

    def either(view: View) -> object:
        result: object = False
        for term in terms:
            found = term(view)
            if found is True:
                return True
            if found is None:
                result = None
        return result

    return _Compiled(Kind.TRUTH, either)


def _all_of(node: Tree[Token], deep: int) -> _Compiled:
    terms = [_condition(term, deep) for term in node.children[::2]]

    def every(view: View) -> object:
        result: object = True
        for term in terms:
            found = term(view)
            if found is False:
                return False
            if found is None:
                result = None
        return result

    return _Compiled(Kind.TRUTH, every)


def _negated(node: Tree[Token], deep: int) -> _Compiled:
    return _Compiled(Kind.TRUTH, _not(_condition(node.children[1], deep)))


def _not(condition: Evaluate) -> Evaluate:
    def negated(view: View) -> object:
        found = condition(view)
        return None if found is None else not found

    return negated


_ORDER: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def _is_number(value: object) -> bool:
    kind = type(value)
    return kind is int or kind is float


def _alike(left: object, right: object) -> bool:
    """Whether two values that are not null may be compared (section 3.8.1.2)."""
    if isinstance(left, str):
        return isinstance(right, str)
    if type(left) is bool:
        return type(right) is bool
    return _is_number(left) and _is_number(right)


def _comparison(node: Tree[Token], deep: int) -> _Compiled:
    left_node, sign, right_node = node.children
    if sign in _ORDER:
        return _Compiled(Kind.TRUTH, _ordered(_ORDER[str(sign)], _sizable(left_node, deep), _sizable(right_node, deep)))
    left, right = _compile(left_node, deep).evaluate, _compile(right_node, deep).evaluate
    same = sign == "="

    def equal(view: View) -> object:
        one, other = left(view), right(view)
        if one is None or other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            view.spend(min(len(one), len(other)))
        return _alike(one, other) and (one == other) is same

    return _Compiled(Kind.TRUTH, equal)


def _sizable(node: _Node, deep: int) -> Evaluate:
    kind, evaluate = _compile(node, deep)
    if kind not in (Kind.NUMBER, Kind.ANY):
        raise _bad_at(node, f"found {kind.value} where a number was expected: others compare by = and <> only")
    return evaluate


def _ordered(holds: Callable[[float, float], bool], left: Evaluate, right: Evaluate) -> Evaluate:
    def ordered(view: View) -> object:
        one, other = left(view), right(view)
        if one is None or other is None:
            return None
        return _is_number(one) and _is_number(other) and holds(one, other)  # type: ignore[arg-type]

    return ordered


def _has(node: Tree[Token], terminal: str) -> bool:
    return any(isinstance(child, Token) and child.type == terminal for child in node.children[1:])


def _between(node: Tree[Token], deep: int) -> _Compiled:
    children = node.children
    value, low, high = (_numeric(each, deep) for each in (children[0], children[-3], children[-1]))
    if _has(node, "NOT"):  # by the specification: less than the lower bound, or greater than the upper one
        below, above = _ordered(operator.lt, value, low), _ordered(operator.gt, value, high)

        def outside(view: View) -> object:
            one, other = below(view), above(view)
            return True if one is True or other is True else None if one is None or other is None else False

        return _Compiled(Kind.TRUTH, outside)
    above, below = _ordered(operator.ge, value, low), _ordered(operator.le, value, high)

    def within(view: View) -> object:
        one, other = above(view), below(view)
        return False if one is False or other is False else None if one is None or other is None else True

    return _Compiled(Kind.TRUTH, within)


def _identifier(node: _Node, what: str) -> Evaluate:
    if not isinstance(node, Token) or node.type not in ("NAME", "QUOTED"):
        raise _bad_at(node, f"{what} needs a name on its left")
    return _compile(node, 0).evaluate


def _on_strings(node: Tree[Token], evaluate: Evaluate, test: Callable[[View, str], bool]) -> _Compiled:
    negative = _has(node, "NOT")

    def tested(view: View) -> object:
        found = evaluate(view)
        if found is None:
            return None
        return (isinstance(found, str) and test(view, found)) is not negative

    return _Compiled(Kind.TRUTH, tested)


def _membership(node: Tree[Token], deep: int) -> _Compiled:
    evaluate = _identifier(node.children[0], "IN")
    strings = frozenset(
        _unquoted(child) for child in node.children[1:] if isinstance(child, Token) and child.type == "STRING"
    )
    return _on_strings(node, evaluate, lambda _, text: text in strings)


def _like(node: Tree[Token], deep: int) -> _Compiled:
    evaluate = _identifier(node.children[0], "LIKE")
    pattern, *escapes = (child for child in node.children[1:] if isinstance(child, Token) and child.type == "STRING")
    escape = ""
    if escapes:
        escape = _unquoted(escapes[0])
        if len(escape) != 1:
            raise _bad_at(escapes[0], f"ESCAPE needs one character, not {len(escape)}")
    like = Pattern(_segments(pattern, _unquoted(pattern), escape))

    def test(view: View, text: str) -> bool:
        view.spend(len(text) * like.cost)
        return like.matches(text)

    return _on_strings(node, evaluate, test)


def _segments(token: Token, pattern: str, escape: str) -> list[list[str]]:
    """Split a pattern at each ``%``; return lists of characters, with an empty one for ``_``."""
    segments: list[list[str]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if escape and character == escape:
            following = next(characters, "")
            if following not in ("%", "_", escape) or not following:
                raise _bad_at(token, f"{escape!r} stands before neither % nor _ nor itself in the pattern")
            segments[-1].append(following)
        elif character == "%":
            segments.append([])
        else:
            segments[-1].append("" if character == "_" else character)
    return segments


def _null(node: Tree[Token], deep: int) -> _Compiled:
    evaluate = _identifier(node.children[0], "IS NULL")
    negative = _has(node, "NOT")
    return _Compiled(Kind.TRUTH, lambda view: (evaluate(view) is None) is not negative)


def _arithmetic(node: Tree[Token], deep: int) -> _Compiled:
    """Compile a chain of operators of one rank, from left to right."""
    children = node.children
    first = _numeric(children[0], deep)
    signs_and_operands = zip(children[1::2], children[2::2], strict=True)
    rest = [(_OPERATORS[str(sign)], _numeric(operand, deep)) for sign, operand in signs_and_operands]

    def calculate(view: View) -> object:
        result = first(view)
        for calculated, operand in rest:
            other = operand(view)
            if not _is_number(result) or not _is_number(other):
                return None
            try:
                result = calculated(result, other)  # type: ignore[arg-type]
            except (ZeroDivisionError, OverflowError):
                return None
            if type(result) is int and result.bit_length() > _WIDEST:
                return None
        return result

    return _Compiled(Kind.NUMBER, calculate)


def _divide(left: float, right: float) -> float:
    if type(left) is int and type(right) is int:
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    return left / right


_OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divide,
}  # fmt: skip


def _sign(node: Tree[Token], deep: int) -> _Compiled:
    sign, operand_node = node.children
    operand = _numeric(operand_node, deep)
    negative = sign == "-"

    def signed(view: View) -> object:
        found = operand(view)
        if not _is_number(found):
            return None
        return -found if negative else found  # type: ignore[operator]

    return _Compiled(Kind.NUMBER, signed)


_LEAVES: dict[str, Callable[[Token], _Compiled]] = {
    "NAME": _name,
    "QUOTED": lambda token: _Compiled(Kind.ANY, _application(_unquoted(token))),
    "EXACT": _exact,
    "APPROXIMATE": lambda token: _constant(Kind.NUMBER, float(token.rstrip("fFdD"))),
    "STRING": lambda token: _constant(Kind.STRING, _unquoted(token)),
    "TRUE": lambda token: _constant(Kind.TRUTH, True),
    "FALSE": lambda token: _constant(Kind.TRUTH, False),
}
_NODES: dict[str, Callable[[Tree[Token], int], _Compiled]] = {
    "disjunction": _any_of,
    "conjunction": _all_of,
    "negated": _negated,
    "comparison": _comparison,
    "between": _between,
    "membership": _membership,
    "like": _like,
    "null": _null,
    "sum": _arithmetic,
    "product": _arithmetic,
    "sign": _sign,
}


# Selectors of links are compiled once for each text, and the memory of all together is bounded (P16, S4).

#: how many selectors are kept for later links when no link uses them
_MOST_KEPT = 128


class Selectors:
    """Keeps the selectors of one worker; links with the same text share a selector."""

    def __init__(self, memory: Account) -> None:
        self._memory = memory
        self._known: WeakValueDictionary[str, Selector] = WeakValueDictionary()
        #: the selectors used last
        self._recent: OrderedDict[str, Selector] = OrderedDict()

    def of(self, text: str) -> Selector:
        """Return the selector of a text.

        :raises Refusal: the text is not a selector, or all selectors together take too much memory.
        """
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self._read(text)
        self._recent[text] = found
        self._recent.move_to_end(text)
        if len(self._recent) > _MOST_KEPT:
            self._recent.popitem(last=False)
        return found

    def _read(self, text: str) -> Selector:
        selector = Selector(text)
        memory = self._memory
        if memory.selectors + selector.octets > memory.share:
            self._recent.clear()
        if memory.selectors + selector.octets > memory.share:
            why = "the selectors of all consumers take too much memory (limits.memory_bytes): ask for fewer or shorter"
            raise Refusal(Condition.RESOURCE_LIMIT_EXCEEDED, why)
        memory.selectors += selector.octets
        finalize(selector, self._gone, selector.octets).atexit = False
        return selector

    def _gone(self, octets: int) -> None:
        self._memory.selectors -= octets
