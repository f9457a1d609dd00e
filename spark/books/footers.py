"""The columns of a book's Parquet files, each by its own footer. Spark reads one, and takes a column that another file
lacks for nulls: its rows would be neither committed nor rolled back, without a word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from spark.books.description import BookError, Description


class Stored(NamedTuple):
    """A column of a file: whether it has times, or dates, without a zone; whether it has times in nanoseconds."""

    without_zone: bool
    nanoseconds: bool


#: Of each file on this machine its columns, in small letters.
Files = Mapping[str, Mapping[str, Stored]]


def footers(data: DataFrame) -> Files:
    """Those of the files of ``data``."""
    found: dict[str, dict[str, Stored]] = {}
    for file in data.inputFiles():
        if urlsplit(file).scheme in ("", "file"):
            with suppress(OSError, pa.ArrowException):  # Spark says what is wrong with it
                schema = pq.read_metadata(_path(file)).schema
                leaves = (schema.column(place) for place in range(len(schema)))
                found[file] = {each.path.split(".")[0].lower(): _stored(each) for each in leaves}
    return found


def _path(file: str) -> str:
    return unquote(urlsplit(file).path)


def _stored(leaf: pq.ColumnSchema) -> Stored:
    if "." in leaf.path:  # inside another
        return Stored(without_zone=False, nanoseconds=False)
    kind = json.loads(leaf.logical_type.to_json())
    is_local = kind["Type"] == "Date" or kind.get("isAdjustedToUTC") is False
    return Stored(is_local, kind["Type"] == "Timestamp" and kind["timeUnit"] == "nanoseconds")


def names_in(files: Files) -> set[str]:
    """The columns of all files, and those that are folders (``day=2026-11-28``)."""
    folders = (re.findall(r"([^/=]+)=[^/]*/", _path(file)) for file in files)
    return {name.lower() for names in (*files.values(), *folders) for name in names}


def in_nanoseconds(files: Files) -> dict[str, Stored]:
    """The columns that have times in nanoseconds."""
    return {name: each for columns in files.values() for name, each in columns.items() if each.nanoseconds}


def look_at_footers(description: Description, files: Files, names: Sequence[str]) -> None:
    """Of the columns ``names`` those that the description names.

    :raises BookError: a file lacks one that another has, or has it in another unit.
    """
    there, numbers = names_in(files), in_nanoseconds(files)
    named = [name for name in names if name.lower() in there and _names(description, name)]
    for file, columns in files.items():
        which = f"book {description.name}: {_path(file)}"
        for name in named:
            column = columns.get(name.lower())
            if column is None and name.lower() not in names_in({file: {}}):
                raise BookError(
                    f"{which}: there is no column {name!r}, which other files of the book have; all need the columns"
                    " that the description names"
                )
            if column is not None and not column.nanoseconds and name.lower() in numbers:
                raise BookError(f"{which}: the column {name!r} is in nanoseconds in other files alone")


def _names(description: Description, column: str) -> bool:
    """Whether the description has it, as a column or in a condition."""
    plain = {description.key, description.time, *(pair.column for pair in description.equal)}
    conditions = (getattr(description, setting) for setting in description.states.values())
    word = re.compile(rf"(?<!\w){re.escape(column)}(?!\w)", re.IGNORECASE)
    return column.lower() in {name.lower() for name in plain} or any(map(word.search, conditions))
