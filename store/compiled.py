"""Which form runs: the compiled part, or its twins in Python (docs/explanation/architecture.md, "The compiled part").
Of the rules: what mypyc has made of them, or their source.

Each module of C lies beside its twin, which does the same, only slower, and runs where the module is not there. What
mypyc makes lies beside its source, and Python takes it first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

#: set to 1, all runs in Python
PURE_VARIABLE = "COORDINATOR_PURE"

#: as setup.py builds them
MODULES = ("store.codec._scan", "links._frames", "links._steps", "store._packing")

_PACKAGES = ("coordinator", "links", "store")


class _Source:
    """Finds the modules of our packages in their source alone."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, _: ModuleType | None = None) -> ModuleSpec | None:
        if path is None or name.partition(".")[0] not in _PACKAGES:
            return None
        files = (Path(folder, f"{name.rpartition('.')[2]}.py") for folder in path)
        return next((spec_from_file_location(name, file) for file in files if file.is_file()), None)


def choose() -> None:
    """Before any module of the rules is imported: with :data:`PURE_VARIABLE` their source is."""
    if os.environ.get(PURE_VARIABLE) == "1" and _Source not in sys.meta_path:
        sys.meta_path.insert(0, _Source)


def compiled(module: str) -> ModuleType | None:
    """The module, one of :data:`MODULES`; None: the twin is to be used."""
    if os.environ.get(PURE_VARIABLE) == "1":
        return None
    try:
        return import_module(module)
    except ImportError:
        return None


def what_runs() -> str:
    if os.environ.get(PURE_VARIABLE) == "1":
        return f"in Python alone, as {PURE_VARIABLE} is 1"
    in_python = (import_module("store.ids").__file__ or "").endswith(".py")
    also = ", its rules in Python" if in_python else ", its rules compiled as well"
    missing = [module for module in MODULES if compiled(module) is None]
    if missing:
        return f"not compiled: {', '.join(missing)} (it is where there is a C compiler as this is installed){also}"
    return f"with its compiled part{also}"
