"""A service started by root becomes another user of the operating system (rule S12)."""

from __future__ import annotations

import os
import pwd

import structlog

_log = structlog.get_logger(__name__)


class CannotBecome(Exception):
    """The process cannot become the user; the message says why."""


def become(name: str | None) -> None:
    """Become the user for good, with its groups and home, before any other step of the service. Without a name, a
    service started by root logs a warning, and remains root.

    :raises CannotBecome: there is no such user, it cannot read this program, or the process is another's.
    """
    own = os.geteuid()
    if name is None:
        if own == 0:
            _log.warning("it runs as root, and need not: run_as, or another user starts it")
        return
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        raise CannotBecome("run_as: there is no such user of this system") from None
    if own == account.pw_uid != 0:
        return
    if own != 0:
        raise CannotBecome("run_as: only root can become another user")
    os.initgroups(name, account.pw_gid)
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    for file in (os.__file__, __file__):
        if not os.access(file, os.R_OK):
            raise CannotBecome(f"run_as: {name} cannot read {file}; install it where other users can")
    os.environ.update(HOME=account.pw_dir, USER=name, LOGNAME=name)
