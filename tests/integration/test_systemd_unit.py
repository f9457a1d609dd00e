"""The unit of run-under-systemd.md, with the sandbox of harden.md, is one that systemd understands (rule S12)."""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"
#: The highest that `systemd-analyze security` may say, of 10: all that is left is what the service needs.
MOST_EXPOSED = 2.5


def _block(page: str) -> str:
    found = re.search(r"```ini\n(.*?)```", (HOW_TO / page).read_text("utf-8"), re.DOTALL)
    assert found is not None
    return textwrap.dedent(found[1])


@pytest.mark.rule("S12")
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not there")
def test_systemd_takes_the_unit_and_its_sandbox(tmp_path: Path) -> None:
    text = _block("run-under-systemd.md").replace("\n[Install]", f"\n{_block('harden.md')}\n[Install]")
    unit = tmp_path / "coordinator.service"
    unit.write_text(text.replace("/opt/coordinator/.venv/bin/coordinator", "/bin/true"))
    verified = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    asked = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert exposure is not None, said
    assert float(exposure[1]) <= MOST_EXPOSED
