"""Fixtures are split by subject: each ``tests/fix_<subject>.py`` is loaded as a plugin, and there are no others."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = [f"tests.{path.stem}" for path in sorted(Path(__file__).parent.glob("fix_*.py"))]
# All at once: one may import another before pytest loads that itself.
pytest.register_assert_rewrite(*pytest_plugins)
