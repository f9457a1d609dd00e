"""The compiled part, and for .ci/build the rules by mypyc; all else is in setup.cfg, which has no place for them."""

from __future__ import annotations

import os

from setuptools import Extension, setup

_CAREFUL = ["-O2", "-fstack-protector-strong", "-D_FORTIFY_SOURCE=2", "-Wall", "-Wextra"]

# Without a compiler, or when it fails, the twins in Python run: `coordinator --version` says so.
_extensions = [
    Extension(module, [module.replace(".", "/") + ".c"], extra_compile_args=_CAREFUL, optional=True)
    for module in ("store.codec._scan", "links._frames", "links._steps", "store._packing")
]

# What runs for each message; docs/explanation/architecture.md says how the source has to be for it.
_HOT = {
    "coordinator/group": "deliveries entries fifo lanes queues ready refused serving units window",
    "coordinator/address": "enqueue nodes",
    "coordinator": "checkable control in_store instance memory outcomes posts registry retirement service transaction "
    "transitions",
    "links": "browsing checking client connection consuming control_link endpoints engine frames guard incoming link loop "
    "outgoing output posting reactor states steps",
    "store/commit": "batch checkable group_commit parameters terms",
    "store/codec": "encoding message",
    "store": "arrays ids libpq turns",
}
_RULES = [f"{folder}/{name}.py" for folder, names in _HOT.items() for name in names.split()]

if "RULES_BY_MYPYC" in os.environ:
    from mypyc.build import mypycify

    # Tests by day compile without optimization, in half the time.
    optimization = os.environ.get("RULES_OPTIMIZATION", "2")

    # Of more than one worker of mypy nothing comes out, and no error. Without its cache: what it finds, and in what order,
    # is the same each time.
    flags = ["--config-file", "setup.cfg", "--num-workers", "0", "--cache-dir", os.devnull]
    _extensions += mypycify(
        [*flags, *_RULES], opt_level=optimization, debug_level="0", multi_file=True, target_dir="build/rules"
    )

setup(ext_modules=_extensions)
