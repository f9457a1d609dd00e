"""AMQP's filter expressions as the text of a selector (OASIS AMQP Filter Expressions 1.0, draft 01; rule P16).

RabbitMQ 4 and its clients ask by these filters. One language is compiled, shared by links and bounded, that of
:mod:`coordinator.codec.selectors`: each filter becomes a text of it, and the filters of a source are joined by AND.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from uuid import UUID

from coordinator.codec.selectors import KEYWORDS, LONGEST, PROPERTY_FIELDS
from coordinator.errors import Condition, Refusal
from coordinator.printable import printable
from store.codec.encoding import decode, pairs, skip

#: fields whose values of other types than string selectors know by a text alone
_IDS = {"message_id": "JMSMessageID", "correlation_id": "JMSCorrelationID"}
_UUID = 0x98
#: sections by the names that they have in SQL (section 6.4.1)
_SECTIONS = {
    "header": "amqp.", "h": "amqp.", "properties": "amqp.", "p": "amqp.", "application_properties": "", "a": "",
}  # fmt: skip
# What is not closed is a token, too: otherwise a search from each of many brackets would read to the end.
_SQL = re.compile(
    r"'(?:''|[^'])*+(?P<string>')?"
    r'|"(?:""|[^"])*+(?P<quoted>")?'
    r"|\[(?:\[\[|\]\]|[^\[\]])*+(?P<bracketed>\])?"
    r"|!=|0[xX][0-9a-fA-F]+"
    r"|(?P<section>[A-Za-z][A-Za-z_-]{0,30})\.(?P<field>[A-Za-z]\w*)"
    r"|[A-Za-z]\w*(?P<call>\s*\()?"
)


def of_text(value: bytes) -> str:
    """Return the selector of a ``apache.org:selector-filter:string``, which is its text."""
    return _string(value, "the selector")


def of_sql(value: bytes) -> str:
    """Return the selector of an ``amqp:sql-filter`` (section 6).

    :raises Refusal: it has what no selector says: a function, a binary constant, another section.
    """
    return _SQL.sub(_of_token, _string(value, "the SQL of amqp:sql-filter"))


def of_properties(value: bytes) -> str:
    """Return the selector of an ``amqp:properties-filter`` (section 4.2.4): a map of fields of the properties."""
    return _all(value, "amqp:properties-filter", _property)


def of_application_properties(value: bytes) -> str:
    """Return the selector of an ``amqp:application-properties-filter`` (section 4.2.5)."""
    return _all(value, "amqp:application-properties-filter", _application)


#: by the name of each filter and by its code
KNOWN: dict[object, Callable[[bytes], str]] = {
    "apache.org:selector-filter:string": of_text,
    0x0000_468C_0000_0004: of_text,
    "amqp:sql-filter": of_sql,
    0x120: of_sql,
    "amqp:properties-filter": of_properties,
    0x173: of_properties,
    "amqp:application-properties-filter": of_application_properties,
    0x174: of_application_properties,
}


def _refusal(what: str) -> Refusal:
    return Refusal(Condition.INVALID_FIELD, what)


def _string(octets: bytes, what: str) -> str:
    value, _ = decode(octets)
    if type(value) is not str:
        raise _refusal(f"{what} is of type {type(value).__name__}, a string was expected")
    if len(value) > LONGEST:
        raise _refusal(f"{what} has {len(value)} characters, at most {LONGEST} were expected")
    return value


def _quoted(text: str, quote: str = "'") -> str:
    return quote + text.replace(quote, quote * 2) + quote


# -- SQL


def _of_token(token: re.Match[str]) -> str:
    text = token[0]
    if token["section"] is not None:
        prefix = _SECTIONS.get(token["section"].lower().replace("-", "_"))
        if prefix is None:
            raise _refusal(f"{printable(text, 40)} cannot be selected by: expected header, properties or a property")
        if prefix:  # a message without a priority has that of the standard, as by JMS
            return "JMSPriority" if token["field"] == "priority" else prefix + token["field"]
        return _quoted(token["field"], '"')
    if text == "!=":
        return "<>"
    if text[0] in "'\"[" and token.lastgroup is None:
        raise _refusal(f"{printable(text, 40)} has no end: expected {']' if text[0] == '[' else text[0]} behind it")
    if text[0] == '"':
        return _quoted(text[1:-1].replace('""', '"'))
    if text[0] == "[":
        return _quoted(text[1:-1].replace("[[", "[").replace("]]", "]"), '"')
    if text[0] == "0":
        raise _refusal(f"{printable(text, 40)} is a binary constant, which no property is compared with")
    if text[0] == "'" or text.rstrip("( \t\r\n\f").upper() in KEYWORDS - {"BETWEEN"}:
        return text
    if token["call"] is not None:
        raise _refusal(f"the function {printable(text[:-1].rstrip(), 40)} is not known")
    return _quoted(text, '"')


# -- maps


def _all(octets: bytes, what: str, condition: Callable[[str, int, object], str]) -> str:
    """Return the selector of a map: each of its values has to match; a null asks nothing (section 4.1.1)."""
    conditions = []
    for key, pair in pairs(octets, 0):
        if not isinstance(key, str) or not key:
            raise _refusal(f"{what} has a key of type {type(key).__name__}, the name of a property was expected")
        at = skip(pair, 0)
        value, _ = decode(pair, at)
        if value is None:
            continue
        found = condition(key, pair[at], value)
        if not found:
            raise _refusal(f"{what}: the value of {printable(key, 40)} is of a type that selects nothing there")
        conditions.append(found)
    return " AND ".join(conditions)


def _property(key: str, code: int, value: object) -> str:
    name = key.replace("-", "_")
    if name not in PROPERTY_FIELDS:
        raise _refusal(f"amqp:properties-filter: {printable(key, 40)} is no field of the properties")
    if name == "user_id":
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
        return f"JMSXUserID = {_quoted(text)}" if text else ""
    if name in _IDS and type(value) is int:
        return f"{_IDS[name]} = 'ID:AMQP_ULONG:{value}'"
    if name in _IDS and isinstance(value, bytes):
        text = f"ID:AMQP_UUID:{UUID(bytes=value)}" if code == _UUID else f"ID:AMQP_BINARY:{value.hex().upper()}"
        return f"{_IDS[name]} = '{text}'"
    return _matches(f"amqp.{name}", value)


def _application(key: str, code: int, value: object) -> str:
    return _matches(_quoted(key, '"'), value)


def _matches(name: str, value: object) -> str:
    """Return the condition that a property equals a value, or fits a string's modifier (section 4.1.1); empty: the
    value's type can be compared with none.
    """
    if isinstance(value, str):
        modifier = value[:3]
        if modifier in ("&p:", "&s:"):
            text = re.sub(r"([\\%_])", r"\\\1", value[3:])
            return f"{name} LIKE {_quoted(text + '%' if modifier == '&p:' else '%' + text)} ESCAPE '\\'"
        if value[:1] == "&" != value[1:2]:
            raise _refusal(f"{printable(value, 40)} begins with &: expected &p:, &s: or && before the text")
        return f"{name} = {_quoted(value[1:] if value[:1] == '&' else value)}"
    if type(value) is bool:
        return f"{name} = {value}"
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return f"{name} = {value}"
    return ""
