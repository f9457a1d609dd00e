"""Files of books that are not what their descriptions say of them: refused, each with its row or column (R25)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from spark.books.description import BookError, Description, describe
from spark.books.loading import unreadable
from spark.books.rows import open_book

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.rule("R25")

COLUMNS = "order_id string, placed_at timestamp, status string, amount decimal(10,2), note string"
HEADER = "order_id,placed_at,status,amount,note"
LINE = "a1,2026-03-01T00:00:00Z,paid,1.50,x"
ORDER = {"order_id": "a1", "placed_at": "2026-03-01T00:00:00Z", "status": "paid", "amount": 1.5, "note": "x"}


def _book(folder: Path, kind: str, columns: str | None = COLUMNS, options: str = "") -> Description:
    (folder / "book.toml").write_text(
        f"""
name = "orders"
format = "{kind}"
{"" if columns is None else f'columns = "{columns}"'}
addresses = ["orders"]
key = "order_id"
message_key = "property:order-id"
time = "placed_at"
committed_when = "status = 'paid'"
equal = [{{ column = "amount", message = "body:$.amount" }}]
[options]
path = "rows"
{options}
""",
        encoding="utf-8",
    )
    return describe(folder / "book.toml")


def _rows(spark: SparkSession, book: Description) -> list[Row]:
    """As a run reads them, before all else."""
    opened = open_book(spark, book)
    try:
        return opened.rows.collect()
    except (PySparkException, Py4JJavaError) as error:
        raise unreadable(book, error) from None


def _lines(*rows: object) -> str:
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


def _without(name: str) -> dict[str, object]:
    return {each: value for each, value in ORDER.items() if each != name}


@pytest.mark.parametrize(
    ("kind", "columns", "options", "content"),
    [
        ("csv", COLUMNS, "", _lines(HEADER, LINE)),
        ("csv", COLUMNS, "", _lines("\ufeff" + HEADER.upper(), LINE)),
        ("csv", COLUMNS, "header = false", _lines(LINE)),
        ("json", COLUMNS, "", _lines(ORDER)),
        ("json", None, "", _lines(ORDER)),
        ("json", COLUMNS, "", _lines(_without("note"))),
        ("json", COLUMNS, "multiLine = true", json.dumps([ORDER], indent=2)),
    ],
    ids=["csv", "mark and capitals", "no header", "json", "json as it is", "field that is optional", "array"],
)
def test_a_file_that_is_as_described_is_read(
    spark: SparkSession, tmp_path: Path, kind: str, columns: str | None, options: str, content: str
) -> None:
    (tmp_path / "rows").write_text(content, encoding="utf-8")
    (row,) = _rows(spark, _book(tmp_path, kind, columns, options))
    assert (row["key"], row["problem"], row["state"], float(row["compared_0"])) == ("a1", None, "committed", 1.5)


def test_a_json_file_without_any_row_is_an_empty_book(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "rows").touch()
    assert _rows(spark, _book(tmp_path, "json")) == []


@pytest.mark.parametrize(
    ("kind", "columns", "content", "says"),
    [
        (
            "csv",
            COLUMNS,
            _lines("order_id,placed_at,note,amount,status", "a1,2026-03-01T00:00:00Z,x,1.50,paid"),
            "columns: they are order_id, placed_at, status, amount, note; the header of the file is order_id,"
            " placed_at, note, amount, status ",
        ),
        ("csv", COLUMNS, _lines(LINE, LINE), "the header of the file is a1, 2026-.* needs options.header = false"),
        ("csv", COLUMNS, "", "the header of the file is not there"),
        ("csv", COLUMNS, _lines(HEADER, LINE, "a2,2026-03-01T00:00:00Z"), "row 2: 'a2,2026-.*' has not the 5 columns"),
        ("csv", None, _lines(HEADER, LINE, LINE + ",y,z"), "row 2: 'a1,.*y,z' has not the 5 columns"),
        ("json", COLUMNS, _lines(ORDER, ORDER | {"amount": "lots"}), "row 2, column 'amount': 'lots' is no decimal"),
        ("json", COLUMNS, _lines(ORDER, ORDER | {"placed_at": "x"}), "row 2, column 'placed_at': 'x' is no timestamp"),
        ("json", COLUMNS, _lines(ORDER, ORDER, '{"order_id": "a'), 'row 3: \'{"order_id": "a\' is no JSON object'),
        ("json", None, _lines(ORDER, ORDER, '{"order_id": "a'), 'row 3: \'{"order_id": "a\' is no JSON object'),
        ("json", COLUMNS, json.dumps([ORDER], indent=2), r"row 1: '\[' is no JSON object; an array .*multiLine = true"),
        ("json", COLUMNS, _lines(_without("status")), "committed_when: .*`status` cannot be resolved"),
        ("json", COLUMNS, _lines(_without("order_id")), "key: there is no column 'order_id'; there are placed_at"),
        ("json", COLUMNS, _lines(_without("amount")), r"equal\[0\].column: there is no column 'amount'"),
    ],
)
def test_a_file_that_is_otherwise_is_refused(
    spark: SparkSession, tmp_path: Path, kind: str, columns: str | None, content: str, says: str
) -> None:
    """Spark would take a cell that it cannot read, and a column that is not there, for null, and find that nothing was
    committed; of two columns in the other order each would be the other."""
    (tmp_path / "rows").write_text(content, encoding="utf-8")
    with pytest.raises(BookError, match=f"^book orders: .*{says}") as refused:
        _rows(spark, _book(tmp_path, kind, columns))
    assert "\n" not in str(refused.value)


def test_each_file_of_a_folder_has_its_header(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "1.csv").write_text(_lines(HEADER, *[LINE] * 100), encoding="utf-8")
    (tmp_path / "rows" / "2.csv").write_text(
        _lines("order_id,placed_at,note,amount,status", "a2,2026-03-01T00:00:00Z,x,1.50,paid"), encoding="utf-8"
    )
    with pytest.raises(BookError, match=r"book orders: cannot be read: .*2\.csv.*: CSV header does not conform"):
        _rows(spark, _book(tmp_path, "csv"))


def test_a_column_that_no_parquet_file_has_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    there = "order_id string, placed_at timestamp, amount decimal(10,2)"
    spark.createDataFrame([], there).write.parquet(str(tmp_path / "rows"))
    with pytest.raises(BookError, match=r"book orders: committed_when: .*`status` cannot be resolved"):
        _rows(spark, _book(tmp_path, "parquet"))
