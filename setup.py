"""The compiled part; all else is in setup.cfg, which has no place for it."""

from __future__ import annotations

from setuptools import Extension, setup

_CAREFUL = ["-O2", "-fstack-protector-strong", "-D_FORTIFY_SOURCE=2", "-Wall", "-Wextra"]

setup(
    # Without a compiler, or when it fails, the twins in Python run: `coordinator --version` says so.
    ext_modules=[
        Extension(module, [module.replace(".", "/") + ".c"], extra_compile_args=_CAREFUL, optional=True)
        for module in ("coordinator.codec._scan", "links._frames", "links._steps", "store._packing")
    ]
)
