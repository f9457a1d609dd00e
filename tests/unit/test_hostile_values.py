"""Each hostile value through each form of output: its lines are those that were meant, and whole (rule S7)."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import prometheus_client.exposition as text_format
import pyarrow.parquet as pq
import pytest
import structlog
import typer
from prometheus_client.openmetrics import exposition as open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parsed_text

from coordinator.address.addresses import dead_letter_name, is_too_long
from coordinator.commands import administration
from coordinator.process import logs
from coordinator.process.metrics import registry
from coordinator.process.worker_reports import Workers
from coordinator.settings import LogSettings, SettingsInvalid, load
from spark.finding import Finding
from spark.metrics import AddressBalance, Metrics, Outcomes
from spark.report import render
from spark.results import Findings, write_findings
from store.figures import AddressFigures, Decided, Figures, GroupFigures, Undecided
from tests.fix_hostile import HOSTILE, Skeleton, harmful
from tests.fix_reports import AT, BALANCE, SHOP, a_day, a_report
from tests.tables import all_cases

pytestmark = pytest.mark.rule("S7")

every_value = all_cases("value", HOSTILE.values(), ids=HOSTILE.keys())


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


# -- logs


def _log_all(value: str, form: Literal["console", "json"]) -> list[str]:
    """The lines of four events that have the value everywhere where code could put it."""
    stream = io.StringIO()
    logs.configure(LogSettings(format=form), stream=stream, worker=3)
    log = structlog.get_logger()
    log.info(value, address=value, nested={value: [value, (value,)]}, octets=value.encode(errors="surrogatepass"))
    log.warning("x", error=ValueError(value), names={value})
    try:
        raise ValueError(value)
    except ValueError:
        log.exception("failed")
    logging.getLogger("library").error("said %s", value)
    written = stream.getvalue()
    assert written.endswith("\n")
    return written[:-1].split("\n")


@every_value
def test_a_log_in_json(value: str) -> None:
    lines = [json.loads(line) for line in _log_all(value, "json")]
    assert [line["event"] for line in lines] == [value, "x", "failed", f"said {value}"]
    assert [line["level"] for line in lines] == ["info", "warning", "error", "error"]
    assert lines[0]["address"] == value
    assert lines[2]["traceback"].endswith(f"ValueError: {value}".rstrip())
    assert all(line["worker"] == 3 for line in lines)


@every_value
@pytest.mark.parametrize("form", ["console", "json"])
def test_a_line_of_a_log_has_no_control_characters(value: str, form: Literal["console", "json"]) -> None:
    lines = _log_all(value, form)
    assert len(lines) == 4
    assert [harmful(line) for line in lines] == [set()] * 4


# -- commands


@every_value
def test_a_table_has_a_line_for_each_row(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    cells: list[Any] = [value, [value, value], {value: value}, (value,), 1]
    administration.print_table([{"name": each, "end": "|"} for each in cells], ["name", "end"])
    *lines, end = capsys.readouterr().out.split("\n")
    assert end == ""
    assert [line.rsplit("  ", 1)[-1].strip() for line in lines] == ["end", *"|" * len(cells)]
    assert [harmful(line) for line in lines] == [set()] * len(lines)


@every_value
def test_pairs_have_a_line_each(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    administration.print_pairs({"name": value, "names": [value], "all": {value: value}, "end": 1})
    *lines, end = capsys.readouterr().out.split("\n")
    assert end == ""
    assert [line.partition(":")[0] for line in lines] == ["name", "names", "all", "end"]
    assert [harmful(line) for line in lines] == [set()] * 4


@every_value
def test_json_has_the_value_and_no_control_character(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    administration.print_json([{"name": value, value: [value]}])
    out = capsys.readouterr().out
    assert json.loads(out) == [{"name": value, value: [value]}]
    lines = out.split("\n")
    assert len(lines) == 9
    assert [harmful(line) for line in lines] == [set()] * len(lines)


@every_value
def test_an_error_of_a_command_forges_no_other(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        administration.fail(f"there is none: {value}")
    told = capsys.readouterr()
    *lines, end = told.err.split("\n")
    assert (told.out, end) == ("", "")
    assert all(line.startswith("error: ") for line in lines)
    assert [harmful(line) for line in lines] == [set()] * len(lines)


@every_value
def test_what_is_wrong_with_a_setting_is_one_line(value: str) -> None:
    given = {"listen": [value], "workers": value, "log": {"level": value}, "addresses": {"patterns": [{"x": value}]}}
    with pytest.raises(SettingsInvalid) as caught:
        load(given)
    lines = str(caught.value).split("\n")
    assert len(lines) == 5
    assert [harmful(line) for line in lines] == [set()] * len(lines)
    assert max(map(len, lines)) < 450


@every_value
def test_an_address_made_of_it_is_printable(value: str) -> None:
    name = dead_letter_name(value)
    assert harmful(name) == set()
    assert not is_too_long(name)


# -- metrics


def _seen(value: str) -> Figures:
    """A look into a store where all that clients name is called ``value``, and the rest of them has no name."""
    figures = {"ready": 1, "inflight": 1, "scheduled": 1, "failed": 1, "estimated": 0}
    halves = (AddressFigures(address=value, count=1), AddressFigures(address=None, count=1))
    counts: dict[str, Any] = {
        "plain": 1,
        "checkable": 1,
        "oldest_seconds": 1.0,
        "checks": 1,
        "waiting": 1,
        "retired": 1,
    }
    decided = Decided()
    decided.counts[("commit", "discharged")] = 7
    return Figures(
        decided=decided,
        entries=(
            GroupFigures(address=value, group=value, **figures),
            GroupFigures(address=None, group=None, **figures),
        ),
        dead_letters=halves,
        undecided=Undecided(halves=halves, **counts),
    )


@every_value
def test_metrics_have_it_in_labels_alone(value: str) -> None:
    value = value.encode(errors="replace").decode()  # PostgreSQL has no lone surrogates
    expected = _samples(text_format.generate_latest(registry(_seen("orders"), Workers())).decode(), "text")
    for encode, form in ((text_format.generate_latest, "text"), (open_metrics.generate_latest, "open")):
        told = encode(registry(_seen(value), Workers())).decode()
        assert [harmful(line) for line in told.split("\n")] == [set()] * (told.count("\n") + 1)
        found = _samples(told, form)
        assert [name for name, _ in found] == [name for name, _ in expected] or form == "open"
        labels = {label for _, labels in found for label in labels.items()}
        names = {own for name, own in labels if name == "address"}
        assert len(names) == 2
        assert max(map(len, names)) < 1500
        assert all(
            name in ("address", "group", "state", "kind", "decision", "reason", "version", "le") for name, _ in labels
        )


def _samples(told: str, form: str) -> list[tuple[str, dict[str, str]]]:
    families = parsed_text(told) if form == "text" else parsed_open_metrics(told)  # type: ignore[no-untyped-call]
    return [(sample.name, sample.labels) for family in families for sample in family.samples]


# -- the report


def _finding(value: str | None, kind: str = "lost-message") -> Finding:
    return Finding(
        kind=kind,
        severity="error",
        txn_id=value,
        half_id=1,
        address=value,
        consumer_group=value,
        key=value,
        seen_at=AT,
        detail=value or "",
        suggested_repair=value or "",
    )


def _page(values: list[str]) -> Skeleton:
    found = Findings()
    numbers: Metrics = a_day(2)
    for value in values:
        for kind in ("lost-message", "lost-delivery"):
            found.add(_finding(value, kind))
        numbers.outcomes.append(
            Outcomes(at=AT - timedelta(hours=1), address=value, committed=1, rolled_back=0, undecided=0)
        )
        numbers.balances.append(AddressBalance(address=value, counts=BALANCE))
        numbers.dead_letters.append((value, value, value, 1))
    return Skeleton(render(a_report(found, numbers, *(replace(SHOP, name=value) for value in values))))


def test_a_report_gets_no_element_and_no_attribute_from_them() -> None:
    """Three on a page, which its charts have room for, beside a page of three ordinary values."""
    plain = _page(["orders", "invoices", "prices"])
    for at in range(0, len(HOSTILE), 3):
        page = _page(list(HOSTILE.values())[at : at + 3])
        assert page.elements == plain.elements, at
        assert page.attributes == plain.attributes, at
        written = "".join(page.texts).replace("\n", "")
        assert harmful(written) <= harmful("".join(plain.texts).replace("\n", "")), at


@every_value
def test_a_table_for_spreadsheets_has_no_formula(value: str, tmp_path: Path) -> None:
    value = value.encode(errors="replace").decode()  # PostgreSQL and Parquet have no lone surrogates
    write_findings([_finding(value)], tmp_path, lambda _: None)
    text = (tmp_path / "findings.csv").read_text("utf-8")
    assert len(text.splitlines()) == 2
    (row,) = csv.DictReader(io.StringIO(text))
    assert len(row) == 11
    for name, cell in row.items():
        assert harmful(cell) == set(), name
        assert cell.strip() == "" or cell.strip()[0] not in "=+-@\t\r\uff1d\uff0b\uff0d\uff20", name
    assert row["seen_at"] == AT.isoformat()
    (kept,) = pq.read_table(tmp_path / "findings.parquet").to_pylist()
    assert kept["address"] == value
