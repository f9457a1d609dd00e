"""Printable makes text from outside safe for a log line, an error or a terminal (S7)."""

from __future__ import annotations


def printable(text: str, longest: int | None = None) -> str:
    """Return ``text`` with control characters escaped as in Python, cut after ``longest`` characters."""
    cut = text if longest is None or len(text) <= longest else f"{text[:longest]}..."
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in cut)
