"""The columns of a book's Parquet files, each by its own footer. Spark reads one, and takes a column that another file
lacks for nulls: its rows would be neither committed nor rolled back, without a word.
"""

from __future__ import annotations

import re
from contextlib import suppress
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from spark.books.description import BookError, Description


def look_at_footers(description: Description, data: DataFrame) -> None:
    """Those of files on this machine.

    :raises BookError: a file lacks a column that the description names and another file has.
    """
    found: dict[str, set[str]] = {}
    for file in data.inputFiles():
        scheme, path = urlsplit(file).scheme, unquote(urlsplit(file).path)
        if scheme in ("", "file"):
            with suppress(OSError, pa.ArrowException):  # Spark says what is wrong with it
                found[path] = {name.lower() for name in pq.read_schema(path).names}
    there: set[str] = set().union(*found.values())
    named = [name for name in data.columns if name.lower() in there and _names(description, name)]
    for path, columns in found.items():
        lacks = [name for name in named if name.lower() not in columns]
        if lacks:
            raise BookError(
                f"book {description.name}: {path}: there is no column {lacks[0]!r}, which other files of the book have;"
                " all need the columns that the description names"
            )


def _names(description: Description, column: str) -> bool:
    """Whether the description has it, as a column or in a condition."""
    plain = {description.key, description.time, *(pair.column for pair in description.equal)}
    conditions = (getattr(description, setting) for setting in description.states.values())
    word = re.compile(rf"(?<!\w){re.escape(column)}(?!\w)", re.IGNORECASE)
    return column.lower() in {name.lower() for name in plain} or any(map(word.search, conditions))
