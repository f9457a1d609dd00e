"""Values by which a client, or a book, would forge a line, run a script or a formula, or move a terminal's cursor (S7);
and what no output may have of them."""

from __future__ import annotations

import unicodedata
from html.parser import HTMLParser
from typing import Final

HOSTILE: Final = {
    "newlines": 'orders\n{"event": "forged"}\r\nerror: forged\rforged',
    "other ends of lines": "orders\u2028forged\u2029forged\x85forged\x0bforged\x0cforged",
    "controls": "".join(map(chr, (*range(1, 0x20), *range(0x7F, 0xA0)))),
    "a terminal's escapes": "\x1b[2J\x1b]0;title\x07\x9b31mred\x1b[0m",
    "a link of a terminal": "\x1b]8;;https://example.org\x1b\\orders\x1b]8;;\x1b\\",
    "turned text": "orders\u202egnp.exe\u202c\u2066x\u2069\u200f\u061c\u200e",
    "not to be seen": "or\u200bders\ufeff\u00ad\u2060",
    "lone surrogates": "orders\udfff\ud800x\udc80",
    "NUL": "orders\0forged",
    "HTML": "</script></style></title><script>alert(1)</script><img src=x onerror=alert(2)><!--",
    "an attribute": "\" onload=alert(3) x='' style='position:fixed' href=\"javascript:alert(4)",
    "a template": "{{7*7}}${7*7}{% raw %}#{7*7}%s%n%(name)s{0}",
    "a formula": "=cmd|' /C calc'!A0",
    "a formula by plus": "+1+1",
    "a formula by minus": "-1+1",
    "a formula by at": '@SUM(1+1)*cmd|"x"',
    "a formula in full width": "\uff1d1+1",
    "a formula behind blanks": "\t\r =1+1",
    "SQL": "x'); drop table coordinator.op; --\\'",
    "labels of Prometheus": 'x"} 1\ncoordinator_forged{a="\\',
    "a path": "../../../../etc/passwd",
    "JSON": '","event":"forged","x":"\\',
    "CSV": 'a,"b";c\t"\r\nforged,forged',
    "very long": "long " * 20_000,
}  # fmt: skip

#: Categories of Unicode: control, format (what turns the direction, too), surrogate, ends of lines and paragraphs.
_NEVER: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")


def harmful(text: str) -> set[str]:
    """Characters that no line of an output may have."""
    return {each for each in text if unicodedata.category(each) in _NEVER}


class Skeleton(HTMLParser):
    """What a page is made of, without its texts: elements with their attributes, and the characters that are none of
    HTML's."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes.update(f"{tag} {name}" for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.elements.append("comment")
