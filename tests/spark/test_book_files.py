"""Files of books that are not what their descriptions say of them: refused, each with its row or column (R25)."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from spark.books.description import BookError, Description, describe
from spark.books.loading import unreadable
from spark.books.rows import open_book
from spark.books.written import LONGEST, moment, number, pattern_without_zone, zone_of
from tests.fix_night import by_night

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.rule("R25")

COLUMNS = "order_id string, placed_at timestamp, status string, amount decimal(10,2), note string"
#: In which there is no room for more digits than may be written.
WIDE = COLUMNS.replace("decimal(10,2)", "decimal(38,2)")
HEADER = "order_id,placed_at,status,amount,note"
AT = "2026-03-01T00:00:00Z"
LINE = f"a1,{AT},paid,1.50,x"
ORDER = {"order_id": "a1", "placed_at": "2026-03-01T00:00:00Z", "status": "paid", "amount": 1.5, "note": "x"}

BLANKS = 'ignoreLeadingWhiteSpace = "true"\nignoreTrailingWhiteSpace = "true"'


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
        by_night("csv", COLUMNS, "", _lines("\ufeff" + HEADER.upper(), LINE)),
        by_night("csv", COLUMNS, "header = false", _lines(LINE)),
        ("json", COLUMNS, "", _lines(ORDER)),
        by_night("json", None, "", _lines(ORDER)),
        by_night("json", COLUMNS, "", _lines(_without("note"))),
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
        by_night(
            "csv", COLUMNS, _lines(LINE, LINE), "the header of the file is a1, 2026-.* needs options.header = false"
        ),
        ("csv", COLUMNS, "", "the header of the file is not there"),
        by_night(
            "csv", COLUMNS, _lines(HEADER, LINE, "a2,2026-03-01T00:00:00Z"), "row 2: 'a2,2026-.*' has not the 5 columns"
        ),
        by_night("csv", None, _lines(HEADER, LINE, LINE + ",y,z"), "row 2: 'a1,.*y,z' has not the 5 columns"),
        ("json", COLUMNS, _lines(ORDER, ORDER | {"amount": "lots"}), "row 2, column 'amount': 'lots' is no decimal"),
        by_night(
            "json", COLUMNS, _lines(ORDER, ORDER | {"placed_at": "x"}), "row 2, column 'placed_at': 'x' is no timestamp"
        ),
        *(
            ("csv", COLUMNS, _lines(HEADER, LINE, LINE.replace(AT, at)), f"row 2, column 'placed_at': '{at}' is no t")
            for at in ("20261128", "202611281015", "46354", "2026", "10:15:00", "T10:15:00Z")
        ),
        ("json", COLUMNS, _lines(ORDER, ORDER, '{"order_id": "a'), 'row 3: \'{"order_id": "a\' is no JSON object'),
        ("json", None, _lines(ORDER, ORDER, '{"order_id": "a'), 'row 3: \'{"order_id": "a\' is no JSON object'),
        by_night(
            "json",
            COLUMNS,
            json.dumps([ORDER], indent=2),
            r"row 1: '\[' is no JSON object; an array .*multiLine = true",
        ),
        by_night(
            "csv",
            COLUMNS,
            _lines(HEADER, LINE, LINE.replace("1.50", "1.005")),
            "row 2, column 'amount': '1.005' is no dec",
        ),
        ("json", COLUMNS, _lines(ORDER, ORDER | {"amount": 1.005}), "row 2, column 'amount': '1.005' is no decimal"),
        by_night(
            "csv",
            COLUMNS,
            _lines(HEADER, LINE.replace("1.50", "123456789.5")),
            "row 1, column 'amount': '123456789.5' is no",
        ),
        *(
            ("csv", WIDE, _lines(HEADER, LINE.replace("1.50", written)), f"row 1, column 'amount': '{written}' is no")
            for written in ("1.005", "4e-3", "1e-100000000", f"1.{'3' * 37}4E35")
        ),
        by_night(
            "csv", WIDE, _lines(HEADER, LINE.replace("1.50", (LONGEST + 1) * "0")), "row 1, column 'amount': '0000"
        ),
        by_night(
            "csv",
            COLUMNS,
            _lines(HEADER, LINE, LINE.replace(AT, "2026-03-01 00:00:00 BST")),
            "row 2, .* no timestamp; three",
        ),
        by_night("json", COLUMNS, _lines(_without("status")), "committed_when: .*`status` cannot be resolved"),
        by_night(
            "json",
            COLUMNS,
            _lines(_without("status") | {"Status": "paid"}),
            "committed_when: .*`status` cannot be resol",
        ),
        by_night(
            "json",
            COLUMNS,
            _lines(_without("order_id") | {"Order_Id": "a1"}),
            "key: there is no column 'order_id'; there",
        ),
        by_night(
            "json", COLUMNS, _lines(_without("order_id")), "key: there is no column 'order_id'; there are placed_at"
        ),
        by_night("json", COLUMNS, _lines(_without("amount")), r"equal\[0\].column: there is no column 'amount'"),
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


@pytest.mark.rule("R23", "R25")
def test_a_number_is_written_as_its_locale_says(spark: SparkSession, tmp_path: Path) -> None:
    """And is what is written: Java would leave out what it takes for separators, wherever they are."""
    german: dict[str, str | None] = {
        "1.234,50": "1234.50",
        "1234,5": "1234.5",
        "-1,014999": "-1.014999",
        "12": "12",
        "1,2,3": None,
        "x": None,
    }
    others: dict[str, dict[str, str | None]] = {
        "de-DE": german | {"1.50": None, "1.234.5": None, "1.014": "1014"},
        "de-CH": {"1\u2019234.5": "1234.5"},
        "fr-FR": {"1\u202f234,5": "1234.5", "1.5": None},
        "en-IN": {"12,34,567.5": "1234567.5", "1,50": None},
    }
    # a number of JSON's own, too; 1.014 may be a thousand in a text
    own = {"de-DE": german | {"1.50": "1.50", "1.5e3": "1.5e3", "1.014": None}}
    for kind, locales in (("csv", others), ("json", own)):
        for locale, texts in locales.items():
            book = _book(tmp_path, kind, options=f'Locale = "{locale}"')
            frame = spark.createDataFrame([(text,) for text in texts], "text string")
            found = dict(map(tuple, frame.select("text", number(book, f.col("text"))).collect()))
            assert found == texts, (kind, locale)


@pytest.mark.rule("R23", "R25")
@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("csv", _lines(HEADER, LINE, LINE.replace("1.50", "1,014999")).replace(",", ";").replace("1;014", "1,014")),
        by_night("json", _lines(ORDER, ORDER | {"amount": "1,014999"})),
    ],
)
def test_an_amount_is_not_rounded_whatever_the_locale(
    spark: SparkSession, tmp_path: Path, kind: str, written: str
) -> None:
    (tmp_path / "rows").write_text(written.replace("1.50", "1,50"), encoding="utf-8")
    with pytest.raises(BookError, match=r"row 2, column 'amount': '1,014999' is no decimal\(10,2\)$"):
        _rows(spark, _book(tmp_path, kind, options='sep = ";"\nlocale = "de-DE"'))


@pytest.mark.parametrize("columns", [COLUMNS, by_night(None)])
def test_a_file_that_is_not_in_utf_8_is_refused_or_read_as_it_says(
    spark: SparkSession, tmp_path: Path, columns: str | None
) -> None:
    """Spark would put a mark in place of each letter it cannot read, and the keys would be others."""
    lines = _lines(HEADER, LINE, LINE.replace("a1", "M\u00fcller"))
    (tmp_path / "rows").write_bytes(lines.encode("latin-1"))
    with pytest.raises(BookError, match=r"row 2, column 'order_id': 'M.ller' is not UTF-8; options.encoding says"):
        _rows(spark, _book(tmp_path, "csv", columns))
    found = _rows(spark, _book(tmp_path, "csv", columns, 'encoding = "ISO-8859-1"'))
    assert [row["key"] for row in found] == ["a1", "M\u00fcller"]


@pytest.mark.parametrize(
    ("kind", "columns"), [("csv", COLUMNS), by_night("csv", None), ("json", COLUMNS), by_night("json", None)]
)
def test_what_is_written_is_kept(spark: SparkSession, tmp_path: Path, kind: str, columns: str | None) -> None:
    """Zeros behind the digits that there is room for, spaces, no amount; times with a zone, and without."""
    times = ["2026-03-01T00:00:00Z", "2026-03-01 01:00:00 Europe/Paris", "2026-03-01 00:00:00.000", "2026-03-01"]
    amounts = ["1.5000", "1.5", "1.50", ""]
    rows = [ORDER | {"placed_at": at, "amount": amount or None} for at, amount in zip(times, amounts, strict=True)]
    lines = [f"a1,{at},paid,{amount},x" for at, amount in zip(times, amounts, strict=True)]
    (tmp_path / "rows").write_text(_lines(*rows) if kind == "json" else _lines(HEADER, *lines), encoding="utf-8")
    found = _rows(spark, _book(tmp_path, kind, columns))
    assert [row["without_zone"] for row in found] == [False, False, True, True]
    assert len({row["at"] for row in found}) == 1
    assert [row["compared_0"] and float(row["compared_0"]) for row in found] == [1.5, 1.5, 1.5, None]


@pytest.mark.rule("R23", "R25")
@pytest.mark.parametrize(
    "options",
    [
        "",
        by_night('encoding = "UTF-8"'),
        by_night('charset = "utf8"'),
        by_night('encoding = "US-ASCII"'),
        by_night("multiLine = true"),
    ],
)
def test_each_digit_of_a_large_amount_in_json_is_kept(spark: SparkSession, tmp_path: Path, options: str) -> None:
    """Also where the file says its encoding: a double has 16 or 17 digits."""
    written = json.dumps(ORDER).replace("1.5", "12345678901234567.891")
    (tmp_path / "rows").write_text(written, encoding="utf-8")
    (row,) = _rows(spark, _book(tmp_path, "json", WIDE.replace("38,2", "38,18"), options))
    assert row["compared_0"] == Decimal("12345678901234567.891")


@pytest.mark.rule("R23", "R25")
@pytest.mark.parametrize("options", ['encoding = "ISO-8859-1"', 'encoding = "UTF-8"\ncharset = "UTF-16"'])
def test_a_json_file_in_another_encoding_has_no_amounts(spark: SparkSession, tmp_path: Path, options: str) -> None:
    """Spark would keep 15 digits of them."""
    (tmp_path / "rows").write_text(_lines(ORDER), encoding="latin-1")
    with pytest.raises(BookError, match=r"options.(encoding|charset): (ISO-8859-1|UTF-16): .* write the file in UTF-8"):
        _rows(spark, _book(tmp_path, "json", COLUMNS, options))


def test_a_time_is_in_the_zone_that_it_or_its_book_says(spark: SparkSession, tmp_path: Path) -> None:
    texts = {
        "2026-03-01 10:00:00 Asia/Dhaka": 4,
        "2026-03-01 10:00:00.5UTC": 10,
        "2026-03-01T10:00:00+02:00": 8,
        "2026-03-01 10:00:00 GMT": 10,
        "2026-03-01 10:00:00 PST8PDT": 18,
        **{f"2026-03-01 10:00:00{short}": None for short in (" BST", "CST", " IST", ".5 EST")},
    }
    zones = {"": 10, 'timeZone = "Europe/Paris"': 9, 'TimeZone = "-03:00"': 13}
    for options, hour in zones.items():
        book, wanted = _book(tmp_path, "csv", options=options), texts | {"2026-03-01 10:00:00": hour}
        frame = spark.createDataFrame([(text,) for text in wanted], "text string")
        found = frame.select("text", f.hour(moment(book, f.col("text")))).collect()
        assert dict(map(tuple, found)) == wanted
    with pytest.raises(BookError, match=r"^book orders: options.timeZone: BST: three letters are .* Europe/London$"):
        zone_of(_book(tmp_path, "csv", options='timeZone = "BST"'))


@pytest.mark.parametrize(
    ("pattern", "more", "without"),
    [
        ("dd.MM.yyyy HH:mm", "", True),
        ("yyyy-MM-dd'T'HH:mm:ss'Z'", "", True),
        ("dd.MM.yyyy HH:mm XXX", "", False),
        ("yyyy-MM-dd'T'HH:mm:ss[.SSS[XXX]]", 'timeZone = "UTC"', True),
        ("yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]", "", "of a time without its zone options.timeZone has to say which it is"),
        ("dd.MM.yyyy HH:mm z", "", "three letters are the name of several zones"),
        ("dd.MM.yyyy HH:mm zzzz", "", False),
    ],
)
def test_a_pattern_says_whether_its_times_have_a_zone(
    tmp_path: Path, pattern: str, more: str, without: bool | str
) -> None:
    book = _book(tmp_path, "csv", options=f'timestampFormat = "{pattern}"\n{more}')
    if isinstance(without, str):
        with pytest.raises(BookError, match=f"^book orders: options.timestampFormat: .*: {without}"):
            pattern_without_zone(book, pattern)
    else:
        assert pattern_without_zone(book, pattern) is without


@pytest.mark.parametrize(
    ("options", "at", "without"),
    [
        ('timestampFormat = "dd.MM.yyyy HH:mm"', "01.03.2026 00:00", True),
        ('timestampFormat = "dd.MM.yyyy HH:mm"\ntimeZone = "Europe/Paris"', "01.03.2026 01:00", False),
        ('timeZone = "Europe/Paris"', "2026-03-01 01:00:00", False),
    ],
)
def test_a_time_without_a_zone_is_in_that_of_its_book(
    spark: SparkSession, tmp_path: Path, options: str, at: str, without: bool
) -> None:
    (tmp_path / "rows").write_text(_lines(HEADER, LINE.replace(AT, at)), encoding="utf-8")
    (row,) = _rows(spark, _book(tmp_path, "csv", options=options))
    assert (row["at"].timestamp(), row["without_zone"]) == (1_772_323_200, without)


def test_a_time_may_be_a_number_of_seconds_in_json(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "rows").write_text(_lines(ORDER | {"placed_at": 1_772_323_200}), encoding="utf-8")
    (row,) = _rows(spark, _book(tmp_path, "json"))
    assert (row["at"].timestamp(), row["without_zone"]) == (1_772_323_200, False)


@pytest.mark.parametrize(
    ("kind", "without"), [by_night("timestamp", False), ("timestamp_ntz", True), by_night("date", True)]
)
def test_a_type_says_whether_it_has_a_zone(spark: SparkSession, tmp_path: Path, kind: str, without: bool) -> None:
    rows = spark.sql(f"select 'a1' order_id, cast('2026-03-01' as {kind}) placed_at, 'paid' status, 1.50 amount")
    rows.write.parquet(str(tmp_path / "rows"))
    (row,) = _rows(spark, _book(tmp_path, "parquet", None))
    assert (row["at"].timestamp(), row["without_zone"]) == (1_772_323_200, without)


@pytest.mark.parametrize(
    ("options", "written", "read"),
    [
        ("", '"with ""quote"""', 'with "quote"'),
        ("", '"x"",""y"', 'x","y'),
        by_night("", '5" pipe', '5" pipe'),
        by_night("", '"a \\ b"', "a \\ b"),
        ('escape = "\\\\"', '"with \\"quote\\""', 'with "quote"'),
        by_night('multiLine = true\nlineSep = "\\r\\n"', '"two\r\nlines"', "two\r\nlines"),
    ],
)
def test_quotes_are_read_as_they_are_written(
    spark: SparkSession, tmp_path: Path, options: str, written: str, read: str
) -> None:
    """Python's csv, spreadsheets and PostgreSQL write a quote twice (RFC 4180); others say so."""
    line = LINE.replace("a1", written)
    (tmp_path / "rows").write_bytes(f"{HEADER}\r\n{line}\r\n".encode())
    assert [row["key"] for row in _rows(spark, _book(tmp_path, "csv", options=options))] == [read]


def test_a_quote_that_is_written_otherwise_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """It would be a part of the cell, and the message of that key lost."""
    line = LINE.replace("a1", '"with \\"quote\\""')
    (tmp_path / "rows").write_text(f"{HEADER}\n{line}\n", encoding="utf-8")
    with pytest.raises(BookError, match=r"a quote in a quoted cell is not written twice; options\.escape"):
        _rows(spark, _book(tmp_path, "csv"))


def test_each_file_of_a_folder_has_its_header(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "1.csv").write_text(_lines(HEADER, *[LINE] * 100), encoding="utf-8")
    (tmp_path / "rows" / "2.csv").write_text(
        _lines("order_id,placed_at,note,amount,status", "a2,2026-03-01T00:00:00Z,x,1.50,paid"), encoding="utf-8"
    )
    with pytest.raises(BookError, match=r"book orders: cannot be read: .*2\.csv.*: CSV header does not conform"):
        _rows(spark, _book(tmp_path, "csv"))


MOMENT = datetime(2026, 3, 1)  # noqa: DTZ001
PARQUET = ORDER | {"amount": Decimal("1.50"), "placed_at": MOMENT}


def _parquet(file: Path, time: pa.DataType, **more: pa.Array) -> None:
    table = pa.Table.from_pylist([PARQUET])
    table = table.set_column(1, "placed_at", table["placed_at"].cast(time))
    for name, values in more.items():
        table = table.append_column(name, values)
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file)


@pytest.mark.parametrize("columns", [COLUMNS, by_night(None)])
@pytest.mark.parametrize("options", ["", 'timeZone = "Europe/Paris"'])
def test_each_parquet_file_says_whether_its_times_have_a_zone(
    spark: SparkSession, tmp_path: Path, columns: str | None, options: str
) -> None:
    """And each that its times are in nanoseconds, of which Spark makes none."""
    inside = pa.array([{"at": MOMENT}], pa.struct([("at", pa.timestamp("ns"))]))
    _parquet(tmp_path / "rows" / "a b.parquet", pa.timestamp("ns", "UTC"), more=inside)
    _parquet(tmp_path / "rows" / "c.parquet", pa.timestamp("ns"), more=inside)
    found = _rows(spark, _book(tmp_path, "parquet", columns, options))
    read = Counter((row["at"].timestamp() - 1_772_323_200, row["without_zone"]) for row in found)
    assert read == Counter([(0, False), (-3600, False) if options else (0, True)])
    _parquet(tmp_path / "rows" / "d.parquet", pa.timestamp("us", "UTC"))
    with pytest.raises(
        BookError, match=r"/rows/d.parquet: the column 'placed_at' is in nanoseconds in other files alone$"
    ):
        _rows(spark, _book(tmp_path, "parquet", columns, options))


def test_a_parquet_column_that_is_not_asked_for_does_not_matter(spark: SparkSession, tmp_path: Path) -> None:
    """Of whatever type it is; one that is a folder is there."""
    ids = pa.array([bytes(15) + b"\x0a"], pa.uuid())
    _parquet(tmp_path / "rows" / "state=new" / "a.parquet", pa.timestamp("us", "UTC"), id=ids)
    book = _book(tmp_path, "parquet", f"{COLUMNS}, state string")
    book = book.model_copy(update={"committed_when": "state = 'new'"})
    (row,) = _rows(spark, book)
    assert (row["key"], row["state"]) == ("a1", "committed")
    book = _book(tmp_path, "parquet", f"{COLUMNS}, id binary")
    (row,) = _rows(spark, book.model_copy(update={"key": "id", "message_key": "txn-id"}))
    assert row["key"] == "00000000-0000-0000-0000-00000000000a"
    with pytest.raises(BookError, match=r"Illegal Parquet type: .*UUID.*; columns says which of them are read$"):
        _rows(spark, _book(tmp_path, "parquet", None))


def test_a_column_that_no_parquet_file_has_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    there = "order_id string, placed_at timestamp, amount decimal(10,2)"
    spark.createDataFrame([], there).write.parquet(str(tmp_path / "rows"))
    with pytest.raises(BookError, match=r"book orders: committed_when: .*`status` cannot be resolved"):
        _rows(spark, _book(tmp_path, "parquet"))


@pytest.mark.parametrize(
    ("url", "more", "says"),
    [
        ("jdbc:postgresql://127.0.0.1:1/books", "", "org.postgresql.Driver"),
        ("jdbc:h2:./books", "", "No suitable driver"),
        ("jdbc:postgresql://127.0.0.1:1/books", 'Driver = "no.such.Driver"', "no.such.Driver"),
    ],
)
def test_a_driver_that_spark_does_not_have_is_said(
    spark: SparkSession, tmp_path: Path, url: str, more: str, says: str
) -> None:
    book = _book(tmp_path, "jdbc", columns=None, options=f'url = "{url}"\ndbtable = "orders"\n{more}')
    with pytest.raises(BookError) as failed:
        open_book(spark, book)
    what_to_do = "name the jar of the driver in PYSPARK_SUBMIT_ARGS (--jars), and its class in options.driver"
    assert str(failed.value) == f"book orders: cannot be read: {says}; {what_to_do}"


@pytest.mark.parametrize("options", ["", BLANKS])
def test_blanks_around_a_key_are_of_it_unless_the_options_say_otherwise(
    spark: SparkSession, tmp_path: Path, options: str
) -> None:
    (tmp_path / "rows").write_text(_lines(HEADER, f" {LINE}", LINE.replace("a1", "a1 ")), "utf-8")
    read = [row.key for row in _rows(spark, _book(tmp_path, "csv", options=options))]
    assert read == (["a1", "a1"] if options else [" a1", "a1 "])


@pytest.mark.parametrize("columns", [COLUMNS, None])
@pytest.mark.parametrize(("lacks", "has"), [("status", "state"), ("placed_at", "at"), ("amount", "sum")])
def test_a_parquet_file_that_lacks_a_column_is_refused(
    spark: SparkSession, tmp_path: Path, columns: str | None, lacks: str, has: str
) -> None:
    """Spark would take it for null there, and no run would report what was lost of its rows. A column that the
    description does not name may be lacking.
    """
    row = ORDER | {"placed_at": datetime(2026, 3, 1, tzinfo=UTC), "amount": Decimal("1.50")}
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows" / "a b.parquet")
    other = {name: value for name, value in row.items() if name != "note"}
    pq.write_table(pa.Table.from_pylist([other]), tmp_path / "rows" / "b.parquet")
    assert [each["state"] for each in _rows(spark, _book(tmp_path, "parquet", columns))] == ["committed"] * 2
    other = {has if name == lacks else name: value for name, value in row.items()}
    pq.write_table(pa.Table.from_pylist([other]), tmp_path / "rows" / "c.parquet")
    with pytest.raises(BookError, match=rf"^book orders: .*/rows/c.parquet: there is no column '{lacks}', which other"):
        _rows(spark, _book(tmp_path, "parquet", columns))
