"""The rules of ``docs/how-to/alerts.yml`` (H19): each fires when it must and not before, over metrics that a service
tells, and names a symptom that the page has.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from store import runs
from store.database import connected
from store.embedded.running import running_url
from tests.fix_clients import need
from tests.fix_service import PATIENCE, REPOSITORY, running_service
from tests.fix_wire import BeginAt
from tests.tables import all_cases
from tests.wire.queues import post

pytestmark = pytest.mark.rule("H19")

_RULES = REPOSITORY / "docs" / "how-to" / "alerts.yml"
_TEXT = _RULES.read_text("utf-8")
_NAMES = re.findall(r"- alert: (\w+)", _TEXT)


class Case(NamedTuple):
    """A series of values, one a minute, with which an alert fires from a minute on, and not at the one before."""

    alert: str
    series: dict[str, str]
    minute: int


_QUEUE = '{address="orders", group="", state="%s", instance="a"}'
_CASES = [
    Case("CoordinatorAway", {"coordinator_build_info": "1x5 _x20"}, 13),  # a value counts for five minutes
    Case("CoordinatorStoreAway", {"coordinator_store_up": "1x5 0x10"}, 7),
    Case("CoordinatorNoInstance", {'coordinator_instances{state="alive"}': "1x5 0x10"}, 7),
    Case("CoordinatorCommitsWait", {'coordinator_commit_waits_seconds{worker="1"}': "0x5 11x10"}, 6),
    Case(
        "CoordinatorCommitsSlow",
        {
            'coordinator_commit_seconds_bucket{le="0.25"}': "0x40",
            'coordinator_commit_seconds_bucket{le="1.0"}': "0+60x40",
            'coordinator_commit_seconds_bucket{le="+Inf"}': "0+60x40",
        },
        11,
    ),
    Case("CoordinatorDiskLow", {"coordinator_disk_low": "0x5 1x10"}, 6),
    Case("CoordinatorDaysRunOut", {"coordinator_partitions_ahead": "14x5 6x100"}, 66),
    Case("CoordinatorQueueGrows", {f"coordinator_entries{_QUEUE % 'ready'}": "1000+10x100"}, 31),
    Case(
        "CoordinatorNothingTaken",
        {
            f"coordinator_entries{_QUEUE % 'ready'}": "0x5 5x100",
            f"coordinator_entries{_QUEUE % 'inflight'}": "1x5 0x100",
        },
        36,  # a consumer held one in the sixth minute
    ),
    Case("CoordinatorDeadLetters", {'coordinator_dead_letters{address="%DLQ%orders"}': "0x5 1x20"}, 11),
    Case("CoordinatorTransactionHangs", {"coordinator_undecided_oldest_seconds": "0+60x20"}, 16),
    Case("CoordinatorNoChecker", {"coordinator_undecided_checks_due": "0x5 3x20"}, 11),
    Case(
        "CoordinatorTransactionsLost",
        {'coordinator_decisions_total{decision="rollback", reason="timeout"}': "0x20 20x20"},
        21,
    ),
    Case("CoordinatorFindings", {'coordinator_findings{kind="lost-message", severity="error"}': "0x5 2x20"}, 6),
]


@pytest.fixture(scope="session")
def promtool(prometheus_program: str) -> str:
    program = str(Path(prometheus_program).with_name("promtool"))
    need(program, "--version", (2, 42), "Debian: apt-get install prometheus")
    return program


def _unit(case: Case) -> dict[str, object]:
    firing = f'count(ALERTS{{alertname="{case.alert}", alertstate="firing"}})'
    tests = [
        {"expr": firing, "eval_time": f"{minute}m", "exp_samples": samples}
        for minute, samples in ((case.minute - 1, []), (case.minute, [{"labels": "{}", "value": 1}]))
    ]
    series = [{"series": name, "values": values} for name, values in case.series.items()]
    return {"interval": "1m", "input_series": series, "promql_expr_test": tests}


@all_cases("case", [pytest.param(case, id=case.alert) for case in _CASES])
def test_it_fires_from_its_moment_on(promtool: str, tmp_path: Path, case: Case) -> None:
    units = tmp_path / "units.json"  # JSON is YAML
    units.write_text(json.dumps({"rule_files": [str(_RULES)], "tests": [_unit(case)]}), "utf-8")
    done = subprocess.run([promtool, "test", "rules", units], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_rule_has_a_case() -> None:
    assert [case.alert for case in _CASES] == _NAMES


def test_each_rule_names_its_symptom() -> None:
    page = (_RULES.parent / "from-symptom-to-cause.md").read_text("utf-8")
    symptoms = {title.lower().replace(" ", "-") for title in re.findall("^## (.*)$", page, re.MULTILINE)}
    named = re.findall(r"symptom: from-symptom-to-cause\.md#(\S+)", _TEXT)
    assert len(named) == len(_NAMES)
    assert set(named) - symptoms == set()


def test_each_metric_of_a_rule_is_told(begin_at: BeginAt) -> None:
    """By a service whose store has a run of a reconciliation."""
    expressions = "\n".join(re.findall(r"expr:(.*?)(?=\n        \w)", _TEXT, re.DOTALL))
    named = {
        name.removesuffix("_bucket").removesuffix("_total") for name in re.findall(r"coordinator_\w+", expressions)
    }
    assert len(named) > 10
    with running_service({"metrics.listen": "http://127.0.0.1:0"}) as service:
        post(begin_at(service), "orders", b"1")
        with connected(running_url(service.data_dir)) as connection:
            run = runs.Run(since=None, until=None, books=(), seen_at=datetime.now(UTC), version="0.1")
            runs.store(connection, run, [])
        (place,) = next(line["listen"] for line in service.log_lines() if line.get("event") == "metrics")
        deadline = time.monotonic() + PATIENCE
        while named - (told := _families(f"{place}/metrics")):
            assert time.monotonic() < deadline, named - told
            time.sleep(0.5)


def _families(place: str) -> set[str]:
    """The names of the metrics; none before the first look into the store."""
    try:
        with urllib.request.urlopen(place, timeout=PATIENCE) as answer:
            return {family.name for family in text_string_to_metric_families(answer.read().decode())}
    except HTTPError as error:
        error.close()
        return set()
