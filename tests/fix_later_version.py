"""A version after this one, whose step changes a table with partitions: of this version there is one step alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from store import migrations

LATER = "0.2"
_STEP = f"""
from alembic import op
revision, down_revision = "{LATER}", "{migrations.REVISIONS[-1]}"
def upgrade():
    op.execute("alter table coordinator.half add column later int not null default 7")
"""


def later_constants(folder: Path, step: str = _STEP) -> dict[str, object]:
    """Constants that make a process one of the later version. ``folder``: for its steps. ``step``: the last one."""
    scripts = folder / "later"
    shutil.copytree(migrations._SCRIPTS, scripts)
    (scripts / "versions" / "0002_later.py").write_text(step, "utf-8")
    return {"store.migrations._SCRIPTS": str(scripts), "store.migrations.REVISIONS": [*migrations.REVISIONS, LATER]}


@pytest.fixture
def later_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is one of the later version."""
    for name, value in later_constants(tmp_path).items():
        monkeypatch.setattr(name, value)
