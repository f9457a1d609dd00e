"""Names and passwords in the form in which they are compared (SASLprep, RFC 4013), with the tables of the standard
library.
"""

from __future__ import annotations

import stringprep
import unicodedata

#: Octets of UTF-8: a frame of SASL has 512 at most (part 5, section 5.3.1), and `PLAIN` sends both in one.
MOST_NAME_OCTETS = 128
MOST_PASSWORD_OCTETS = 255
#: Characters of a new password: NIST SP 800-63B, section 5.1.1.2.
FEWEST_PASSWORD_CHARACTERS = 8

_PROHIBITED = (
    stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3, stringprep.in_table_c4,
    stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7, stringprep.in_table_c8,
    stringprep.in_table_c9,
)  # fmt: skip


class NotPrepared(ValueError):
    """The text can be no name, or no password; says why, and repeats none of it."""


def prepared(text: str) -> str:
    """``text`` as SASLprep makes it: characters that look alike are one.

    :raises NotPrepared: it has a character that is not allowed, mixes directions of writing, or is empty.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(each) else each for each in text if not stringprep.in_table_b1(each)
    )
    made = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not made:
        raise NotPrepared("it is empty")
    for each in made:
        if any(within(each) for within in _PROHIBITED) or stringprep.in_table_a1(each):
            raise NotPrepared("a control character, or one that SASLprep (RFC 4013) does not allow")
    if any(map(stringprep.in_table_d1, made)):  # written from right to left (RFC 3454, section 6)
        ends = stringprep.in_table_d1(made[0]) and stringprep.in_table_d1(made[-1])
        if not ends or any(map(stringprep.in_table_d2, made)):
            raise NotPrepared("letters written from right to left beside others")
    return made


def name(text: str) -> str:
    """The name of a user. :raises NotPrepared:"""
    return _bounded(prepared(text), MOST_NAME_OCTETS)


def password(text: str) -> str:
    """:raises NotPrepared:"""
    return _bounded(prepared(text), MOST_PASSWORD_OCTETS)


def new_password(text: str) -> str:
    """One that a user is given now. :raises NotPrepared:"""
    made = password(text)
    if len(made) < FEWEST_PASSWORD_CHARACTERS:
        raise NotPrepared(f"it has {len(made)} characters, expected {FEWEST_PASSWORD_CHARACTERS} at least")
    return made


def _bounded(made: str, most: int) -> str:
    if len(made.encode()) > most:
        raise NotPrepared(f"longer than {most} octets in UTF-8")
    return made
