"""Fixtures are split by subject: each ``tests/fix_<subject>.py`` is loaded as a plugin, and there are no others."""

from __future__ import annotations

from pathlib import Path

pytest_plugins = [f"tests.{path.stem}" for path in sorted(Path(__file__).parent.glob("fix_*.py"))]
