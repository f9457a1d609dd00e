"""JMS message selectors (rule P16; Jakarta Messaging 3.1, section 3.8): parsed once, evaluated against stored messages.

A selector is a condition in a subset of SQL-92. It holds where it is true: false and unknown are the same to who asks,
but not to ``NOT``. The rules where the specification leaves room, or people expect otherwise:

* Values that are not alike compare as false, with ``<>`` too; only numbers have an order. A literal that can never be
  what its operator needs is an error of the selector.
* Arithmetic on what is no number is unknown, and so is a division by zero. Exact numbers divide as in Java: ``7 / 2``
  is 3. They do not overflow.
* A condition that is neither true nor false (a property that is a string, say) is unknown.
* Names are those of the JMS mapping: ``JMSMessageID``… as Qpid JMS shows them, application properties as they are.
  Beside them ``amqp.message_id``, ``amqp.subject``… name the fields of header and properties as AMQP has them, and a
  name in double quotes is an application property whatever its characters.

The text and its nesting are bounded, ``LIKE`` takes time in proportion to text times pattern at most.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import NamedTuple
from uuid import UUID

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedToken

from coordinator.encoding import DecodeError, pairs, scalar, skip
from coordinator.errors import Condition, Refusal
from coordinator.message import APPLICATION_PROPERTIES, HEADER, PROPERTIES, fields_of, sections

#: characters of a selector
LONGEST = 16_384
#: levels of conditions within conditions
DEEPEST = 100

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
_KEYWORDS = frozenset(("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"))
_TERMINALS = {
    "COMPARISON": "a comparison", "SIGN": "+ or -", "FACTOR": "* or /", "APPROXIMATE": "a number",
    "EXACT": "a number", "STRING": "a string", "QUOTED": "a name", "NAME": "a name", "LPAR": "(", "RPAR": ")",
    "COMMA": ",", "$END": "the end",
}  # fmt: skip


class Kind(Enum):
    """What an expression can be, before any message is seen."""

    ANY = "a property"
    NUMBER = "a number"
    STRING = "a string"
    TRUTH = "a condition"


Evaluate = Callable[["View"], object]


class _Compiled(NamedTuple):
    kind: Kind
    evaluate: Evaluate


class Selector:
    """``text`` compiled. Refusal (``amqp:invalid-field``) with line and column where it is none."""

    __slots__ = ("_condition", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > LONGEST:
            raise Refusal(Condition.INVALID_FIELD, f"a selector has at most {LONGEST} characters, not {len(text)}")
        self._condition = _condition(_parse(text), 0)

    def matches(self, message: bytes, attempts: int) -> bool:
        """Whether it is true for a stored message; ``attempts``: failed deliveries so far."""
        return self._condition(View(message, attempts)) is True


# -- messages


class View:
    """A message as selectors see it; its sections are decoded when first asked for."""

    __slots__ = ("_application", "_header", "_message", "_properties", "_properties_at", "attempts")

    def __init__(self, message: bytes, attempts: int) -> None:
        self._message = message
        self.attempts = attempts
        self._header: list[object] | None = None
        self._properties: list[object] = []
        self._properties_at = -1
        #: encoded keys and values
        self._application: dict[object, bytes] = {}

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
            pass  # what cannot be read is not there
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
        try:
            return scalar(pair, skip(pair, 0))[0]
        except DecodeError:
            return None  # what cannot be read is not there, nor what a property cannot be (part 3, section 3.2.5)

    def is_uuid(self, index: int) -> bool:
        """Whether the property, octets once decoded, is a uuid."""
        at = self._properties_at
        at += 3 if self._message[at] == 0xC0 else 9
        for _ in range(index):
            at = skip(self._message, at)
        return self._message[at] == 0x98


_HEADER_FIELDS = ("durable", "priority", "ttl", "first_acquirer", "delivery_count")
_PROPERTY_FIELDS = (
    "message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type", "content_encoding",
    "absolute_expiry_time", "creation_time", "group_id", "group_sequence", "reply_to_group_id",
)  # fmt: skip
_MESSAGE_ID, _USER_ID, _SUBJECT, _CORRELATION_ID = 0, 1, 3, 5
_CREATION_TIME, _GROUP_ID, _GROUP_SEQUENCE = 9, 10, 11
_DEFAULT_PRIORITY = 4
#: what Qpid JMS writes before ids that are strings of its own, so that they cannot be taken for others
_ESCAPED_IDS = ("ID:AMQP_BINARY:", "ID:AMQP_UUID:", "ID:AMQP_ULONG:", "ID:AMQP_STRING:", "ID:AMQP_NO_PREFIX:")


def _id(view: View, index: int) -> str | None:
    """A message-id or correlation-id that is no string, as Qpid JMS shows it; None where there is none."""
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


_JMS_FIELDS: dict[str, Evaluate] = {
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
_NOT_SELECTABLE = frozenset(("JMSDestination", "JMSReplyTo", "JMSExpiration", "JMSRedelivered", "JMSDeliveryTime"))


def _field(index: int, read: Callable[[View, int], object]) -> Evaluate:
    return lambda view: read(view, index)


_AMQP_FIELDS: dict[str, Evaluate] = {
    **{f"amqp.{name}": _field(index, View.header) for index, name in enumerate(_HEADER_FIELDS)},
    **{f"amqp.{name}": _field(index, View.property) for index, name in enumerate(_PROPERTY_FIELDS)},
}


# -- text


@cache
def _parser() -> Lark:
    def keyword(token: Token) -> Token:
        upper = token.upper()
        return Token.new_borrow_pos(upper, token, token) if upper in _KEYWORDS else token

    return Lark(_GRAMMAR, parser="lalr", lexer="basic", propagate_positions=True, lexer_callbacks={"NAME": keyword})


def _parse(text: str) -> _Node:
    try:
        return _parser().parse(text)
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
    return token if len(token) <= 40 else token[:37] + "..."


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
    """The operand of AND, OR and NOT, and the whole: true, false or unknown."""
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
    found = _JMS_FIELDS.get(name, _AMQP_FIELDS.get(name))
    if found is None:
        if name in _NOT_SELECTABLE:
            raise _bad_at(token, f"{name} cannot be selected by; of the JMS headers {', '.join(_JMS_FIELDS)} can")
        if name.startswith("amqp."):
            raise _bad_at(token, f"{_shown(name)} is no field; expected one of {', '.join(_AMQP_FIELDS)}")
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
    if _has(node, "NOT"):  # as the specification puts it: less than the one, or greater than the other
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


def _on_strings(node: Tree[Token], evaluate: Evaluate, test: Callable[[str], bool]) -> _Compiled:
    negative = _has(node, "NOT")

    def tested(view: View) -> object:
        found = evaluate(view)
        if found is None:
            return None
        return (isinstance(found, str) and test(found)) is not negative

    return _Compiled(Kind.TRUTH, tested)


def _membership(node: Tree[Token], deep: int) -> _Compiled:
    evaluate = _identifier(node.children[0], "IN")
    strings = frozenset(
        _unquoted(child) for child in node.children[1:] if isinstance(child, Token) and child.type == "STRING"
    )
    return _on_strings(node, evaluate, strings.__contains__)


def _like(node: Tree[Token], deep: int) -> _Compiled:
    evaluate = _identifier(node.children[0], "LIKE")
    pattern, *escapes = (child for child in node.children[1:] if isinstance(child, Token) and child.type == "STRING")
    escape = ""
    if escapes:
        escape = _unquoted(escapes[0])
        if len(escape) != 1:
            raise _bad_at(escapes[0], f"ESCAPE needs one character, not {len(escape)}")
    expression = _pattern(pattern, _unquoted(pattern), escape)
    return _on_strings(node, evaluate, lambda text: expression.fullmatch(text) is not None)


def _pattern(token: Token, pattern: str, escape: str) -> re.Pattern[str]:
    """``%`` any characters, ``_`` one. What stands between two ``%`` is found at its first place, and not looked for
    again (atomic groups), so that nothing multiplies.
    """
    pieces = [""]
    characters = iter(pattern)
    for character in characters:
        if escape and character == escape:
            following = next(characters, "")
            if following not in ("%", "_", escape) or not following:
                raise _bad_at(token, f"{escape!r} stands before neither % nor _ nor itself in the pattern")
            pieces[-1] += re.escape(following)
        elif character == "%":
            if pieces[-1] or len(pieces) == 1:
                pieces.append("")
        else:
            pieces[-1] += "." if character == "_" else re.escape(character)
    first, *others = pieces
    if not others:
        return re.compile(first, re.DOTALL)
    *middle, last = others
    return re.compile(first + "".join(f"(?>.*?{piece})" for piece in middle) + ".*" + last, re.DOTALL)


def _null(node: Tree[Token], deep: int) -> _Compiled:
    evaluate = _identifier(node.children[0], "IS NULL")
    negative = _has(node, "NOT")
    return _Compiled(Kind.TRUTH, lambda view: (evaluate(view) is None) is not negative)


def _arithmetic(node: Tree[Token], deep: int) -> _Compiled:
    """A chain of operators of one rank, from left to right."""
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
