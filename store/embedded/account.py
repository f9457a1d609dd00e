"""The operating-system user that the embedded server runs as."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from store.embedded.errors import EmbeddedError
from store.processes import die_with_parent


@dataclass(frozen=True, kw_only=True)
class Account:
    """PostgreSQL refuses to run as root: where we are root, the server runs as ``nobody``."""

    uid: int
    gid: int
    other: bool  # the service runs as root, and its server does not

    @classmethod
    def choose(cls) -> Account:
        if os.geteuid() != 0:
            return cls(uid=os.geteuid(), gid=os.getegid(), other=False)
        try:
            user = pwd.getpwnam("nobody")
        except KeyError:
            raise EmbeddedError(
                "PostgreSQL does not run as root and there is no user 'nobody'; run as another user, "
                "or give --database-url"
            ) from None
        return cls(uid=user.pw_uid, gid=user.pw_gid, other=True)

    def own(self, path: Path) -> None:
        if self.other:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def popen(self, arguments: list[str], *, output: int, death_signal: signal.Signals) -> subprocess.Popen[bytes]:
        """Start a child. It gets ``death_signal`` when the calling *thread* ends: call it in the main thread."""
        parent = os.getpid()

        def follow() -> None:
            # Runs after setuid, which would clear it.
            die_with_parent(death_signal, parent)

        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env={**kept, "LC_ALL": "C", "TZ": "UTC"},
            # A terminal's Ctrl-C is for the service, which stops its server last.
            start_new_session=True,
            preexec_fn=follow,
            user=self.uid if self.other else None,
            group=self.gid if self.other else None,
            extra_groups=[] if self.other else None,
        )
