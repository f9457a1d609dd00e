"""Text from the wire or a book, fit for a page or a table (S7)."""

from __future__ import annotations

import unicodedata
from typing import Final

#: Categories of Unicode: control, format, surrogate, ends of lines and of paragraphs.
_UNSEEN: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")


def readable(name: str | None, missing: str, longest: int = 60) -> str:
    """A name from the wire, fit for a page: control characters shown as a box, and not longer than a line."""
    if name is None:
        return missing
    if name == "":
        return "(default)"
    clean = visible(name)
    return clean if len(clean) <= longest else f"{clean[: longest - 1]}…"


def visible(text: str) -> str:
    """``text`` with a box for each control character, and for each that turns the direction of what follows, or that is
    not seen."""
    if text.isprintable():
        return text
    return "".join("\ufffd" if unicodedata.category(each) in _UNSEEN else each for each in text)
