"""Read and check the TOML file that describes a book."""

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
    """A book cannot be used; the message names the book or its file, the setting or the column, and what was expected
    (R25)."""


def _duration(value: object) -> object:
    if isinstance(value, str):
        found = re.fullmatch(r"(\d+)([smhd])", value.strip())
        if found is None:
            raise ValueError("expected a number and s, m, h or d, such as '5m'")
        return timedelta(**{_UNITS[found.group(2)]: int(found.group(1))})
    raise ValueError("expected text such as '5m'")


def _plain_text(value: object) -> object:
    """Convert TOML's numbers and booleans to text, as Spark's readers expect their options."""
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, list | dict):
                raise ValueError(f"{key}: expected text, a number or a boolean, and not {item!r}")
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


class Description(BaseModel):
    """The settings that the TOML files of all books have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[\w.-]{1,64}$")
    format: str = Field(min_length=1)
    options: Annotated[dict[str, str], BeforeValidator(_plain_text)] = Field(default_factory=dict)
    #: Spark's DDL ("order_id string, amount decimal(10,2)") for formats without types, such as CSV
    columns: str | None = None
    key: str
    message_key: str
    time: str
    grace: Annotated[timedelta, BeforeValidator(_duration)] = timedelta(minutes=5)
    equal: list[ComparedPair] = Field(default_factory=list)
    #: columns that a finding about a row shows beside its key
    show: list[str] = Field(default_factory=list, max_length=16)

    @property
    def states(self) -> dict[str, str]:
        """Return the states of a row, each with the setting that has its condition (Spark SQL); else it is open."""
        raise NotImplementedError

    def option(self, name: str) -> str | None:
        """Return an option of Spark's reader, whose name (here in lower case) may be written in any case."""
        return next((said for given, said in self.options.items() if given.lower() == name), None)

    @property
    def by_txn_id(self) -> bool:
        """Return whether the key is the transaction's id, instead of a part of the message."""
        return self.message_key == TXN_ID


class BookDescription(Description):
    """The description of a producer's book, which records what it has posted."""

    addresses: list[str] = Field(min_length=1)
    committed_when: str
    rolled_back_when: str = "false"

    @property
    def states(self) -> dict[str, str]:
        return {"committed": "committed_when", "rolled-back": "rolled_back_when"}

    @field_validator("message_key")
    @classmethod
    def _known_key(cls, value: str) -> str:
        if value != TXN_ID:
            try:
                selector(value)
            except ValueError as error:
                raise ValueError(f"{error}, or {TXN_ID}") from None
        return value


class ConsumerBookDescription(Description):
    """The description of a consumer's book, such as an inbox, which records the messages it has processed."""

    #: the group, as the source of a client names it: ``orders``, or ``prices::billing``
    group: str = Field(min_length=1)
    processed_when: str = "true"
    #: how long the book keeps its rows; None: for ever
    keeps: Annotated[timedelta | None, BeforeValidator(_duration)] = None

    @property
    def states(self) -> dict[str, str]:
        return {"processed": "processed_when"}

    @field_validator("message_key")
    @classmethod
    def _known_key(cls, value: str) -> str:
        selector(value)
        return value


def describe(path: Path) -> Description:
    """Read and check a book's TOML file; a relative ``path`` in its options is relative to the file's folder.

    :raises BookError: with the file and each setting that is wrong.
    """
    try:
        with path.open("rb") as file:
            given = tomllib.load(file)
    except OSError as error:
        raise BookError(f"book {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BookError(f"book {path}: not TOML: {error}") from None
    kind: type[Description] = ConsumerBookDescription if "group" in given else BookDescription
    try:
        book = kind.model_validate(given)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors())
        raise BookError(f"book {path}: {wrong}") from None
    where = book.options.get("path")
    if where is not None and "://" not in where:
        book.options["path"] = str((path.parent / where).resolve())
    return book
