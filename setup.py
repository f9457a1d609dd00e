"""The compiled part, the rules by mypyc for .ci/build and .ci/dist, and the migrations; setup.cfg, which has all else,
has no place for them.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

_CAREFUL = ["-O2", "-fstack-protector-strong", "-D_FORTIFY_SOURCE=2", "-Wall", "-Wextra"]

_MYPYC = "RULES_BY_MYPYC" in os.environ

# Without a compiler, or when it fails, the twins in Python run: `coordinator --version` says so. A wheel has all of it.
_extensions = [
    Extension(module, [module.replace(".", "/") + ".c"], extra_compile_args=_CAREFUL, optional=not _MYPYC)
    for module in ("store.codec._scan", "links._frames", "links._steps", "store._packing")
]

# What runs for each message; docs/explanation/architecture.md says how the source has to be for it.
_HOT = {
    "coordinator/group": "deliveries entries fifo lanes queues ready refused serving units window",
    "coordinator/address": "enqueue nodes",
    "coordinator": "checkable control in_store instance memory outcomes posts registry retirement service transaction "
    "transitions",
    "links": "browsing checking client connection consuming control_link endpoints engine frames guard incoming link "
    "loop outgoing output posting reactor states steps",
    "store/commit": "batch checkable group_commit parameters terms",
    "store/codec": "encoding message",
    "store": "arrays ids libpq turns",
}
_RULES = [f"{folder}/{name}.py" for folder, names in _HOT.items() for name in names.split()]

if _MYPYC:
    from mypyc.build import mypycify

    # Tests by day compile without optimization, in half the time.
    optimization = os.environ.get("RULES_OPTIMIZATION", "2")

    # Of more than one worker of mypy nothing comes out, and no error. Without its cache: what it finds, and in what
    # order, is the same each time.
    flags = ["--config-file", "setup.cfg", "--num-workers", "0", "--cache-dir", os.devnull]
    _extensions += mypycify(
        [*flags, *_RULES], opt_level=optimization, debug_level="0", multi_file=True, target_dir="build/rules"
    )


class _WithMigrations(build_py):
    """Installed, alembic/ is in the package store: at the top it would be in the folder of the library Alembic."""

    def _get_data_files(self) -> list[tuple[str, str, str, list[str]]]:
        migrations = [str(path.relative_to("alembic")) for path in sorted(Path("alembic").rglob("*.py"))]
        to = str(Path(self.build_lib, "store", "alembic"))
        return [*super()._get_data_files(), ("store", "alembic", to, migrations)]


setup(ext_modules=_extensions, cmdclass={"build_py": _WithMigrations})
