"""A defect of ours costs one connection, not the worker (P14): finds out which connection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from types import BuiltinMethodType, FunctionType, MethodType

from links.connection import Connection
from links.link import Link

#: attributes by which units, entries and logins refer to what they belong to
_OWNERS = ("link", "_link", "connection", "owner", "_entry", "_disabled")
_DEEPEST = 5


def connection_of(what: object) -> Connection | None:
    """The connection that a callback or a unit belongs to, searched in what it refers to. None: it belongs to none."""
    return _search(what, _DEEPEST)


def name_of(what: object) -> str:
    """For the log."""
    if isinstance(what, partial):
        return name_of(what.func)
    return str(getattr(what, "__qualname__", type(what).__qualname__))


def _search(what: object, depth: int) -> Connection | None:
    if isinstance(what, Connection):
        return what
    if isinstance(what, Link):
        return _search(what.connection, 0)
    if depth:
        for each in _referred(what):
            found = _search(each, depth - 1)
            if found is not None:
                return found
    return None


def _referred(what: object) -> Iterator[object]:
    if isinstance(what, MethodType | BuiltinMethodType):  # that of a class which mypyc has compiled is of the latter
        yield what.__self__
    elif isinstance(what, partial):
        yield what.func
        yield from what.args
    elif isinstance(what, FunctionType):
        for cell in what.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not bound yet
                continue
    elif (variables := getattr(what, "__mypyc_env__", None)) is not None:
        yield from _of_compiled(variables)
    elif type(what).__module__.startswith(("coordinator.", "links.")):
        for name in _OWNERS:
            each = getattr(what, name, None)
            if each is not None:
                yield each


def _of_compiled(variables: object) -> Iterator[object]:
    """What a function that mypyc has compiled knows of those around it, which have their variables in objects."""
    for each in gc.get_referents(variables):
        if type(each).__name__.endswith("_env"):
            yield from _of_compiled(each)
        else:
            yield each
