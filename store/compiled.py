"""Which form runs: the compiled part, or its twins in Python (docs/explanation/architecture.md, "The compiled part").

Each module of C lies beside its twin, which does the same, only slower, and runs where the module is not there.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

#: set to 1, all runs in Python
PURE_VARIABLE = "COORDINATOR_PURE"

#: as setup.py builds them
MODULES = ("store.codec._scan", "links._frames", "links._steps", "store._packing")


def compiled(module: str) -> ModuleType | None:
    """The module, one of :data:`MODULES`; None: the twin is to be used."""
    if os.environ.get(PURE_VARIABLE) == "1":
        return None
    try:
        return import_module(module)
    except ImportError:
        return None


def what_runs() -> str:
    rules = import_module("store.ids").__file__ or ""
    also = "" if rules.endswith(".py") else ", its rules compiled as well"
    if os.environ.get(PURE_VARIABLE) == "1":
        alone = "in Python alone" if not also else "its rules compiled, all else in Python"
        return f"{alone}, as {PURE_VARIABLE} is 1"
    missing = [module for module in MODULES if compiled(module) is None]
    if missing:
        return f"not compiled: {', '.join(missing)} (.ci/bootstrap compiles it where there is a compiler){also}"
    return f"with its compiled part{also}"
