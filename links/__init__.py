"""The wire: the only package that imports ``proton``."""
