"""The TOML file that describes a book."""

from __future__ import annotations

import re
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from spark.messages import selector

#: The ``message_key`` of a book by transactions.
TXN_ID: Final = "txn-id"

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class BookError(Exception):
    """A book that cannot be used: names the book or its file, the setting or the column, and what was expected
    (R25)."""


def _duration(value: object) -> object:
    if isinstance(value, str):
        found = re.fullmatch(r"(\d+)([smhd])", value.strip())
        if found is None:
            raise ValueError("expected a number and s, m, h or d, such as '5m'")
        return timedelta(**{_UNITS[found.group(2)]: int(found.group(1))})
    raise ValueError("expected text such as '5m'")


def _plain_text(value: object) -> object:
    """TOML's numbers and booleans as Spark's readers want their options: text."""
    if isinstance(value, dict):
        return {key: (str(item).lower() if isinstance(item, bool) else str(item)) for key, item in value.items()}
    return value


class ComparedPair(BaseModel):
    """A column of the book and a part of the message that must be equal."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    column: str = Field(min_length=1)
    message: str

    @field_validator("message")
    @classmethod
    def _readable(cls, value: str) -> str:
        selector(value)
        return value


class BookDescription(BaseModel):
    """The TOML file of a book."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[\w.-]{1,64}$")
    format: str = Field(min_length=1)
    options: Annotated[dict[str, str], BeforeValidator(_plain_text)] = Field(default_factory=dict)
    #: Spark's DDL ("order_id string, amount decimal(10,2)") where the format does not say its types, as CSV
    columns: str | None = None
    addresses: list[str] = Field(min_length=1)
    key: str
    message_key: str
    time: str
    committed_when: str
    rolled_back_when: str = "false"
    grace: Annotated[timedelta, BeforeValidator(_duration)] = timedelta(minutes=5)
    equal: list[ComparedPair] = Field(default_factory=list)

    @property
    def by_txn_id(self) -> bool:
        """Whether the key is the transaction's id, and no part of the message."""
        return self.message_key == TXN_ID

    @field_validator("message_key")
    @classmethod
    def _known_key(cls, value: str) -> str:
        if value != TXN_ID:
            try:
                selector(value)
            except ValueError as error:
                raise ValueError(f"{error}, or {TXN_ID}") from None
        return value


def describe(path: Path) -> BookDescription:
    """Read and check a book's TOML file; a relative ``path`` in its options is beside the file.

    :raises BookError: names the file and each setting that is wrong.
    """
    try:
        with path.open("rb") as file:
            given = tomllib.load(file)
    except OSError as error:
        raise BookError(f"book {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BookError(f"book {path}: not TOML: {error}") from None
    try:
        book = BookDescription.model_validate(given)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors())
        raise BookError(f"book {path}: {wrong}") from None
    where = book.options.get("path")
    if where is not None and "://" not in where:
        book.options["path"] = str((path.parent / where).resolve())
    return book
