"""The compiled part; all else is in setup.cfg, which has no place for it."""

from __future__ import annotations

from setuptools import Extension, setup

_CAREFUL = ["-O2", "-fstack-protector-strong", "-D_FORTIFY_SOURCE=2", "-Wall", "-Wextra"]

setup(
    ext_modules=[
        # Without a compiler, or when it fails, the twin in Python runs: `coordinator --version` says so.
        Extension("coordinator.codec._scan", ["coordinator/codec/_scan.c"], extra_compile_args=_CAREFUL, optional=True),
    ]
)
