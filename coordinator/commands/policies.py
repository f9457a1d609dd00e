"""What the commands say and take of policies, of addresses and of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.commands.administration import fail

if TYPE_CHECKING:
    from collections.abc import Mapping

#: takes a policy back
INHERIT = "inherit"
MOST_ATTEMPTS = 32767
MOST_RETENTION_HOURS = 876_000


def retry_policy(text: str) -> str:
    """As it is stored; ends the command if ``text`` is none."""
    from coordinator.group.policies import RetryInvalid, parse_retry

    try:
        return parse_retry(text).text
    except RetryInvalid as error:
        fail(f"--retry: {error}", 2)


def expiry_policy(text: str, *, inherited: bool = False) -> str:
    """It, as it is stored; ends the command if ``text`` is none. ``inherited``: whether it may be taken back."""
    if text not in ("drop", "dead-letter"):
        expected = f"drop, dead-letter or {INHERIT}" if inherited else "drop or dead-letter"
        fail(f"--on-expiry: expected {expected}, not {text[:40]!r}", 2)
    return text


def said(changes: Mapping[str, object]) -> str:
    """What has changed, by column; None: inherited."""
    return ", ".join(f"{column} {INHERIT if value is None else value}" for column, value in changes.items())
